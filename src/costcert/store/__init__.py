"""Tables 1 and 2 on disk and by URL."""
