"""Keeps in step with who owns which CPUs what is no cpuset: caches, interrupts."""
