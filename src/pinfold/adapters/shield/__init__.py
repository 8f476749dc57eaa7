"""A shield: everything else on the machine is moved off some CPUs, and undone cleanly."""

from pinfold.adapters.shield.kernel import (
    Method,
    Place,
    ShieldError,
    ShieldRequestError,
    find_place,
)
from pinfold.adapters.shield.raising import AGENT_TREE, ShieldReport, lower_shield, raise_shield
from pinfold.adapters.shield.record import CGROUP, RECORD, Shield, read_shield
from pinfold.adapters.shield.watching import foreign_threads

__all__ = [
    "AGENT_TREE",
    "CGROUP",
    "RECORD",
    "Method",
    "Place",
    "Shield",
    "ShieldError",
    "ShieldReport",
    "ShieldRequestError",
    "find_place",
    "foreign_threads",
    "lower_shield",
    "raise_shield",
    "read_shield",
]
