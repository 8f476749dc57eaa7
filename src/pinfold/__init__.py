"""Pinfold keeps containers on their CPUs."""
