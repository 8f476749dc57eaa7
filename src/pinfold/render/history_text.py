"""The history of a node as text: one line an entry, the newest last."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

import msgspec

from pinfold.documents.api import HistoryEntry
from pinfold.documents.explanation import Ended, Explanation
from pinfold.documents.history import (
    CacheGiven,
    Controlled,
    Displaced,
    Drifted,
    InterruptsKeptOff,
    QuotaChanged,
    Resized,
    SchedulingDomain,
    Started,
    StaysShared,
    TakenBack,
)
from pinfold.documents.move_plan import MovePlan
from pinfold.render.move_words import moving, owner_name

_T = TypeVar("_T")


def render_history(entries: Sequence[HistoryEntry]) -> str:
    """The entries, of which the newest is the first, with times of this place."""
    kinds = max((len(one.kind) for one in entries), default=0)
    return "\n".join(_line(one, kinds) for one in reversed(entries))


def _line(entry: HistoryEntry, kinds: int) -> str:
    at = datetime.fromtimestamp(entry.at).astimezone().isoformat(" ", "seconds")
    return f"{at}  {entry.kind:{kinds}}  {entry.pod or 'node'}  {history_words(entry)}".rstrip()


def history_words(entry: HistoryEntry) -> str:
    """What an entry says beside its time, its kind and its pod, in one line; may be empty."""
    return "; ".join(filter(None, _words(entry)))


def _words(entry: HistoryEntry) -> Iterator[str]:
    for form, words in _FORMS:
        if entry.kind in form and entry.document is not None:
            kind, tell = words
            try:
                yield from tell(msgspec.convert(entry.document, kind))
            except msgspec.ValidationError:
                continue  # one of another agent's, or the other form of this kind
            return


def _decision(told: Explanation) -> Iterator[str]:
    if not told.admitted:
        yield f"{told.reason}: {told.message}"
    if not told.admitted:
        return
    bubble, pool = told.bubble or None, "shared pool"
    if bubble is not None and bubble.cpus:
        shared = bubble.pool and f", pod shared pool {bubble.pool}"
        yield f"bubble {bubble.cpus}{shared}"
        pool = "shares in the bubble"
    for one in told.containers:
        yield f"{one.name}: {f'CPUs {one.cpus}' if one.cpus else pool}"


def _ended(told: Ended) -> Iterator[str]:
    yield ": ".join(filter(None, (told.reason or told.phase, told.message)))


def _drifted(told: Drifted) -> Iterator[str]:
    who = told.container or "the shared pool"
    outcome = "repaired" if told.repaired else f"not repaired: {told.problem}"
    yield f"{who} should have {told.expected}, has {told.found}"
    yield outcome


def _started(told: Started) -> Iterator[str]:
    yield told.start


def _displaced(told: Displaced) -> Iterator[str]:
    where = {"shared": "in the shared pool", "own": "on its own CPUs"}.get(told.place, told.place)
    yield f"{told.container}: {where}"
    if told.offline:
        yield f"CPUs {told.offline} offline"
    yield told.problem


def _controlled(told: Controlled) -> Iterator[str]:
    yield f"{told.rank}: {told.why}"
    yield told.problem
    if told.unsaid:
        yield f"{told.unsaid} more like it before"


def _taken_back(told: TakenBack) -> Iterator[str]:
    if told.cpus:
        yield f"lent CPUs {told.cpus}"
    if told.uncapped:
        yield "the cap of best-effort containers"
    yield told.why


def _resized(told: Resized) -> Iterator[str]:
    if told.reason is not None:
        yield f"{told.container} to {told.cpus} CPUs: {told.reason}: {told.message}"
    else:
        yield f"{told.container}: CPUs {told.before or 'shared'} -> {told.after or 'shared'}"


def _domain(told: SchedulingDomain) -> Iterator[str]:
    yield f"{told.container}: partition {told.wished} of CPUs {told.cpus}"
    yield f"not in force: {told.problem}" if told.problem else f"in force: {told.found}"


def _interrupts(told: InterruptsKeptOff) -> Iterator[str]:
    yield f"{told.kept} are kept off CPUs {told.cpus}, on {told.others}"
    if told.moved:
        yield f"moved: {', '.join(told.moved)}"
    if told.contested:
        yield f"moved again: {', '.join(told.contested)}"


def _stays_shared(told: StaysShared) -> Iterator[str]:
    yield f"{told.container}: {told.problem}"


def _quota(told: QuotaChanged) -> Iterator[str]:
    hard = ", ".join(f"{name} {most}" for name, most in told.hard.items())
    yield f"{told.quota} {told.change} ({told.source}){f': {hard}' if hard else ''}"
    if told.exceeded:
        yield f"more is in use already of {', '.join(told.exceeded)}"


def _cache(told: CacheGiven) -> Iterator[str]:
    if told.reason is not None:
        yield f"{told.container}: {told.reason}: {told.message}"
    else:
        yield f"{told.container}: {told.schemata or 'what all others have'}"


def _moved(told: MovePlan) -> Iterator[str]:
    yield told.why
    for one in moving(told):
        yield f"{owner_name(one)}: CPUs {one.before or 'shared'} -> {one.after or 'shared'}"
    if told.problem:
        yield told.problem


def _row(
    form: type[_T], tell: Callable[[_T], Iterator[str]]
) -> tuple[type[Any], Callable[..., Iterator[str]]]:
    return form, tell


_FORMS: Final = (
    (("admitted", "rejected", "adopted"), _row(Explanation, _decision)),
    (("ended",), _row(Ended, _ended)),
    (("drifted", "repaired"), _row(Drifted, _drifted)),
    (("repaired", "configured"), _row(Started, _started)),
    (("displaced", "returned"), _row(Displaced, _displaced)),
    (("controlled",), _row(Controlled, _controlled)),
    (("taken-back",), _row(TakenBack, _taken_back)),
    (("resized", "infeasible"), _row(Resized, _resized)),
    (("domain",), _row(SchedulingDomain, _domain)),
    (("interrupts",), _row(InterruptsKeptOff, _interrupts)),
    (("stays-shared",), _row(StaysShared, _stays_shared)),
    (("quota",), _row(QuotaChanged, _quota)),
    (("cache",), _row(CacheGiven, _cache)),
    (("moved", "undone"), _row(MovePlan, _moved)),
)
"""Which kinds have which document, and what it says."""

_PLAIN: Final = ("released", "ended")
"""Kinds whose document is empty."""
KINDS: Final = (*dict.fromkeys((*(kind for kinds, _ in _FORMS for kind in kinds), *_PLAIN)),)
"""Every kind of an entry."""
