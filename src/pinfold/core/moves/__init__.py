"""Exclusive CPUs that change while their owners run: what is to move, and in which steps."""
