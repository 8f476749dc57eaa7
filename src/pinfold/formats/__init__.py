"""Text formats that more than one reader needs."""
