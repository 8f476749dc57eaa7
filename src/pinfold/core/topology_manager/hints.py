"""Topology hints: which NUMA nodes a resource provider could serve a container from.

A set of NUMA nodes is an ``int`` bitmask here (bit ``n`` is node ``n``), as in the kubelet's
``bitmask`` package, which holds ids 0 to 63.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Final, NamedTuple, TypeAlias

from msgspec import Struct

from pinfold.core.values.cpuset import iter_bits

MAX_NUMA_ID: Final = 63
"""Highest NUMA node id that a kubelet bitmask holds."""


class HintError(ValueError):
    """A NUMA node id that no mask can hold, or distances that do not cover the nodes."""


class AllocationError(Exception):
    """A provider cannot give what was asked for; the message is the kubelet's."""


EMPTY_POD_SHARED_POOL_ERROR: Final = "EmptyPodSharedPoolError"
"""The admission reason of a pod with pod-level resources that is unsound."""


class EmptyPodSharedPoolError(AllocationError):
    """Exclusive containers use up the pod's budget, and others need some of it."""

    reason: Final = EMPTY_POD_SHARED_POOL_ERROR


class TopologyHint(NamedTuple):
    """One way to serve a request (upstream ``topologymanager.TopologyHint``).

    Attributes:
        mask: bitmask of NUMA node ids; ``None`` when the answer depends on no NUMA node.
        preferred: whether the provider considers this the best way there is for the request.
    """

    mask: int | None
    preferred: bool


ResourceHints: TypeAlias = Mapping[str, Sequence[TopologyHint] | None]
"""What one provider answers: resource name -> hints; ``None`` is "no preference", an empty
sequence is "cannot be served"."""


def numa_mask(nodes: Iterable[int]) -> int:
    """The bitmask of some NUMA node ids.

    Raises:
        HintError: an id below 0 or above :data:`MAX_NUMA_ID`.
    """
    mask = 0
    for node in nodes:
        if not 0 <= node <= MAX_NUMA_ID:
            raise HintError(f"NUMA node id {node} is outside 0-{MAX_NUMA_ID}")
        mask |= 1 << node
    return mask


def is_narrower(mask: int, other: int) -> bool:
    """Whether ``mask`` has fewer nodes, or as many and a lower value (``IsNarrowerThan``)."""
    count, other_count = mask.bit_count(), other.bit_count()
    return count < other_count or (count == other_count and mask < other)


def narrowness(mask: int) -> tuple[float, ...]:
    """Sort key that agrees with :func:`is_narrower`: the narrowest mask first."""
    return mask.bit_count(), mask


def iter_numa_masks(nodes: Iterable[int]) -> Iterator[int]:
    """Yield every non-empty combination of ``nodes`` in the order that hint providers visit them.

    By size, then lexicographically by position in ``nodes`` (upstream
    ``bitmask.IterateBitMasks``).  There are ``2**n - 1``.
    """
    bits = [1 << node for node in nodes]
    for size in range(1, len(bits) + 1):
        for chosen in combinations(bits, size):
            yield sum(chosen)


def format_numa_mask(mask: int | None) -> str:
    """The mask for people: ``{0,2}``; ``any`` for no affinity."""
    return "any" if mask is None else "{" + ",".join(map(str, iter_bits(mask))) + "}"


class NUMAInfo(Struct, frozen=True, dict=True):
    """The NUMA nodes of the machine and how far they are apart (upstream ``NUMAInfo``).

    Attributes:
        nodes: NUMA node ids, in the machine's order.
        distances: node id -> row, indexed by node id, in the units of the firmware's table
            (10 is local); ``None`` where the machine gives none.

    Raises:
        HintError: a node id that no mask can hold.
    """

    nodes: tuple[int, ...]
    distances: Mapping[int, Sequence[int]] | None = None

    def __post_init__(self) -> None:
        _ = self.mask

    @cached_property
    def mask(self) -> int:
        """The nodes as a bitmask."""
        return numa_mask(self.nodes)

    def check_distances(self) -> None:
        """Make sure that every pair of nodes has a distance.

        Raises:
            HintError: a row that is missing (the kubelet's message) or too short (the kubelet
                would stop with an index error at the first comparison).
        """
        highest = max(self.nodes, default=0)
        for node in self.nodes:
            row = None if self.distances is None else self.distances.get(node)
            if row is None:
                raise HintError("error getting NUMA distances from cadvisor")
            if len(row) <= highest:
                raise HintError(
                    f"the distances of NUMA node {node} end at node id {len(row) - 1}, but the "
                    f"machine has node {highest}; give one distance for each id from 0"
                )

    def average_distance(self, mask: int) -> float:
        """Mean distance over all ordered pairs of nodes of ``mask``, a node with itself included.

        In the kubelet's floating point arithmetic; needs :meth:`check_distances`.
        """
        nodes = list(iter_bits(mask))
        if not nodes or self.distances is None:
            return 0.0
        total = 0.0
        for one in nodes:
            row = self.distances[one]
            for other in nodes:
                total += float(row[other])
        return total / float(len(nodes) ** 2)
