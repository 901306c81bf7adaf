"""Table 1: votes, how they are collected from a model, and how the voting is tuned."""
