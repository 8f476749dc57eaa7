"""Readers of traces."""
