"""Datasets: images with labels, and ids that stay the same from run to run. Needs `costcert[models]`."""
