"""Whose a file, a folder or a cgroup is: locks that hold what they say, and paths nobody turns."""

from typing import Final

SECOND_AGENT: Final = (
    "give a second agent on this machine a cgroupName, a stateDir and a socket of its own, and "
    "reservedSystemCPUs that keep each off the CPUs which the other gives out"
)
"""What it takes beside the agent that is in the way; a remedy begins "stop that one, or"."""
