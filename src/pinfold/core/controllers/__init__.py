"""Decide by load who gets which CPUs meanwhile; pure, on one look at the node."""
