"""``pinfold serve``."""
