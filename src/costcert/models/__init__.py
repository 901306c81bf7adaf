"""Classifiers: from pixels and kept regions to logits, one row per mutant. Needs `costcert[models]`."""
