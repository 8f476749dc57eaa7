"""Packing: which CPUs a request of n gets, topologically best fit.

The order of choice is the kubelet's (``cpumanager/cpu_assignment.go``): whole NUMA nodes or
sockets, optionally uncore caches, whole cores, single threads; always from the part of the
machine that is fullest already, ties by id.  All sets are bitmasks and cores are counted many at
a time, so that the cost grows with the groups of the machine and not with its CPUs squared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from msgspec import Struct

from pinfold.core.kubelet.faults import KUBELET, AllocationRules
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.topology_manager.hints import AllocationError
from pinfold.core.values.cpuset import iter_bits


class Step(Struct, frozen=True):
    """One step of an allocation, for explanations: what was taken.

    ``kind`` is "NUMA node", "socket", "uncore cache", "part of uncore cache", "cores" or "CPUs";
    ``id`` names the group the CPUs are in (None for cores and CPUs of several groups).
    """

    kind: str
    id: int | None
    cpus: int


def take_packed(  # noqa: PLR0913 - the request is these values
    topology: CPUTopology,
    available: int,
    n: int,
    *,
    spread: bool = False,
    align_uncore: bool = False,
    rules: AllocationRules = KUBELET,
    steps: list[Step] | None = None,
) -> int:
    """Choose ``n`` of the ``available`` CPUs (both and the result are bitmasks).

    Args:
        topology: the kubelet's view of the machine.
        available: the free CPUs.
        n: how many are wanted; nothing is taken for ``n < 1``.
        spread: one thread of each core first (``distribute-cpus-across-cores``).
        align_uncore: prefer few uncore caches (``prefer-align-cpus-by-uncorecache``).
        rules: the kubelet's answer, faults included, or the sound one.
        steps: where the steps are recorded, if anywhere.

    Raises:
        AllocationError: fewer than ``n`` CPUs are available.
    """
    if n < 1:
        return 0
    free = available & topology.all
    if n > free.bit_count():
        raise AllocationError(not_enough(n, available))
    accumulator = _Accumulator(topology, free, n, rules, steps)
    if accumulator.take_whole_groups():
        return accumulator.result
    if align_uncore and accumulator.take_uncore_caches():
        return accumulator.result
    if not spread and accumulator.take_full_cores():
        return accumulator.result
    if accumulator.take_threads(spread=spread):
        return accumulator.result
    raise AllocationError("failed to allocate cpus")


def not_enough(n: int, available: int) -> str:
    """The kubelet's text for a request above what is available."""
    return (
        "not enough cpus available to satisfy request: "
        f"requested={n}, available={available.bit_count()}"
    )


def by_free_cpus(groups: Iterable[tuple[int, int]], free: int) -> list[tuple[int, int, int]]:
    """Turn ``(id, mask)`` groups with free CPUs into ``(free CPUs, id, mask)``, fewest first."""
    return sorted([((free & mask).bit_count(), id_, mask) for id_, mask in groups if free & mask])


def numa_nodes_in_order(topology: CPUTopology, free: int) -> list[tuple[int, int, int]]:
    """``(free CPUs, NUMA node, mask)`` of the nodes with free CPUs, in the order of choice."""
    nodes = topology.numa_nodes
    if topology.num_sockets >= len(nodes):
        return by_free_cpus(nodes.items(), free)
    return list(_nested(topology.sockets, topology.numa_nodes_by_socket, free))


def sockets_in_order(topology: CPUTopology, free: int) -> Iterable[tuple[int, int, int]]:
    """``(free CPUs, socket, mask)`` of the sockets with free CPUs, in the order of choice."""
    if topology.num_sockets >= len(topology.numa_nodes):
        return _nested(topology.numa_nodes, topology.sockets_by_numa_node, free)
    return by_free_cpus(topology.sockets.items(), free)


def _nested(
    outer: Mapping[int, int], inner: Mapping[int, tuple[tuple[int, int], ...]], free: int
) -> Iterator[tuple[int, int, int]]:
    """Walk the outer groups in order, and in each the inner groups that have free CPUs there.

    An inner group that spans two outer ones comes twice, as it does in the kubelet.
    """
    for _, id_, outer_mask in by_free_cpus(outer.items(), free):
        here = free & outer_mask
        groups = inner[id_]
        if len(groups) == 1:
            yield ((free & groups[0][1]).bit_count(), *groups[0])
        else:
            yield from by_free_cpus((group for group in groups if here & group[1]), free)


_FEW: Final = 8
"""Up to so many bits are sooner found one by one."""


def lowest_bits(mask: int, count: int) -> int:
    """The ``count`` lowest set bits of ``mask`` (all of them if there are fewer)."""
    if count <= 0:
        return 0
    if mask.bit_count() <= count:
        return mask
    if count <= _FEW:
        rest = mask
        for _ in range(count):
            rest &= rest - 1
        return mask ^ rest
    low, high = 0, mask.bit_length()
    while low < high:
        middle = (low + high) // 2
        if (mask & ((1 << middle) - 1)).bit_count() < count:
            low = middle + 1
        else:
            high = middle
    return mask & ((1 << low) - 1)


class _Accumulator:
    """The CPUs taken so far; every ``take_*`` returns whether the request is satisfied."""

    __slots__ = ("free", "left", "result", "rules", "steps", "topology")

    def __init__(
        self,
        topology: CPUTopology,
        free: int,
        n: int,
        rules: AllocationRules,
        steps: list[Step] | None,
    ) -> None:
        self.topology = topology
        self.free = free
        self.left = n
        self.result = 0
        self.rules = rules
        self.steps = steps

    def _take(self, kind: str, id_: int | None, cpus: int) -> None:
        self.result |= cpus
        self.free &= ~cpus
        self.left -= cpus.bit_count()
        if self.steps is not None:
            self.steps.append(Step(kind, id_, cpus))

    def take_whole_groups(self) -> bool:
        """Take whole NUMA nodes, then sockets; the other way round where nodes are the smaller."""
        topology = self.topology
        if self.left < topology.smallest_group:
            return False
        if topology.sockets_alike and not any(
            self.free & mask == mask for mask in topology.group_masks
        ):
            return False
        if topology.num_sockets >= len(topology.numa_nodes):
            return self._take_numa_nodes() or self._take_sockets()
        return self._take_sockets() or self._take_numa_nodes()

    def _take_numa_nodes(self) -> bool:
        for count, id_, mask in list(numa_nodes_in_order(self.topology, self.free)):
            size = mask.bit_count()
            if count == size and self.left >= size:
                self._take("NUMA node", id_, mask)
        return self.left < 1

    def _take_sockets(self) -> bool:
        average = self.topology.cpus_per_socket if self.rules.average_sizes else None
        for count, id_, mask in list(sockets_in_order(self.topology, self.free)):
            size = mask.bit_count()
            if count == (size if average is None else average) and self.left >= size:
                self._take("socket", id_, mask)
        return self.left < 1

    def take_uncore_caches(self) -> bool:
        """Take whole uncore caches, then a part of one that holds all the rest."""
        topology = self.topology
        for _, id_, _ in self._uncore_caches_in_order():
            if self.left >= topology.cpus_per_uncore_cache:
                self._take_whole_uncore_caches()
            if self.left < 1:
                return True
            self._take_part_of_uncore_cache(id_)
            if self.left < 1:
                return True
        return False

    def _uncore_caches_in_order(self) -> list[tuple[int, int, int]]:
        free = self.free
        caches = self.topology.uncore_caches.items()
        return [
            row
            for _, _, node in numa_nodes_in_order(self.topology, free)
            for row in by_free_cpus([c for c in caches if free & node & c[1]], free)
        ]

    def _take_whole_uncore_caches(self) -> None:
        for count, id_, mask in self._uncore_caches_in_order():
            size = mask.bit_count()
            if count == size and self.left >= size:
                self._take("uncore cache", id_, mask)

    def _take_part_of_uncore_cache(self, id_: int) -> None:
        topology = self.topology
        per_core = topology.cpus_per_core
        wanted_cores = (self.left + per_core - 1) // per_core
        cores = lowest_bits(self._firsts_with_free_cpus(topology.uncore_caches[id_]), wanted_cores)
        cpus = self._threads(cores) & self.free
        if self.left % 2 and per_core > 1 and cpus.bit_count() > self.left:
            # An odd request needs only one thread of the last core.
            cpus ^= 1 << (cpus.bit_length() - 1)
        if cpus.bit_count() == self.left:
            self._take("part of uncore cache", id_, cpus)

    def take_full_cores(self) -> bool:
        """Take whole cores, from the fullest socket or NUMA node first."""
        topology = self.topology
        if self.left < topology.smallest_core:
            return False
        firsts = self._full_cores()
        free = self.free
        for leaf in self._leaves(free):
            here = (
                firsts & leaf
                if not topology.cores_straddle
                else (firsts & self._firsts_with_free_cpus(leaf, free))
            )
            if not here:
                continue
            if topology.cores_alike:
                size = topology.smallest_core
                cores = lowest_bits(here, self.left // size)
                if cores:
                    self._take("cores", None, self._threads(cores))
                if self.left < size:
                    break
            elif self.rules.average_sizes:
                self._take_uneven_cores(here)
            else:
                for pattern in sorted(topology.core_patterns, key=lambda p: len(p.offsets)):
                    self._take_uneven_cores(here & pattern.firsts)
        return self.left < 1

    def _take_uneven_cores(self, firsts: int) -> None:
        taken = 0
        for core in iter_bits(firsts):
            mask = self.topology.cores[core]
            size = mask.bit_count()
            if self.left >= size:
                taken |= mask
                self.result |= mask
                self.free &= ~mask
                self.left -= size
        if taken and self.steps is not None:
            self.steps.append(Step("cores", None, taken))

    def _full_cores(self) -> int:
        topology = self.topology
        if self.rules.average_sizes and not topology.cores_alike:
            counts = self._core_counts()
            size = topology.cpus_per_core
            return counts[size] if size < len(counts) else 0
        full = 0
        for offsets, firsts in topology.core_patterns:
            for offset in offsets:
                firsts &= self.free >> offset  # noqa: PLW2901 - narrows the pattern's own mask
            full |= firsts
        return full

    def take_threads(self, *, spread: bool) -> bool:
        """Take single threads, of the cores that have the fewest free ones first."""
        before = self.free
        free = self.free
        taken = 0
        groups = (
            (mask for _, _, mask in sockets_in_order(self.topology, free))
            if spread
            else self._partly_free_cores(free)
        )
        for group in groups:
            cpus = lowest_bits(group & free, self.left)
            taken |= cpus
            self.left -= cpus.bit_count()
            if self.left < 1:
                break
        self.result |= taken
        self.free = before & ~taken
        if taken and self.steps is not None:
            self.steps.append(Step("CPUs", None, taken))
        return self.left < 1

    def _partly_free_cores(self, free: int) -> Iterator[int]:
        """Yield masks of CPUs in the order of choice, within each of which ids only ascend."""
        counts = self._core_counts()
        topology = self.topology
        for leaf in self._leaves(free):
            firsts_here = (
                self._firsts_with_free_cpus(leaf, free) if topology.cores_straddle else leaf
            )
            for count in range(1, len(counts)):
                firsts = counts[count] & firsts_here
                if not firsts:
                    continue
                whole = lowest_bits(firsts, self.left // count)
                if whole:
                    yield self._threads(whole)
                rest = firsts ^ whole
                if rest and self.left > 0:
                    yield topology.cores[(rest & -rest).bit_length() - 1]

    def _leaves(self, free: int) -> Iterator[int]:
        """The groups within which cores are sorted, in the order of choice."""
        topology = self.topology
        if topology.num_sockets >= len(topology.numa_nodes):
            return (mask for _, _, mask in sockets_in_order(topology, free))
        return (
            mask for _, _, mask in _nested(topology.sockets, topology.numa_nodes_by_socket, free)
        )

    def _core_counts(self) -> list[int]:
        """For each k the first CPUs of the cores that have exactly k free CPUs."""
        free = self.free
        counts = [0] * (self.topology.largest_core + 1)
        for offsets, firsts in self.topology.core_patterns:
            if len(offsets) == 2:
                first, second = firsts & free, firsts & (free >> offsets[1])
                counts[1] |= first ^ second
                counts[2] |= first & second
                continue
            exactly = [firsts]
            for offset in offsets:
                one = firsts & (free >> offset)
                grown = [exactly[0] & ~one]
                grown += [(same & ~one) | (fewer & one) for fewer, same in pairwise(exactly)]
                grown.append(exactly[-1] & one)
                exactly = grown
            for count, cores in enumerate(exactly):
                counts[count] |= cores
        return counts

    def _firsts_with_free_cpus(self, group: int, free: int | None = None) -> int:
        here = (self.free if free is None else free) & group
        found = 0
        for offsets, firsts in self.topology.core_patterns:
            for offset in offsets:
                found |= firsts & (here >> offset)
        return found

    def _threads(self, cores: int) -> int:
        """All CPUs of the cores with these first CPUs."""
        cpus = 0
        for offsets, firsts in self.topology.core_patterns:
            chosen = cores & firsts
            if chosen:
                for offset in offsets:
                    cpus |= chosen << offset
        return cpus
