"""The life of a node as plain data: how full it was all the time, and its map at some moments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from msgspec import Struct

from pinfold.render.node_map import NodeMap

_DAY: Final = 86_400
_HOUR: Final = 3_600


class Moment(Struct, frozen=True):
    """The node at one moment.

    Attributes:
        at: seconds from the first arrival.
        title: why it is shown.
        since: what happened since the moment before, in a line.
        facts: what there is to see, a line each.
        node_map: who has which CPUs then.
    """

    at: float
    title: str
    since: str
    facts: tuple[str, ...]
    node_map: NodeMap


class LifeView(Struct, frozen=True):
    """All of it.

    Attributes:
        name: of the node.
        title: the node, and of which run.
        subtitle: the machine and its policies.
        until: seconds of the run.
        cpus: how many CPUs containers may own, or request.
        measured: what of them is used up: ``owned`` or ``requested``.
        used: from when on how many of them were, in the order of time.
        refusals: when the node refused a pod.
        moments: in the order of time.
    """

    name: str
    title: str
    subtitle: str
    until: float
    cpus: float
    measured: str
    used: tuple[tuple[float, float], ...]
    refusals: tuple[float, ...]
    moments: tuple[Moment, ...]


def shares(view: LifeView, columns: int) -> list[float]:
    """How much of the CPUs was used, as a mean over each of so many equal spans of time."""
    sums = [0.0] * columns
    width = view.until / columns or 1.0
    ends = chain(view.used, [(view.until, 0)])
    for (start, count), (end, _) in pairwise(ends):
        for column in range(int(start / width), min(int(end / width), columns - 1) + 1):
            low, high = max(start, column * width), min(end, (column + 1) * width)
            sums[column] += max(high - low, 0.0) * count
    return [min(one / (width * (view.cpus or 1)), 1.0) for one in sums]


def columns_of(times: Sequence[float], view: LifeView, columns: int) -> Iterator[int]:
    """In which of so many equal spans of the run each time is."""
    for at in times:
        yield min(int(at / (view.until or 1.0) * columns), columns - 1)


def clock(seconds: float) -> str:
    """A time of a run in words: ``3 d 04:05:06``; parts of a second are left out."""
    whole = int(seconds)
    days, rest = divmod(whole, _DAY)
    hours, rest = divmod(rest, _HOUR)
    text = f"{hours:02}:{rest // 60:02}:{rest % 60:02}"
    return f"{days} d {text}" if days else text
