"""The scheduler of a simulation: a pod ends, another one is placed, in fleets of three sizes.

The nodes are filled to 70 % of their CPUs by the mix of sizes first, by the same scorer; then a
pod ends and another one comes, again and again.  What that costs must not grow with the fleet.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Final

from pinfold.planning.simulation.scheduling.node_index import Capacity, NodeIndex, Scorer, Want

NODES: Final = (1_000, 10_000, 100_000)
_GIB: Final = 2**30
_HAS: Final = Capacity(126_000, 508 * _GIB, (), 110)
_LOAD: Final = 0.7
_WHOLE: Final = tuple(
    Want.of(1000 * cpus, int(cpus * each * _GIB), ())
    for cpus in (1, 1, 1, 2, 2, 2, 4, 4, 8, 16)
    for each in (1.75, 3.5, 7)
)
_PARTS: Final = tuple(Want.of(770 * one.cpu // 1000 + 13, one.memory, ()) for one in _WHOLE)


def _steady(scorer: Scorer, wants: tuple[Want, ...], nodes: int) -> Callable[[], object]:
    chance = random.Random(1)  # noqa: S311 - the same every time
    index = NodeIndex([_HAS], [nodes], scorer, random.Random(2))  # noqa: S311 - as above
    placed: list[tuple[int, Want]] = []

    def come() -> int:
        want = wants[int(chance.random() * len(wants))]
        node = index.choose(want)
        if node is None:
            return 0
        index.take(node, want)
        placed.append((node, want))
        return want.cpu

    used = 0
    while used < _LOAD * nodes * _HAS.cpu:
        used += come()

    def change() -> None:
        going = int(chance.random() * len(placed))
        placed[going], placed[-1] = placed[-1], placed[going]
        index.give(*placed.pop())
        come()

    return change


_CASES: Final[tuple[tuple[str, Scorer, tuple[Want, ...]], ...]] = (
    ("least", "LeastAllocated", _WHOLE),
    ("most", "MostAllocated", _WHOLE),
    ("parts", "LeastAllocated", _PARTS),
)
"""``parts``: pods ask for parts of CPUs, so that nodes differ in thousands of uses."""

WORKLOADS: Final[dict[str, Callable[[], Callable[[], object]]]] = {
    f"schedule.{name}.{nodes}": partial(_steady, scorer, wants, nodes)
    for name, scorer, wants in _CASES
    for nodes in NODES
}
