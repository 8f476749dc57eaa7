"""How much of what is free pods of the usual sizes could use, looked at now and then.

Free CPUs are no use to a pod that no node can give them to: they are on other NUMA nodes than its
policy allows, or threads of cores that somebody has.  So at some moments some nodes are asked what
they would answer if such pods came one after the other and nobody ended, until one is refused.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from math import inf
from typing import Final

from msgspec import Struct

from pinfold.admission.capacity import PODS, amounts
from pinfold.documents.simulation.results import Fit
from pinfold.planning.simulation.fleet.nodes import FleetNode
from pinfold.planning.simulation.fleet.shapes import PodShape

MOMENTS: Final = 24
"""Evenly apart, from the end of the warm-up to the end of the run."""
NODES: Final = 100
"""At most, drawn from the seed: the same ones at each moment, as far as the answers go."""
SIZES: Final = 5
"""At most, by the number of CPUs; of each the memory and devices that come most often."""
ANSWERS: Final = 1000
"""That have to be worked out at one moment; who comes later in the sample is not looked at."""


class Period(Struct, frozen=True):
    """When is looked: seconds from the first arrival."""

    first: float
    last: float


class Fitting:
    """Looks at a sample of the nodes at some moments.

    ``due`` is the next of these moments; infinite where there is none.

    Args:
        nodes: the fleet.
        shapes: the shape of each pod that comes, in their order.
        period: from when to when.
        seed: the sample is drawn from it.
    """

    def __init__(
        self, nodes: Sequence[FleetNode], shapes: Sequence[PodShape], period: Period, seed: int
    ) -> None:
        giving = [node for node in nodes if node.model.assignable]
        chance = random.Random(f"{seed}/fits")  # noqa: S311 - the same every time
        self._nodes = chance.sample(giving, min(NODES, len(giving)))
        self._shapes = _usual(shapes) if giving else {}
        span = period.last - period.first
        moments = [period.first + span * place / MOMENTS for place in range(1, MOMENTS)]
        looks = bool(self._shapes) and span > 0
        self._moments = iter([*moments, period.last] if looks else ())
        self.due = next(self._moments, inf)
        self._free = dict.fromkeys(self._shapes, 0)
        self._usable = dict.fromkeys(self._shapes, 0)

    def look_before(self, at: float) -> None:
        """Look at all moments before a time, at which all is as it is now."""
        while self.due < at:
            self._look()
            self.due = next(self._moments, inf)

    def found(self) -> tuple[Fit, ...]:
        """What was found of each size, the smallest first."""
        return tuple(
            Fit(cpus=cpus, free_cpus=self._free[cpus], usable_cpus=self._usable[cpus])
            for cpus in self._shapes
        )

    def _look(self) -> None:
        models = {id(node.model): node.model for node in self._nodes}.values()
        most = ANSWERS + sum(model.decided for model in models)
        for node in self._nodes:
            if sum(model.decided for model in models) >= most:
                break
            free = node.model.free_cpus(node.free)
            for cpus, shape in self._shapes.items():
                self._free[cpus] += free
                self._usable[cpus] += cpus * how_many(node, shape)


def how_many(node: FleetNode, shape: PodShape) -> int:
    """How many pods of a shape a node would let in now, one after the other; nothing is changed."""
    room = _room(node, shape)
    if not room:
        return 0
    node = node.copied()
    for place in range(room):
        outcome = node.model.answer(node, shape)
        if not outcome.admitted:
            return place
        # Numbers of pods are counted from 0.
        node.take(-1 - place, outcome)
    return room


def _room(node: FleetNode, shape: PodShape) -> int:
    """How many more pods of a shape the scheduler would send, by the sums of the node."""
    left = dict(node.model.allocatable())
    left[PODS] -= len(node.pods)
    for outcome in node.pods.values():
        for name, amount in amounts(outcome.shape.pod).items():
            left[name] = left.get(name, 0) - amount
    asks = {**amounts(shape.pod), PODS: 1}
    return min(left.get(name, 0) // amount for name, amount in asks.items() if amount)


def _usual(shapes: Sequence[PodShape]) -> dict[int, PodShape]:
    """The most frequent shapes of pods that own CPUs, one for each number of CPUs."""
    found: dict[int, PodShape] = {}
    often = Counter[int]()
    of_shape = Counter(shape for shape in shapes if shape.cpus)
    for shape, count in of_shape.most_common():
        found.setdefault(shape.cpus, shape)
        often[shape.cpus] += count
    return {cpus: found[cpus] for cpus in sorted(cpus for cpus, _ in often.most_common(SIZES))}
