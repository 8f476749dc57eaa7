"""Machines, and what a kubelet sees of them."""
