"""What a node does for its pods beyond their places, and whether it would be in force."""
