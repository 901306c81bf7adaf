"""A classifier turns pixels and kept regions into logits, one row a mutant. Needs `costcert[models]`."""
