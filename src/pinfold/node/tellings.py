"""What containers with exclusive CPUs are told: what they have, what is coming, and until when.

It is a function of the books and of what was told before, so that it may be done again at any time:
after a crash a container is told what the record says, and only what is new gets the next
generation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import Announce, Narrow, Widen
from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.observers import Observers
from pinfold.node.view import View, Whereabouts
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import PendingMove
from pinfold.ports.tellers import Assigned, Assignment, Teller

ADMISSION: Final = "admission"
OFFLINE: Final = "offline"
ONLINE: Final = "online"
UNDO: Final = "undo"

_SAME: Final = 1.0
"""Seconds by which a deadline may differ that is the same one, counted anew."""


class Pending(Struct, frozen=True):
    """What was announced to an owner and not taken yet; ``deadline`` seconds since the epoch."""

    coming: Assigned
    deadline: float


class Tellings:
    """Tells containers one by one.

    Args:
        teller: how.
        observers: their clocks.
    """

    def __init__(self, teller: Teller, observers: Observers) -> None:
        self._teller = teller
        self._observers = observers
        self._last: dict[ContainerKey, Assignment] = {}

    async def tell(
        self, view: View, pod: AdmittedPod, container: Container
    ) -> tuple[Assignment, str] | None:
        """Tell a container what holds for it; None for one without CPUs of its own.

        Returns:
            What it knows then, and the folder on the machine in which it is told.

        Raises:
            TellingError: it could not be told.
        """
        where = view.where(pod, container)
        if where.own is None:
            return None
        key = pod.key(container)
        last = self._last.get(key) or await self._teller.told(key)
        news = self._news(view, pod, container, where, last)
        if last is None or news != last or key not in self._last:
            # Known from the disk, it is written once more: some of it may be damaged.
            await self._teller.tell(key, news)
        self._last[key] = news
        return news, self._teller.folder(key)

    async def acknowledged(self, key: ContainerKey, generation: int) -> None:
        """See :meth:`pinfold.ports.tellers.Teller.acknowledged`."""
        await self._teller.acknowledged(key, generation)

    async def forget(self, pod_uid: str) -> None:
        """See :meth:`pinfold.ports.tellers.Teller.forget`."""
        for key in [one for one in self._last if one.pod_uid == pod_uid]:
            del self._last[key]
        await self._teller.forget(pod_uid)

    async def retain(self, pod_uids: Collection[str]) -> Sequence[str]:
        """See :meth:`pinfold.ports.tellers.Teller.retain`."""
        return await self._teller.retain(pod_uids)

    def _news(
        self,
        view: View,
        pod: AdmittedPod,
        container: Container,
        where: Whereabouts,
        last: Assignment | None,
    ) -> Assignment:
        owner = Owner(pod.uid, container.name)
        mems = where.mems if where.mems is not None else pod.record.memory_nodes(container.name)
        has = Assigned(
            CPUSet() if where.own is None else where.own - where.offline, mems or CPUSet()
        )
        move = view.move if view.move and owner in view.move.plan.start.placed else None
        if last is not None and move is not None and _is_being_widened(move, owner):
            return last  # what is coming follows at once
        pending = None if move is None else self._pending(move, owner, has, last)
        news = Assignment(
            generation=1 if last is None else last.generation + 1,
            current=has,
            coming=has if pending is None else pending.coming,
            previous=None,
            reason=ADMISSION if last is None else _reason(move, where, has, last),
            deadline=None if pending is None else pending.deadline,
        )
        if last is None:
            return news
        is_settled = last.coming == last.current
        if is_settled and news.coming != last.coming:
            news = replace(news, previous=last.current)
        else:
            news = replace(news, previous=last.previous)
        return last if _says_the_same(news, last) else news

    def _pending(
        self, move: PendingMove, owner: Owner, has: Assigned, last: Assignment | None
    ) -> Pending | None:
        coming = move.holds.coming.get(owner)
        if coming is None or coming == move.holds.placed[owner]:
            return None
        end = move.plan.end.mems.get(owner)
        announced = Assigned(coming, has.mems if end is None else end)
        now = self._observers.clock()
        left = move.seconds_left(owner, self._observers.uptime(), self._observers.boot)
        deadline = now + left
        if last is not None and last.coming == announced and last.deadline is not None and not left:
            deadline = last.deadline  # it is over
        return Pending(announced, deadline)


def _is_being_widened(move: PendingMove, owner: Owner) -> bool:
    """Whether it has new CPUs, and the next step for it is to tell it what becomes of that."""
    made = [
        step
        for step in move.plan.steps[: move.made]
        if isinstance(step, Widen | Announce | Narrow) and step.owner == owner
    ]
    left = (
        step
        for step in move.plan.steps[move.made :]
        if isinstance(step, Widen | Announce | Narrow) and step.owner == owner
    )
    return bool(made) and isinstance(made[-1], Widen) and isinstance(next(left, None), Announce)


def _reason(move: PendingMove | None, where: Whereabouts, has: Assigned, last: Assignment) -> str:
    if move is not None:
        return UNDO if move.plan.back else move.why
    if has == last.coming:
        return last.reason
    if where.offline:
        return OFFLINE
    return ONLINE if last.reason == OFFLINE else last.reason


def _says_the_same(news: Assignment, last: Assignment) -> bool:
    """Whether there is nothing new; a deadline is counted from clocks that are read twice."""
    if (news.current, news.coming) != (last.current, last.coming):
        return False
    if news.deadline is None or last.deadline is None:
        return news.deadline is last.deadline
    return abs(news.deadline - last.deadline) < _SAME
