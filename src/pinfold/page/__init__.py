"""The page of a node in a browser: what it shows, and who serves it."""
