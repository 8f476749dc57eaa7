"""Shares of caches and of memory bandwidth."""
