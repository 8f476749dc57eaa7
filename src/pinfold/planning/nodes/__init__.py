"""Pods on several nodes: a scheduler binds each, and its node decides then."""
