"""Table 2: certificates of votes, the accuracy they add up to, and other guarantees."""
