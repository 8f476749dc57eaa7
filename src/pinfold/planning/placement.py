"""Where a plan puts the containers of a pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pinfold.admission.decision import Decision
from pinfold.core.memory.memory import Block
from pinfold.core.pod.isolation_levels import IsolationLevel, isolation_levels
from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import CPUSet

_NO_DEVICES: Final[Mapping[str, tuple[str, ...]]] = {}


class ContainerPlacement(Struct, frozen=True):
    """Where a container runs, on its own CPUs or the shared pool, and what else it was given.

    ``kind`` is "container", "init" or "sidecar"; ``memory`` are the blocks that the memory manager
    gave it, ``devices`` the ids by resource, ``by_class`` those of them that it has for classes.
    One that is ``mixed`` runs on the shared pool besides ``cpus``, which are its own.  ``idle`` are
    the siblings that stay idle for it, None where it is not SMT-isolated.  ``isolation`` is from
    whom it is apart in a pod that has CPUs as a whole; None in any other.
    """

    name: str
    cpus: CPUSet
    exclusive: bool
    kind: str
    memory: tuple[Block, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = _NO_DEVICES
    mixed: bool = False
    idle: CPUSet | None = None
    by_class: Mapping[str, tuple[str, ...]] = _NO_DEVICES
    isolation: IsolationLevel | None = None

    @property
    def is_on_nodes_pool(self) -> bool:
        """Whether it runs on the node's shared pool, and follows that."""
        return not self.exclusive and self.isolation is not IsolationLevel.POD

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that its memory may come from (``cpuset.mems``); empty for any."""
        return tuple(sorted({node for block in self.memory for node in block.numa_affinity or ()}))


def placements(decision: Decision, shared: CPUSet) -> tuple[ContainerPlacement, ...]:
    """Where the containers of a pod run; those that share do on ``shared``, or in its bubble."""
    pod = decision.pod
    nowhere = CPUSet()
    parts = {} if decision.bubble is None else decision.bubble.parts
    levels = isolation_levels(pod, parts, pod_level=True) if parts else {}

    def place(container: Container, kind: str) -> ContainerPlacement:
        allocation = decision.allocations.get(container.name)
        cpus = parts.get(container.name, shared) if decision.admitted else nowhere
        return ContainerPlacement(
            name=container.name,
            cpus=cpus if allocation is None else allocation.cpus,
            exclusive=allocation is not None,
            kind=kind,
            memory=decision.memory.get(container.name, ()),
            devices=decision.devices.get(container.name, _NO_DEVICES),
            by_class=decision.by_class.get(container.name, _NO_DEVICES),
            mixed=allocation is not None and container.name in pod.mixed,
            idle=None if allocation is None else allocation.idle,
            isolation=levels.get(container.name),
        )

    return tuple(
        place(c, "sidecar" if c.is_sidecar else "init") for c in pod.init_containers
    ) + tuple(place(c, "container") for c in pod.containers)
