"""Readers of traces: pods, or what stands for them, as they came to a cluster."""
