"""The merges of which the kubelet's own figures are known, for the ratios.

Each call is the whole of upstream's ``Policy.Merge`` under best-effort: what the providers said is
turned into lists of hints (``filterProvidersHints``), merged and judged.  The hints themselves are
made outside of the timing.

In ``single`` every provider offers every mask and prefers single nodes, so that they agree at once,
which suits us best; in ``disagree`` each prefers masks of another size, so that there is none that
all prefer; ``short`` are 200 short lists by chance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final

from pinfold.core.topology_manager.hints import (
    NUMAInfo,
    ResourceHints,
    TopologyHint,
    iter_numa_masks,
)
from pinfold.core.topology_manager.manager import TopologyManager
from pinfold.core.topology_manager.policy import Policy, Scope

_LISTS: Final = 200
_PREFERRED: Final = 0.2

Question = Sequence[ResourceHints]
"""What each provider said."""


def every_mask(nodes: int, sizes: Sequence[int]) -> Question:
    """Every provider offers every mask, and prefers those of its size."""
    masks = list(iter_numa_masks(range(nodes)))
    return [
        {f"resource-{number}": [TopologyHint(mask, mask.bit_count() == size) for mask in masks]}
        for number, size in enumerate(sizes)
    ]


def short_lists(nodes: int, providers: int, most: int) -> list[Question]:
    """Each provider offers 1 to ``most`` masks; about 500 combinations on average."""
    random = Random(f"{nodes}x{providers}")  # noqa: S311 - the same every time
    masks = list(iter_numa_masks(range(nodes)))

    def hints() -> list[TopologyHint]:
        chosen = random.sample(masks, random.randint(1, most))
        return [TopologyHint(mask, random.random() < _PREFERRED) for mask in chosen]

    return [[{f"resource-{number}": hints()} for number in range(providers)] for _ in range(_LISTS)]


def _merges(nodes: int, ask: Callable[[], Sequence[Question]]) -> Callable[[], object]:
    """A call merges what was said in one question, each in turn."""
    manager = TopologyManager(Policy.BEST_EFFORT, Scope.CONTAINER, NUMAInfo(tuple(range(nodes))))
    questions, turn = ask(), 0

    def work() -> object:
        nonlocal turn
        turn = (turn + 1) % len(questions)
        return manager.merge(questions[turn])

    return work


def _single(nodes: int, providers: int) -> Callable[[], object]:
    return _merges(nodes, lambda: [every_mask(nodes, [1] * providers)])


def _disagree(nodes: int, providers: int) -> Callable[[], object]:
    return _merges(nodes, lambda: [every_mask(nodes, range(1, providers + 1))])


def _short(nodes: int, providers: int, most: int) -> Callable[[], object]:
    return _merges(nodes, lambda: short_lists(nodes, providers, most))


WORKLOADS: Final[dict[str, Callable[[], Callable[[], object]]]] = {
    **{
        f"merge.{nodes}x{providers}.single": partial(_single, nodes, providers)
        for nodes, providers in ((4, 2), (4, 4), (6, 3), (8, 1), (8, 2), (8, 3), (8, 4))
    },
    **{
        f"merge.{nodes}x{providers}.disagree": partial(_disagree, nodes, providers)
        for nodes, providers in ((4, 4), (6, 3), (8, 2))
    },
    "merge.4x3.short": partial(_short, 4, 3, 15),
    "merge.8x2.short": partial(_short, 8, 2, 43),
}
