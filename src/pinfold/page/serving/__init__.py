"""``pinfold serve``: the page of the local agent's node, for browsers that have the token."""
