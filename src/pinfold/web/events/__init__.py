"""``GET /v1/events``: what changes on the node, told to all who listen."""
