"""What the entries of a history say of each pod: who had which CPUs, and until when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.api import HistoryEntry
from pinfold.documents.explanation import Explanation
from pinfold.documents.move_plan import MovePlan

DECISIONS: Final = ("admitted", "rejected", "adopted")
ENDS: Final = ("ended", "released")

Key: TypeAlias = str | None
"""The name of a container; None for a pod as a whole."""

_T = TypeVar("_T")


class Had(Struct, frozen=True):
    """What an owner had: CPUs of its own, or none of its own.

    ``idle`` is whether their siblings stayed idle; None where that is not told.
    """

    cpus: CPUSet
    idle: bool | None = None


class Life:
    """What the entries say of one pod, the oldest first; a manifest may give its uid again."""

    def __init__(self) -> None:
        self.entries: list[HistoryEntry] = []
        self._plans: dict[int, MovePlan] = {}
        self._decisions: dict[int, Explanation] = {}

    def add(self, entry: HistoryEntry, told: MovePlan | Explanation | None) -> None:
        """The next entry, and what its document is."""
        self.entries.append(entry)
        if isinstance(told, MovePlan):
            self._plans[entry.number] = told
        elif told is not None:
            self._decisions[entry.number] = told

    @property
    def is_complete(self) -> bool:
        """Whether its decision is among the entries."""
        return any(one.kind in DECISIONS for one in self.entries)

    @property
    def end(self) -> HistoryEntry | None:
        """When it gave back what it had."""
        return next((one for one in self.entries if one.kind in ENDS), None)

    @property
    def is_over(self) -> bool:
        """Whether a decision that comes now is about another pod of the same uid."""
        return self.end is not None or {one.kind for one in self.entries} == {"rejected"}

    def decided(self, at: float) -> Explanation | None:
        """The newest decision about it until then, one that admitted it before any other.

        A kubelet's containers come one by one, and one of them may be refused.
        """
        told = [
            self._decisions[one.number]
            for one in reversed(self.entries)
            if one.at <= at and one.number in self._decisions
        ]
        return next((one for one in told if one.admitted), told[0] if told else None)

    def changes_after(self, at: float) -> bool:
        """Whether what it has is told anew later."""
        return any(
            one.at > at and (one.number in self._plans or one.number in self._decisions)
            for one in self.entries
        )

    def names(self, container: str) -> bool:
        """Whether any decision is about such a container."""
        return any(
            one.name == container for told in self._decisions.values() for one in told.containers
        )

    def had(self, uid: str, key: Key, at: float) -> Had | None:
        """What an owner had; None where they say nothing.

        It is what the newest entry until then says, else what the next one says that was before.
        """
        until: Had | None = None
        for entry in self.entries:
            before, after = self._mention(entry.number, uid, key)
            if entry.at <= at:
                until = until if after is None else after
            elif until is None and before is not None:
                return before
            elif until is None and after is not None:
                # It came with this decision, or was there before the first entry.
                return None if self.decided(at) else after
        return until

    def _mention(self, number: int, uid: str, key: Key) -> tuple[Had | None, Had | None]:
        """What an entry says that an owner had before it, and had from then on."""
        if plan := self._plans.get(number):
            for owner in plan.owners:
                if (owner.uid, owner.container) == (uid, key):
                    return Had(CPUSet.parse(owner.before)), Had(CPUSet.parse(owner.after))
        elif found := self._decisions.get(number):
            if key is None:
                return None, Had(CPUSet.parse(found.bubble.cpus)) if found.bubble else None
            for one in found.containers:
                if one.name == key:
                    return None, Had(CPUSet.parse(one.cpus or ""), bool(one.idle))
        return None, None


def lives_of(entries: Iterable[HistoryEntry]) -> tuple[dict[str, list[Life]], int]:
    """The lives of each uid, one after the other; and how many entries nobody can read.

    Args:
        entries: the oldest first.
    """
    lives: dict[str, list[Life]] = {}
    unread = 0
    for entry in entries:
        told: MovePlan | Explanation | None = None
        uids = [] if entry.pod_uid is None else [entry.pod_uid]
        if entry.kind == "moved":
            told = _read(entry, MovePlan)
            uids = [] if told is None else list(dict.fromkeys(one.uid for one in told.owners))
            unread += told is None
        elif entry.kind in DECISIONS:
            told = _read(entry, Explanation)
            unread += told is None
        elif entry.kind == "resized":
            # Of a kubelet's container that was decided about again; else the moves tell it.
            told = _read(entry, Explanation)
        for uid in uids:
            known = lives.setdefault(uid, [Life()])
            if entry.kind in DECISIONS and known[-1].is_over:
                known.append(Life())
            known[-1].add(entry, told)
    return lives, unread


def _read(entry: HistoryEntry, form: type[_T]) -> _T | None:
    try:
        return msgspec.convert(entry.document, form)
    except msgspec.ValidationError:
        return None
