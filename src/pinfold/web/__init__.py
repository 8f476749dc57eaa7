"""The agent's local API: HTTP on a unix socket, for its own user and root."""
