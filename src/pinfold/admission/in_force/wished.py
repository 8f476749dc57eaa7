"""What is wished of a node or a container, and what becomes of it; see :mod:`.table`."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from pinfold.admission.load_driven import load_driven_containers
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kernel import Kernel
from pinfold.core.machine.machine import Machine
from pinfold.core.pod.annotation import CONTAINER, POD, Annotation
from pinfold.core.pod.annotations import LOAD_BALANCE
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet

SHARES: Final = "it has no CPUs of its own"


class PlannedNode(Struct, frozen=True):
    """A node with a section ``pinfold``, and the machine that it is on."""

    config: NodeConfig
    machine: Machine
    kernel: Kernel = Kernel()
    allocatable_memory: int | None = None


class PlacedContainer(Struct, frozen=True):
    """A container of a pod that was admitted.

    ``cpus`` are those of its own, empty where it shares; ``mixed``: it uses the shared pool
    besides.
    """

    node: PlannedNode
    pod: Pod
    name: str
    cpus: CPUSet = CPUSet()
    mixed: bool = False

    @property
    def by_load(self) -> bool:
        """Whether it has CPUs of its own while its load asks for them, and none at first."""
        config = self.node.config
        return config.load_driven and self.name in load_driven_containers(self.pod)

    @property
    def may_own(self) -> bool:
        """Whether it has CPUs of its own, or may come to have some."""
        return bool(self.cpus) or self.by_load

    def while_own(self, value: str) -> str:
        """What is in force of one that may own, and when."""
        return value if self.cpus else f"{value}, while it has CPUs of its own"

    @property
    def asks_partition(self) -> bool:
        """Whether CPUs of its own are to be a partition of the kernel's."""
        wished, said = self.node.config.partition, self.said(LOAD_BALANCE)
        return wished == "root" or (wished == "isolated" and said is not None and not said[0])

    def said(self, row: Annotation[Any]) -> tuple[Any, str] | None:
        """What an annotation says of it, and where; None where it says nothing that counts."""
        for holder in (CONTAINER + self.name, POD):
            if row.key(holder) in self.pod.annotations:
                return row.of(self.pod.annotations, self.name), f"annotation {row.key(holder)}"
        return None


class Wish(Struct, frozen=True):
    """What is wished, and what becomes of it.

    Attributes:
        value: what is in force, in a few words or figures with their units; None: nothing is.
        source: who wished it: ``annotation KEY`` or ``setting NAME``.
        reason: why nothing is in force.
        provided: what has to be so on the machine, where a plan cannot know.  What it may know is
            written ``cgroup v2`` and ``Linux 6.7``, and is looked up.
    """

    value: str | None
    source: str
    reason: str | None = None
    provided: str | None = None

    @classmethod
    def granted(cls, value: str, source: str, provided: str | None = None) -> Wish:
        """It is in force, ``provided`` that something is so."""
        return cls(value, source, provided=provided)

    @classmethod
    def refused(cls, source: str, reason: str) -> Wish:
        """It is not in force."""
        return cls(None, source, reason)


def setting(name: str) -> str:
    """A setting of a configuration file, as a source."""
    return f"setting {name}"


def own_cpus_only(
    container: PlacedContainer, value: str, source: str, provided: str | None = None
) -> Wish:
    """In force for one that has CPUs of its own."""
    if not container.may_own:
        return Wish.refused(source, SHARES)
    return Wish.granted(container.while_own(value), source, provided)
