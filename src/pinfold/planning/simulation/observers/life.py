"""The life of one node in a run: all that happened to it, and how it was at chosen moments.

A run is the same every time, so it is made once more with somebody who watches the node.  What
happened is kept, and the node at any moment is put together from that.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from pinfold.documents.simulation.results import Run
from pinfold.planning.simulation.engine import simulate
from pinfold.planning.simulation.experiment.specification import FleetKind, RunSpec
from pinfold.planning.simulation.fleet.answer import BEYOND, Answer
from pinfold.planning.simulation.fleet.moving import Moves, Why
from pinfold.planning.simulation.fleet.nodes import FleetNode, RefusedBy
from pinfold.planning.simulation.fleet.shapes import PodShape
from pinfold.planning.simulation.observers.observer import Observer

What: TypeAlias = Literal["came", "refused", "ended", "moved"]

_SHOWN_KINDS: Final = 8
_SHOWN: Final = 80


class UnknownNodeError(LookupError):
    """No node of the fleet is called that; the message says which there are."""


class NoMomentError(ValueError):
    """A moment that a run has not; the message says how long it lasts."""


class Event(Struct, frozen=True):
    """Something that happened to the node.

    Attributes:
        at: seconds from the first arrival.
        what: ``moved`` is of one pod; a plan of several is as many events.
        pod: its number.
        answer: what it was given, or the refusal; of one that moved where it is then.
        why: what had it moved.
    """

    at: float
    what: What
    pod: int
    answer: Answer
    why: Why | None = None


class Between(Struct, frozen=True):
    """What happened from one picture to the next; ``last`` is what is to be seen there."""

    came: int = 0
    came_cpus: int = 0
    ended: int = 0
    refused: Mapping[str, int] = {}
    moved: int = 0
    last: Event | None = None


class Picture(Struct, frozen=True):
    """The node at one moment.

    Attributes:
        at: seconds from the first arrival.
        why: what there is to see, in words.
        before: what happened since the picture before this one.
        pods: number of the pod -> what it has.
    """

    at: float
    why: tuple[str, ...]
    before: Between
    pods: Mapping[int, Answer]


class Life(Struct, frozen=True):
    """The life of a node.

    Attributes:
        run: which it was a part of.
        node: as it is at the end of the run.
        events: all that happened to it.
        pictures: in the order of time.
    """

    run: Run
    node: FleetNode
    events: tuple[Event, ...]
    pictures: tuple[Picture, ...]


class _Watching(Observer):
    """Keeps what happens to one node."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.events: list[Event] = []

    def placed(self, at: float, pod: int, attempt: int, node: FleetNode, answer: Answer) -> None:
        """It let a pod in."""
        del attempt
        if node.number == self._number:
            self.events.append(Event(at, "came", pod, answer))

    def refused(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        """It refused a pod."""
        del attempt, shape
        if by is not None and by[0].number == self._number:
            self.events.append(Event(at, "refused", pod, by[1]))

    def ended(self, at: float, pod: int, node: FleetNode, answer: Answer) -> None:
        """A pod of it ended."""
        if node.number == self._number:
            self.events.append(Event(at, "ended", pod, answer))

    def moved(self, moves: Moves) -> None:
        """It moved pods."""
        if moves.node.number == self._number:
            self.events += (
                Event(moves.at, "moved", one.pod, one.after, moves.why) for one in moves.moved
            )


def life_of(spec: RunSpec, name: str, moments: Sequence[float] = ()) -> Life:
    """Make a run, and watch one node of it.

    Args:
        spec: the run.
        name: of the node, such as ``node-3``.
        moments: seconds from the first arrival, of which there are pictures; none: chosen ones,
            of the first refusal, the first moves, when most containers were spread, when it was
            fullest, and of the end.

    Raises:
        UnknownNodeError: no node is called that.
        NoMomentError: the run is over by then.
        NodeError: as :func:`~.engine.simulate`.
        MachineError: as there.
        TraceError: as there.
    """
    number = node_number(spec.kinds, name)
    watching = _Watching(number)
    done = simulate(spec, (watching,), worst=0)
    events, until = tuple(watching.events), done.run.until
    if late := [at for at in moments if at > until]:
        raise NoMomentError(
            f"the run is over after {until:g} seconds of its time; ask for a moment before that, "
            f"and not for {late[0]:g}"
        )
    places = _asked_for(events, moments) if moments else _chosen(events, until)
    return Life(done.run, done.nodes[number], events, tuple(_pictures(events, places)))


def node_number(kinds: Sequence[FleetKind], name: str) -> int:
    """The number of a node in the fleet.

    Raises:
        UnknownNodeError: no node is called that.
    """
    kind_name, _, place = name.rpartition("-")
    first = 0
    for kind in kinds:
        counts = place.isascii() and place.isdigit() and (place == "0" or place[0] != "0")
        if kind.name == kind_name and counts and int(place[:9]) < kind.count and len(place) < 9:
            return first + int(place)
        first += kind.count
    there = [
        f"{kind.name}-0 to {kind.name}-{kind.count - 1}" if kind.count > 1 else f"{kind.name}-0"
        for kind in kinds[:_SHOWN_KINDS]
    ]
    more = len(kinds) - len(there)
    told = ", ".join(there) + (f" and those of {more} more kinds" if more else "")
    raise UnknownNodeError(f"no node is called {name[:_SHOWN]!r}; there are {told}")


class _Place(Struct, frozen=True):
    """Where a picture is taken: after so many events."""

    count: int
    at: float
    why: str


class _Node:
    """The node while its events happen once more."""

    def __init__(self) -> None:
        self.pods: dict[int, Answer] = {}

    def have(self, event: Event) -> None:
        """Let it happen."""
        if event.what == "ended":
            del self.pods[event.pod]
        elif event.what != "refused":
            self.pods[event.pod] = event.answer

    @property
    def used(self) -> tuple[int, int]:
        """How many CPUs have an owner, and how many milli-CPUs are requested."""
        owned = sum(answer.claim.bit_count() for answer in self.pods.values())
        return owned, sum(answer.shape.size.cpu_milli for answer in self.pods.values())

    @property
    def spread(self) -> tuple[int, ...]:
        """How many groups of each kind the containers are on, beyond those that they need."""
        spreads = [answer.beyond for answer in self.pods.values()]
        return tuple(map(sum, zip(*spreads, strict=True))) or (0,)


def _asked_for(events: Sequence[Event], moments: Sequence[float]) -> Iterator[_Place]:
    times = [event.at for event in events]
    for at in sorted(set(moments)):
        yield _Place(bisect_right(times, at), at, "")


def _chosen(events: Sequence[Event], until: float) -> list[_Place]:
    found: dict[str, _Place] = {}
    node, most, widest = _Node(), (0, 0), (0,) * len(BEYOND)
    for count, event in enumerate(events, 1):
        node.have(event)
        here = partial(_Place, count, event.at)
        if event.what == "refused":
            found.setdefault("refused", here("the first refusal"))
        following = events[count] if count < len(events) else None
        if event.what == "moved" and (following is None or following.what != "moved"):
            found.setdefault("moved", here("the first moves"))
        if node.used > most:
            most = node.used
            found["fullest"] = here("the fullest")
        if node.spread > widest:
            widest = node.spread
            found["spread"] = here("the most spread")
    found["end"] = _Place(len(events), until, "the end of the run")
    return sorted(found.values(), key=lambda place: place.count)


def _pictures(events: Sequence[Event], places: Iterable[_Place]) -> Iterator[Picture]:
    node, seen = _Node(), 0
    for _, together in groupby(places, key=lambda place: (place.count, place.at)):
        some = list(together)
        place = some[-1]
        since = events[seen : place.count]
        for event in since:
            node.have(event)
        seen = place.count
        yield Picture(
            place.at,
            tuple(one.why for one in some if one.why),
            _between(since),
            dict(node.pods),
        )


def _between(events: Sequence[Event]) -> Between:
    came = [event.answer for event in events if event.what == "came"]
    refused = Counter(event.answer.reason for event in events if event.what == "refused")
    return Between(
        came=len(came),
        came_cpus=sum(answer.claim.bit_count() for answer in came),
        ended=sum(event.what == "ended" for event in events),
        refused=dict(sorted(refused.items())),
        moved=sum(event.what == "moved" for event in events),
        last=events[-1] if events else None,
    )
