"""Profiles of a node: what of a machine's settings differs from what is wanted; pure."""
