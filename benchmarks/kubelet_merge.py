"""The merges of which the kubelet's own figures are known, for the ratios.

Every provider offers every mask and prefers single nodes, or the lists are short ones by chance;
the policy is best-effort.  Of the short lists the whole merge is measured, with what providers said
turned into lists of hints (upstream ``filterProvidersHints``), as it was of the kubelet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from pinfold.core.topology_manager.hints import NUMAInfo, TopologyHint, iter_numa_masks
from pinfold.core.topology_manager.manager import TopologyManager
from pinfold.core.topology_manager.merge import merge_hints
from pinfold.core.topology_manager.policy import Policy, Scope

_LISTS: Final = 200
_PREFERRED: Final = 0.2


def _every_mask(nodes: int, providers: int) -> Callable[[], object]:
    hints = [TopologyHint(mask, mask.bit_count() == 1) for mask in iter_numa_masks(range(nodes))]
    resources = [list(hints) for _ in range(providers)]
    numa = NUMAInfo(tuple(range(nodes)))
    return lambda: merge_hints(resources, numa)


def _short_lists(nodes: int, providers: int, most: int) -> Callable[[], object]:
    """Each provider offers 1 to ``most`` masks; about 500 combinations on average."""
    random = Random(f"{nodes}x{providers}")  # noqa: S311 - the same every time
    masks = list(iter_numa_masks(range(nodes)))

    def hints() -> list[TopologyHint]:
        chosen = random.sample(masks, random.randint(1, most))
        return [TopologyHint(mask, random.random() < _PREFERRED) for mask in chosen]

    questions = [
        [{f"resource-{number}": hints()} for number in range(providers)] for _ in range(_LISTS)
    ]
    manager = TopologyManager(Policy.BEST_EFFORT, Scope.CONTAINER, NUMAInfo(tuple(range(nodes))))
    turn = 0

    def work() -> object:
        nonlocal turn
        turn = (turn + 1) % _LISTS
        return manager.merge(questions[turn])

    return work


WORKLOADS: Final = {
    f"merge.{nodes}x{providers}.single": partial(_every_mask, nodes, providers)
    for nodes, providers in ((4, 2), (4, 4), (6, 3), (8, 1), (8, 2), (8, 3), (8, 4))
} | {
    "merge.4x3.short": partial(_short_lists, 4, 3, 15),
    "merge.8x2.short": partial(_short_lists, 8, 2, 43),
}
