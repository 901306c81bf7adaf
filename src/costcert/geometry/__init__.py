"""Geometry in integers: which pixels a mutant keeps, where a patch may lie, and which mutants it touches."""
