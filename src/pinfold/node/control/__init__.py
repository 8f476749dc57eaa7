"""One loop that asks the controllers, and carries out what they wish."""
