"""Pods: what a manifest says, checked, and what follows from it."""
