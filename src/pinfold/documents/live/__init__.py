"""Documents of a node that somebody watches: what has changed, and how it is drawn."""
