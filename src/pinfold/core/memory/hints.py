"""Which combinations of NUMA nodes could hold a request for memory and huge pages.

Source: upstream ``memorymanager/policy_static.go`` (``calculateHints``).  The sums of all
combinations are built up from one another, so a combination costs one addition per resource.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from pinfold.core.cpu.hints import MAX_HINT_NODES, TooManyNUMANodesError
from pinfold.core.memory.memory import UINT64, NUMANodeState
from pinfold.core.topology_manager.hints import TopologyHint, iter_numa_masks, narrowness, numa_mask

Reusable = Mapping[int, Mapping[str, int]]
"""Bitmask of NUMA nodes -> resource -> bytes of init containers that later ones may take over."""


class NodeGroups(Struct, frozen=True):
    """How NUMA nodes are in use; all three are bitmasks of nodes, or sets of such.

    A node serves containers of its own (a group of one), or together with the others of a group.
    """

    used: int
    grouped: int
    groups: frozenset[int]

    @classmethod
    def of(cls, machine: Mapping[int, NUMANodeState]) -> NodeGroups:
        """Find the groups."""
        cells = {
            node: numa_mask(state.cells or ())
            for node, state in machine.items()
            if state.number_of_assignments > 0
        }
        used = numa_mask(cells)
        grouped = numa_mask(node for node, s in machine.items() if len(s.cells or ()) > 1)
        return cls(
            used,
            grouped,
            frozenset(
                group
                for group in set(cells.values())
                if all(mask == group for node, mask in cells.items() if group >> node & 1)
            ),
        )

    def may_span(self, mask: int) -> bool:
        """Whether several nodes may serve one container: all unused, or the group itself."""
        return not mask & self.used or mask in self.groups

    def may_hint(self, mask: int) -> bool:
        """Whether the nodes may be offered at all."""
        if mask & (mask - 1):
            return self.may_span(mask)
        return not mask & self.grouped


def memory_hints(
    machine: Mapping[int, NUMANodeState], requested: Mapping[str, int], reusable: Reusable
) -> list[TopologyHint]:
    """The combinations that can hold all of ``requested``, in the kubelet's order.

    Preferred are those with as few nodes as an empty machine would need.

    Args:
        machine: the machine state.
        requested: resource name -> bytes; one list serves them all.
        reusable: what the pod's init containers leave.

    Raises:
        TooManyNUMANodesError: more than ``MAX_HINT_NODES``; a kubelet would try them all.
    """
    nodes = tuple(sorted(machine))
    if len(nodes) > MAX_HINT_NODES:
        raise TooManyNUMANodesError(
            f"{len(nodes)} NUMA nodes: the kubelet would try 2^{len(nodes)} combinations of them "
            "for each container and never finish; use memory manager policy None"
        )
    masks, fitting = _combinations(nodes)
    for resource, size in requested.items():
        sums = _sums([machine[node].table(resource).allocatable for node in nodes])
        fitting = [subset for subset in fitting if sums[subset] >= size]
    least = fitting[0].bit_count() if fitting else len(nodes)
    groups = NodeGroups.of(machine)
    fitting = [subset for subset in fitting if groups.may_hint(masks[subset])]
    for resource, size in requested.items():
        sums = _sums([machine[node].table(resource).free for node in nodes])
        for mask, left in reusable.items():
            if resource in left:
                subset = _subset(nodes, mask)
                sums[subset] = (sums[subset] + left[resource]) & UINT64
        fitting = [subset for subset in fitting if sums[subset] >= size]
    return [TopologyHint(masks[subset], subset.bit_count() == least) for subset in fitting]


def best_hint(hints: Sequence[TopologyHint]) -> TopologyHint:
    """The preferred one of the fewest nodes; of as many, the one with the lowest mask."""
    return min(hints, key=lambda hint: (not hint.preferred, narrowness(hint.mask or 0)))


@lru_cache(maxsize=16)
def _combinations(nodes: tuple[int, ...]) -> tuple[Sequence[int], Sequence[int]]:
    """The mask of each subset of positions in ``nodes``, and the subsets in order of visit."""
    masks = [0]
    for node in nodes:
        masks += [mask | 1 << node for mask in masks]
    where = {mask: subset for subset, mask in enumerate(masks)}
    return masks, [where[mask] for mask in iter_numa_masks(nodes)]


def _sums(sizes: Sequence[int]) -> list[int]:
    """For each subset of positions the sum of its sizes."""
    sums = [0]
    for size in sizes:
        sums += [(total + size) & UINT64 for total in sums]
    return sums


def _subset(nodes: Sequence[int], mask: int) -> int:
    return sum(1 << position for position, node in enumerate(nodes) if mask >> node & 1)
