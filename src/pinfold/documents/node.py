"""A node: what it has, may give and has left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinfold.documents.records import CPUs, Document, Quantity, Record


class ZoneResource(Record, frozen=True, kw_only=True):
    """One resource of a NUMA node."""

    capacity: Quantity
    allocatable: Quantity
    """Without what is reserved, offline or unhealthy."""
    available: Quantity
    """What no container owns yet."""


class Zone(Record, frozen=True, kw_only=True):
    """A NUMA node."""

    id: int
    cpus: CPUs
    memory_bytes: int
    distances: Mapping[str, int]
    """By NUMA node, as the firmware has them."""
    group: Sequence[int]
    """The NUMA nodes of which containers have memory together with this one's."""
    resources: Mapping[str, ZoneResource]
    """What containers may own here: CPUs, memory and huge pages only where their manager gives them
    out by NUMA node, and devices whose plugin told their node."""


class Node(
    Document,
    frozen=True,
    kw_only=True,
    rename={
        "cpu_manager_policy": "cpuManagerPolicy",
        "memory_manager_policy": "memoryManagerPolicy",
        "topology_manager_policy": "topologyManagerPolicy",
        "topology_manager_scope": "topologyManagerScope",
    },
):
    """What a node has, may give and has left: in total, and for each NUMA node."""

    capacity: Mapping[str, Quantity]
    """What there is, by resource."""
    allocatable: Mapping[str, Quantity]
    """What pods may request, less reservations and thresholds."""
    requested: Mapping[str, Quantity]
    """The sum of the active pods' requests."""
    cpu_manager_policy: str
    memory_manager_policy: str
    topology_manager_policy: str
    topology_manager_scope: str
    zones: Sequence[Zone]
