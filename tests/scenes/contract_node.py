"""A place to try an implementation of the cgroups port at, and whose containers are tried."""

from __future__ import annotations

from typing import Protocol

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Cgroups
from pinfold.ports.errors import ContainerKey

SHARED = ContainerKey("uid-shared", "main")
OWNER = ContainerKey("uid-owner", "main")
MIXED = ContainerKey("uid-mixed", "main")
BORROWER = ContainerKey("uid-borrower", "main")


class Node(Protocol):
    """A place to try an implementation: its CPUs, and processes that it can hold."""

    @property
    def cgroups(self) -> Cgroups:
        """What is tried."""

    @property
    def cpus(self) -> CPUSet:
        """Every CPU that there is."""

    def start(self) -> int:
        """A process; its pid."""

    def allowed(self, pid: int) -> CPUSet:
        """Where it may run."""

    def alive(self, pid: int) -> bool:
        """Whether it has not ended."""
