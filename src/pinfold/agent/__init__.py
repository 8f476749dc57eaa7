"""The composition root: the only place that wires things together."""
