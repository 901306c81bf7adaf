"""Images with labels, and names that stay the same from run to run. Needs `costcert[models]`."""
