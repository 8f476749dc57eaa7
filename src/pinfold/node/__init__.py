"""The node: what it is configured to do, and what it decides about a pod."""
