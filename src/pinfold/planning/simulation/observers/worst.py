"""The worst decisions of a run, with the reasons that ``pinfold explain`` gives.

A decision is bad where a kubelet refused a pod although enough CPUs were free on the node, and the
worse, the more were left over; or where it let one in on more NUMA nodes, sockets, caches or cores
than so many CPUs need, and the worse, the more of them, and then, the more CPUs were free.

Of one kind (each reason of refusal, and each of these four) and one size of pods (so much cpu, so
many devices) only the worst is kept, of equals the first.  Of these the kinds have their turn one
after the other, each with its worst, so that a table does not tell the same twenty times.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from pinfold.admission.admission import decide
from pinfold.core.pod.pod import CPU, Pod
from pinfold.documents.explanation import Explanation
from pinfold.documents.simulation.results import WorstDecision
from pinfold.planning.explaining.decision import explain_decision
from pinfold.planning.explaining.document import explain_document
from pinfold.planning.simulation.fleet.answer import BEYOND, Answer
from pinfold.planning.simulation.fleet.nodes import FleetNode, RefusedBy
from pinfold.planning.simulation.fleet.shapes import PodShape
from pinfold.planning.simulation.observers.observer import Observer
from pinfold.planning.wants import describe_left

MOST: Final = 20
"""So many are told of a run."""

_GROUPS: Final = dict(zip(BEYOND, ("NUMA node", "socket", "cache", "core"), strict=True))
_Rank = tuple[int, int]
_Size = tuple[int, tuple[tuple[str, int], ...]]
_Key = tuple[str, _Size]


class _Kept(Struct, frozen=True):
    """A decision, and the node as it was before it."""

    rank: _Rank
    at: float
    pod: int
    node: FleetNode
    answer: Answer


class WorstDecisions(Observer):
    """Keeps the worst decisions while a run goes on.

    Args:
        since: seconds from the first arrival; what was decided earlier is passed over.
    """

    def __init__(self, since: float = 0.0) -> None:
        self._since = since
        self._kept: dict[_Key, _Kept] = {}

    def placed(self, at: float, pod: int, attempt: int, node: FleetNode, answer: Answer) -> None:
        """A node has let a pod in."""
        del attempt
        if not answer.is_spread or at < self._since:
            return
        level = next(place for place, more in enumerate(answer.beyond) if more)
        rank = answer.beyond[level], node.model.free_cpus(node.free | answer.claim)
        key = BEYOND[level], _size(answer.shape)
        if self._is_worse(key, rank):
            before = node.copied()
            before.give(pod)
            self._kept[key] = _Kept(rank, at, pod, before, answer)

    def refused(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        """Only what a kubelet refuses is a decision."""
        del attempt
        if by is None or at < self._since:
            return
        node, answer = by
        left = node.model.free_cpus(node.free) - _asked(shape)
        key, rank = (answer.reason, _size(shape)), (left, 0)
        if left >= 0 and self._is_worse(key, rank):
            self._kept[key] = _Kept(rank, at, pod, node.copied(), answer)

    def found(self, most: int = MOST) -> tuple[WorstDecision, ...]:
        """The worst ones, refusals first, each decided and explained anew."""
        kinds: dict[str, list[_Kept]] = {}
        for (kind, _), kept in sorted(self._kept.items(), key=_order):
            kinds.setdefault(kind, []).append(kept)
        turns = (
            (kind, kept)
            for turn in zip_longest(*kinds.values())
            for kind, kept in zip(kinds, turn, strict=True)
            if kept is not None
        )
        chosen = list(islice(turns, most))
        return tuple(_told(kind, kept) for kind in kinds for of, kept in chosen if of == kind)

    def _is_worse(self, key: _Key, rank: _Rank) -> bool:
        known = self._kept.get(key)
        return known is None or rank > known.rank


def _order(item: tuple[_Key, _Kept]) -> tuple[object, ...]:
    """Refusals by reason, then the others in their order; in each the worst first."""
    (kind, _), kept = item
    place = BEYOND.index(kind) if kind in BEYOND else -1
    return place, kind, tuple(-one for one in kept.rank), kept.at, kept.pod


def _size(shape: PodShape) -> _Size:
    return shape.size.cpu_milli, shape.size.extended


def _asked(shape: PodShape) -> int:
    return -(-shape.size.cpu_milli // 1000)


def _told(kind: str, kept: _Kept) -> WorstDecision:
    answer, node = kept.answer, kept.node
    asked, free = _asked(answer.shape), node.model.free_cpus(node.free)
    if answer.admitted:
        more, group = kept.rank[0], _GROUPS[kind]
        why = f"on {more} more {group}{'s' * (more > 1)} than {asked} CPU{'s' * (asked > 1)} need"
        why += "s" * (asked == 1)
    else:
        why = f"refused although {free} CPU{'s were' if free != 1 else ' was'} free"
    return WorstDecision(
        at=kept.at,
        node=node.name,
        pod=pod_name(kept.pod),
        cpus=asked,
        admitted=answer.admitted,
        reason=answer.reason or None,
        free_cpus=free,
        why_here=why,
        explanation=list(_explained(node, kept.pod, answer.shape)),
    )


def pod_name(pod: int) -> str:
    """What the pod with this number is called where it is spoken of."""
    return f"pod-{pod}"


def _named(shape: PodShape, pod: int) -> Pod:
    return replace(shape.pod, uid=str(pod), name=pod_name(pod))


def _explained(node: FleetNode, pod: int, shape: PodShape) -> Iterator[str]:
    planner, state = node.model.planner, node.state()
    decision = decide(planner.node, state, _named(shape, pod))
    running = [_named(answer.shape, other) for other, answer in node.pods.items()]
    explanation = explain_decision(planner, state, decision, pods=running)
    told = explain_document(planner, explanation)
    yield from (one.constraint for one in told.containers)
    if decision.admitted:
        left = describe_left(planner.view, planner.node, state, (CPU, shape.cpus))
        yield f"cpu: {left}" if left else ""
    yield from (f"CPUs {one.cpus}" for one in told.containers if one.cpus)
    yield from (f"what would admit it: {remedy}" for remedy in told.remedies)
    yield from _moves(told)


def _moves(told: Explanation) -> Iterator[str]:
    if told.moves is UNSET:
        return
    price = told.moves.price
    yield (
        f"what would admit it: {price.owners} other container{'s' * (price.owners != 1)} on other "
        f"CPUs, {price.cpus} of them new to them"
    )
    yield from told.moves.notes or ()
