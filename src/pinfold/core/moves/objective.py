"""How good a placement is, and what a move costs: one tuple, compared from its left.

What is counted of an owner's CPUs is what could be less: the NUMA nodes beyond those that so many
CPUs need on this machine, the sockets, the uncore caches, the cores, how far its CPUs are from its
memory and devices, and last, where work is gathered so that the rest of the machine is idle, its
CPUs elsewhere.  The owners' numbers are added up.  The price of the moves comes after all
of these, so that among equally good placements the one with the fewest moves wins, and staying put
wins against everything that is not better.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

from msgspec import Struct

from pinfold.core.cpu.hints import nodes_to_cpus
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.topology_manager.hints import NUMAInfo
from pinfold.core.values.cpuset import iter_bits

NUMA_NODES: Final = "numa-nodes"
SOCKETS: Final = "sockets"
UNCORE_CACHES: Final = "uncore-caches"
CORES: Final = "cores"
DISTANCE: Final = "distance"
PARKED: Final = "parked"
LEVELS: Final = (NUMA_NODES, SOCKETS, UNCORE_CACHES, CORES, DISTANCE, PARKED)
"""What is counted, the most important first."""

_BITS: Final = 40
"""Of one level in a packed tuple: sums of packed tuples compare as sums of tuples do."""
_LOCAL: Final = 10
_REMOTE: Final = 20
"""Distances as the firmware gives them, where it gives none."""

Score = tuple[int, ...]
"""One number for each of :data:`LEVELS`; less is better."""

Groups = tuple[int, int, int, int]
"""A number of NUMA nodes, of sockets, of uncore caches and of cores."""


def pack(values: Iterable[int]) -> int:
    """A tuple as one number that can be added and compared."""
    packed = 0
    for value in values:
        packed = packed << _BITS | value
    return packed


class Objective(Struct, frozen=True, dict=True):
    """How placements are judged on one machine.

    Attributes:
        topology: the kubelet's view of it.
        levels: what is counted; the others are always 0.
        numa: the distances between NUMA nodes, where they are known.
        gather: the CPUs (a bitmask) that owners are gathered on; 0: nowhere.
    """

    topology: CPUTopology
    levels: tuple[str, ...] = LEVELS
    numa: NUMAInfo | None = None
    gather: int = 0

    def score(self, cpus: int, near: int = 0) -> Score:
        """How good CPUs (a bitmask) are for an owner.

        Args:
            cpus: its CPUs.
            near: bitmask of the NUMA nodes of its memory and devices; 0 for anywhere.
        """
        touched, least = self.touched(cpus), self.least(cpus.bit_count())
        beyond = (
            has - needs if level in self.levels else 0
            for level, has, needs in zip(LEVELS, touched, least, strict=False)
        )
        distance = self._distance(cpus, near) if near and DISTANCE in self.levels else 0
        parked = PARKED in self.levels and self.gather
        return (*beyond, distance, (cpus & ~self.gather).bit_count() if parked else 0)

    def touched(self, cpus: int) -> Groups:
        """Over how many groups some CPUs (a bitmask) are."""
        nodes = sockets = caches = cores = 0
        for members in self._nodes:
            if members & cpus:
                nodes += 1
        for members in self._sockets:
            if members & cpus:
                sockets += 1
        for members in self._caches:
            if members & cpus:
                caches += 1
        for offsets, firsts in self.topology.core_patterns:
            here = 0
            for offset in offsets:
                here |= firsts & (cpus >> offset)
            cores += here.bit_count()
        return nodes, sockets, caches, cores

    def least(self, count: int) -> Groups:
        """Over how few groups so many CPUs can be on this machine, when it is empty."""
        known = self._least.get(count)
        if known is None:
            every = (self._nodes, self._sockets, self._caches)
            nodes, sockets, caches = (_fewest(groups, count) for groups in every)
            cores = -(-count // self.topology.largest_core)
            known = self._least[count] = (nodes, sockets, caches, cores)
        return known

    @cached_property
    def _nodes(self) -> tuple[int, ...]:
        return tuple(self.topology.numa_nodes.values())

    @cached_property
    def _sockets(self) -> tuple[int, ...]:
        return tuple(self.topology.sockets.values())

    @cached_property
    def _caches(self) -> tuple[int, ...]:
        return tuple(self.topology.uncore_caches.values())

    @cached_property
    def _least(self) -> dict[int, Groups]:
        return {}

    def _distance(self, cpus: int, near: int) -> int:
        total = 0
        for node, members in self.topology.numa_nodes.items():
            if here := cpus & members:
                total += here.bit_count() * (self._apart(node, near) - _LOCAL)
        return total

    def _apart(self, node: int, near: int) -> int:
        if near >> node & 1:
            return _LOCAL
        rows = None if self.numa is None else self.numa.distances
        row = () if rows is None else rows.get(node, ())
        return min((row[other] for other in iter_bits(near) if other < len(row)), default=_REMOTE)

    def near_cpus(self, near: int) -> int:
        """The CPUs of some NUMA nodes (both bitmasks), else those that owners are gathered on."""
        return nodes_to_cpus(self.topology, near) if near else self.gather


def _fewest(groups: Iterable[int], count: int) -> int:
    sizes = sorted((members.bit_count() for members in groups), reverse=True)
    for number, size in enumerate(sizes, start=1):
        count -= size
        if count <= 0:
            return number
    return len(sizes)


def price(now: int, then: int, memory: int, owners: int = 1) -> Score:
    """What a move costs: the owners that move, the CPUs that they get anew, their memory in MiB."""
    if now == then or not now:
        return (0, 0, 0)
    return (owners, (then & ~now).bit_count(), -(-memory >> 20))
