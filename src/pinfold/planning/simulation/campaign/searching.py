"""The smallest fleet with which as many pods are let in, by bisection.

The share that is let in does not strictly rise with the number of nodes: another fleet has other
ties, and another order of events.  So what is found is a fleet that is large enough, beside one
that is smaller by the precision and is not; somewhere below there may be another one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from math import ceil, log2

from msgspec import Struct

from pinfold.documents.simulation.results import Run
from pinfold.planning.simulation.experiment.specification import FleetKind, scaled


class Aim(Struct, frozen=True):
    """What is looked for.

    Attributes:
        acceptance: the share of pods that is to be let in.
        most: times the nodes of the experiment, at most.
        precision: where the search stops, in times the nodes of the experiment.
    """

    acceptance: float
    most: float
    precision: float

    @property
    def steps(self) -> int:
        """How many fleets are tried about."""
        return max(1, ceil(log2(1 / self.precision)))


class Found(Struct, frozen=True):
    """What a search came to; ``factor`` is None where not even the most is enough."""

    factor: float | None
    tried: tuple[tuple[float, float], ...]


def acceptance(run: Run) -> float:
    """The share of the pods of a run that were let in; 1 where none came."""
    fates = run.fates
    return (fates.running + fates.ended) / fates.arrived if fates.arrived else 1.0


def counts(kinds: Sequence[FleetKind], factor: float) -> tuple[int, ...]:
    """How many nodes of each kind there are with a factor."""
    return tuple(kind.count for kind in scaled(kinds, factor))


def search(kinds: Sequence[FleetKind], aim: Aim) -> Generator[float, float, Found]:
    """Yields factors to be tried, and is sent which share of the pods each let in.

    No fleet is tried twice, and none is between the last two: the same fleet may have many factors.
    """
    tried: list[tuple[float, float]] = []
    low, high = 0.0, min(1.0, aim.most)
    while True:
        share = yield high
        tried.append((high, share))
        if share >= aim.acceptance:
            break
        if high >= aim.most:
            return Found(None, tuple(tried))
        low, high = high, min(2 * high, aim.most)
    best = high
    few, many = counts(kinds, low) if low else (), counts(kinds, high)
    while high - low > aim.precision:
        middle = (low + high) / 2
        between = counts(kinds, middle)
        if between == many:
            high = middle
        elif between == few:
            low = middle
        else:
            share = yield middle
            tried.append((middle, share))
            if share >= aim.acceptance:
                high = best = middle
                many = between
            else:
                low, few = middle, between
    return Found(best, tuple(tried))
