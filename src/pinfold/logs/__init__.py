"""Logs of containers: where they are and what they look like, for all who write or read them."""
