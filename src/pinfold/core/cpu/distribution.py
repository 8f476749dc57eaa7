"""Distributing: the same number of CPUs from each of several NUMA nodes.

What ``distribute-cpus-across-numa`` does (upstream ``takeByTopologyNUMADistributed``): find the
smallest number of NUMA nodes that can share the request evenly in whole groups, among those the
combination that leaves the machine most evenly filled, and pack within each node.

Whether a combination fits, and how well, depends only on how many CPUs its nodes have free.  So
of all combinations with the same sequence of free counts only the first is looked at, and nodes
that are filled alike cost nothing extra.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from math import floor, sqrt

from msgspec import Struct

from pinfold.core.cpu.allocation import Step, not_enough, numa_nodes_in_order, take_packed
from pinfold.core.kubelet.faults import (
    DISTRIBUTION_HANGS,
    KUBELET,
    AllocationRules,
    UpstreamFaultError,
)
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.topology_manager.hints import AllocationError


def take_distributed(  # noqa: PLR0913 - the request is these values
    topology: CPUTopology,
    available: int,
    n: int,
    group_size: int = 1,
    *,
    spread: bool = False,
    rules: AllocationRules = KUBELET,
    steps: list[Step] | None = None,
) -> int:
    """Choose ``n`` of the ``available`` CPUs (bitmasks), evenly over as few NUMA nodes as do.

    ``group_size`` is how many CPUs always stay together (a core's under ``full-pcpus-only``); a
    request that is no multiple of it, or that no combination can share, is packed.  The other
    arguments are those of :func:`pinfold.core.cpu.allocation.take_packed`.

    Raises:
        AllocationError: fewer than ``n`` CPUs are available, or (the kubelet's own accounting
            error) the combination was overwritten by one that cannot give them.
        UpstreamFaultError: the kubelet would never return (only under rules that may hang).
    """

    def pack(free: int, count: int) -> int:
        return take_packed(topology, free, count, spread=spread, rules=rules, steps=steps)

    if n % group_size:
        return pack(available, n)
    if n < 1:
        return 0
    free = available & topology.all
    if n > free.bit_count():
        raise AllocationError(not_enough(n, available))
    nodes = [_Node(id_, count, mask) for count, id_, mask in numa_nodes_in_order(topology, free)]
    search = _Search(nodes, n, group_size, rules)
    least, most = _node_counts(topology, len(nodes), n, group_size)
    for size in range(least, most + 1):
        best = search.best_of(size)
        if best is not None:
            return _hand_out(best, free, n, group_size, pack)
    return pack(available, n)


class _Node(Struct, frozen=True):
    id: int
    free: int
    mask: int


class _Share(Struct, frozen=True):
    """A combination of nodes, and those of them that give one group more than the others."""

    nodes: Sequence[_Node]
    extra: Sequence[_Node]
    balance: float


def _node_counts(
    topology: CPUTopology, available_nodes: int, n: int, group_size: int
) -> tuple[int, int]:
    """The least and the most NUMA nodes that could share the request."""
    groups = -(-len(topology.rows) // group_size)
    groups_per_node = -(-groups // topology.num_numa_nodes)
    wanted = -(-n // group_size)
    return -(-wanted // groups_per_node), min(wanted, available_nodes)


class _Search:
    """The search for the most even combination of NUMA nodes."""

    def __init__(self, nodes: list[_Node], n: int, group_size: int, rules: AllocationRules) -> None:
        self.nodes = nodes
        self.n = n
        self.group_size = group_size
        self.rules = rules

    def best_of(self, size: int) -> _Share | None:
        """The best combination of exactly ``size`` nodes, if any can share the request."""
        best: _Share | None = None
        best_nodes: Sequence[int] = ()
        for positions in _first_of_each_kind([node.free for node in self.nodes], size):
            if best is not None and best.balance == 0:
                break
            share = self._share([self.nodes[position] for position in positions])
            if share is not None and (best is None or share.balance < best.balance):
                best, best_nodes = share, positions
        if best is None:
            return None
        kept = self.rules.kept_combination(
            best_nodes, range(len(self.nodes)), stopped=best.balance == 0
        )
        return _Share([self.nodes[position] for position in kept], best.extra, best.balance)

    def _share(self, combination: list[_Node]) -> _Share | None:
        size, group_size = len(combination), self.group_size
        if sum(node.free for node in combination) < self.n:
            return None
        if sum(node.free // group_size for node in combination) * group_size < self.n:
            return None
        even = self.n // size // group_size * group_size
        if any(node.free < even for node in combination):
            return None
        left = {node.id: node.free for node in self.nodes}
        for node in combination:
            left[node.id] -= even
        remainder = self.n - even * size
        if remainder == 0:
            return _Share(combination, (), _deviation(left.values()))
        candidates = [node for node in combination if left[node.id] >= group_size]
        return self._share_remainder(combination, candidates, left, remainder)

    def _share_remainder(
        self,
        combination: list[_Node],
        candidates: list[_Node],
        left: dict[int, int],
        remainder: int,
    ) -> _Share | None:
        best: Sequence[_Node] = ()
        best_balance = float("inf")
        counts = [left[node.id] for node in candidates]
        # Downwards: among equally even ones the subset with the most nodes is preferred.
        for size in range(len(candidates), 0, -1):
            found: Sequence[int] = ()
            for positions in _first_of_each_kind(counts, size):
                balance = self._balance([candidates[p] for p in positions], left, remainder)
                if balance is not None and balance < best_balance:
                    best_balance, found = balance, positions
            if found:
                kept = self.rules.kept_combination(found, range(len(candidates)), stopped=False)
                best = [candidates[position] for position in kept]
        return _Share(combination, best, best_balance) if best else None

    def _balance(self, subset: list[_Node], left: dict[int, int], remainder: int) -> float | None:
        """How uneven the machine is once ``subset`` has given the remainder, group by group."""
        if sum(left[node.id] for node in subset) < remainder:
            return None
        after = dict(left)
        while remainder > 0:
            before = remainder
            for node in subset:
                if remainder == 0:
                    break
                if after[node.id] >= self.group_size:
                    after[node.id] -= self.group_size
                    remainder -= self.group_size
            if remainder == before:
                if self.rules.may_hang:
                    raise _hang(self.n, self.group_size)
                return None
        return _deviation(after.values())


def _hand_out(
    share: _Share, free: int, n: int, group_size: int, pack: Callable[[int, int], int]
) -> int:
    size = len(share.nodes)
    even = n // size // group_size * group_size
    result, left = 0, n
    for node in share.nodes:
        try:
            cpus = pack(free & node.mask, even)
        except AllocationError:
            # A combination that was overwritten: the accounting below tells.
            continue
        result |= cpus
        free &= ~cpus
        left -= cpus.bit_count()
    remainder = n - even * size
    while remainder > 0:
        before = remainder
        for node in share.extra:
            here = free & node.mask
            if remainder == 0:
                break
            if here.bit_count() < group_size:
                continue
            cpus = pack(here, group_size)
            result |= cpus
            free &= ~cpus
            left -= cpus.bit_count()
            remainder -= group_size
        if remainder == before:
            raise _hang(n, group_size)
    if left != 0:
        amount = "not enough" if left > 0 else "too many"
        raise AllocationError(f"accounting error, {amount} CPUs allocated, remaining: {left}")
    return result


def _hang(n: int, group_size: int) -> UpstreamFaultError:
    return UpstreamFaultError(
        DISTRIBUTION_HANGS,
        f"distributing {n} CPUs in groups of {group_size} over NUMA nodes never ends",
    )


def _first_of_each_kind(values: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield positions of combinations in the order of nested loops, one for each value sequence.

    Of all combinations with the same sequence of values only the first is yielded.
    """
    count = len(values)
    chosen: list[int] = []

    def extend(start: int) -> Iterator[tuple[int, ...]]:
        missing = size - len(chosen)
        if missing == 0:
            yield tuple(chosen)
            return
        seen: set[int] = set()
        for position in range(start, count - missing + 1):
            if values[position] in seen:
                continue
            seen.add(values[position])
            chosen.append(position)
            yield from extend(position + 1)
            chosen.pop()

    return extend(0)


def _deviation(values: Collection[int]) -> float:
    """The standard deviation, rounded on the way as the kubelet rounds it."""
    count = len(values)
    mean = _round(sum(values) / count)
    return _round(sqrt(sum((value - mean) * (value - mean) for value in values) / count))


def _round(value: float) -> float:
    """Three decimals, halves away from zero (Go's ``math.Round``); ``value`` >= 0."""
    return floor(value * 1000 + 0.5) / 1000
