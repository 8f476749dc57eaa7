"""Workloads of the hint merge: every mask of 8 and 16 nodes, and a 36-node machine.

On all of them the providers agree on no preferred mask, so the whole merge has to be done; the
kubelet would try ``255**4``, ``65535**4`` and about ``2 * 10**13`` combinations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Final

from pinfold.core.topology_manager.hints import NUMAInfo, TopologyHint, iter_numa_masks
from pinfold.core.topology_manager.merge import merge_hints

Workload = Callable[[], Callable[[], object]]


def _all_masks(nodes: int, providers: int) -> Callable[[], object]:
    """Every provider hints every mask; provider ``p`` prefers the masks of ``p + 1`` nodes."""
    masks = list(iter_numa_masks(range(nodes)))
    resources = [
        [TopologyHint(mask, mask.bit_count() == size) for mask in masks]
        for size in range(1, providers + 1)
    ]
    numa = NUMAInfo(tuple(range(nodes)))
    return lambda: merge_hints(resources, numa)


def _fitting(nodes: Iterable[int], least: int, most: int) -> list[TopologyHint]:
    """Hints of a resource that needs ``least`` of ``nodes``: those, and wider ones to ``most``."""
    return [
        TopologyHint(sum(1 << node for node in chosen), size == least)
        for size in range(least, most + 1)
        for chosen in combinations(nodes, size)
    ]


def _real_36() -> Callable[[], object]:
    """Two containers on a machine of 36 nodes, closest nodes preferred.

    CPUs need 2 nodes, hugepages 3, memory 1 (up to 3 nodes are hinted, then the whole machine);
    the second container also asks for a network function, of which every node has one.
    """
    numa = NUMAInfo(
        tuple(range(36)),
        {
            i: [10 if i == j else 12 if i // 9 == j // 9 else 32 for j in range(36)]
            for i in range(36)
        },
    )
    everywhere = TopologyHint(numa.mask, preferred=False)
    resources = [
        [*_fitting(range(36), 2, 3), everywhere],
        [*_fitting(range(36), 3, 3), everywhere],
        [*_fitting(range(36), 1, 3), everywhere],
    ]
    with_device = [*resources, _fitting(range(36), 1, 1)]
    return lambda: [
        merge_hints(wanted, numa, prefer_closest=True) for wanted in (resources, with_device)
    ]


WORKLOADS: Final[dict[str, Workload]] = {
    "merge.8x4": lambda: _all_masks(8, 4),
    "merge.16x4": lambda: _all_masks(16, 4),
    "merge.36-real": _real_36,
}
