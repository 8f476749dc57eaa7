"""Plans of moves that are carried out on a live node."""
