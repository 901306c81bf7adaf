"""An independent second derivation of certificates, and a replay of the votes they came from."""
