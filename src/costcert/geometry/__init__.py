"""Pure integers: what a mutant keeps, where the attacker writes, and which mutants that touches."""
