"""Table 1: votes, collecting them from a model, and choosing how mutants vote."""
