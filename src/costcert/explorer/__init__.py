"""The page where certificates are explored, and the HTTP service behind it."""
