"""The agent's local API: HTTP on a unix socket."""
