"""The certificates of webhooks that the program makes itself."""
