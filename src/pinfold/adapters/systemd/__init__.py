"""What a service tells systemd, and what systemd keeps running."""
