"""Training networks on random mutants."""
