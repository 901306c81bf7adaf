"""Table 2: certificates computed from votes, their accuracy, and other guarantees."""
