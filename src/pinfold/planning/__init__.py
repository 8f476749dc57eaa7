"""What-if planning: pods on a machine, without touching one."""
