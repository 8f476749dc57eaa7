"""Machines from ``/sys`` and ``/proc``: live, in a directory, or in a tar archive."""
