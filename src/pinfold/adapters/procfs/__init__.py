"""The kernel's side, read-only: tasks, cgroups and interrupts from ``/proc`` and ``/sys``."""
