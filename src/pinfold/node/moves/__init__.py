"""Plans of moves carried out on a live node, step by step."""
