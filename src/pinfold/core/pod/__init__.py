"""Pods: what one asks for and runs, and what follows from it."""
