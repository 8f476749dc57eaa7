"""What containers with exclusive CPUs are told: what they have, what is coming, and until when.

It is a function of the books and of what was told before, so that it may be done again at any time:
after a crash a container is told what the record says, and only what is new gets the next
generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import Announce, Narrow, Widen
from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.assignment import ADMISSION, OFFLINE, ONLINE
from pinfold.documents.move_plan import LOAD_DRIVEN, REBALANCE, RESIZE, UNDO
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.observers import Observers
from pinfold.node.view import View, Whereabouts
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import PendingMove
from pinfold.ports.tellers import Assigned, Assignment, Teller

_MOST_TOLD: Final = 1 << 16
"""How often a container is told something between two batches of the record, at most."""

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
        recorded: the uids of pods that an earlier agent has told, maybe.
        batches: how many batches the record had then, or more.
    """

    def __init__(
        self,
        teller: Teller,
        observers: Observers,
        recorded: Collection[str] = (),
        batches: int = 0,
    ) -> None:
        self._teller = teller
        self._observers = observers
        self._above = dict.fromkeys(recorded, batches * _MOST_TOLD)
        self._last: dict[ContainerKey, Assignment] = {}
        self._moved: dict[ContainerKey, str] = {}
        self._ahead: set[ContainerKey] = set()
        self._news = asyncio.Event()

    async def tell(self, view: View, pod: AdmittedPod, container: Container) -> str | None:
        """Tell a container what holds for it; None for one that never has CPUs of its own.

        What it was told and somebody has removed is told once more.

        Returns:
            The folder on the machine in which it is told.

        Raises:
            TellingError: it could not be told.
        """
        where = view.where(pod, container)
        if where.own is None and not pod.is_load_driven(container):
            return None
        key = pod.key(container)
        if key not in self._ahead:
            last = self._last.get(key)
            is_there = last is not None and self._teller.is_told(key)
            if last is None:
                # Known from the disk, it is written once more: some of it may be damaged.
                last = await self._teller.told(key)
            elif not is_there:
                problem = f"container {key}: what it was told was removed, and is told again"
                self._observers.report(pod.name, problem)
            news = self._made(view, pod, container, where, last)
            if news is not last or not is_there:
                await self._teller.tell(key, news)
                self._last[key] = news
                self._moved.pop(key, None)
                self._news.set()
                self._news = asyncio.Event()
        return self._teller.folder(key)

    def moved(self, move: PendingMove) -> None:
        """A plan is about to be over; who has not been told yet is told why."""
        for owner in move.plan.start.placed:
            self._moved[ContainerKey(*owner)] = _reason_of(move)

    def last(self, key: ContainerKey) -> Assignment | None:
        """What this agent has told a container last."""
        return self._last.get(key)

    @contextmanager
    def ahead(self, keys: Collection[ContainerKey]) -> Iterator[None]:
        """What was told to these is about to be so; meanwhile they are told nothing."""
        self._ahead.update(keys)
        try:
            yield
        finally:
            self._ahead.difference_update(keys)

    async def acknowledged(self, key: ContainerKey, coming: CPUSet) -> None:
        """Return once a container has acknowledged that it will have these CPUs.

        Its word for anything else counts for nothing, also where it could not be told these.

        Raises:
            TellingError: it cannot be heard.
        """
        while True:
            news, last = asyncio.create_task(self._news.wait()), self._last.get(key)
            heard = {news}
            if last is not None and last.coming != last.current and last.coming.cpus == coming:
                heard.add(asyncio.create_task(self._hear(key, last.generation)))
            try:
                done, _ = await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in heard:
                    task.cancel()
                await asyncio.gather(*heard, return_exceptions=True)
            if acknowledged := done - {news}:
                acknowledged.pop().result()
                return

    async def _hear(self, key: ContainerKey, generation: int) -> Literal[True]:
        await self._teller.acknowledged(key, generation)
        return True

    async def forget(self, pod_uid: str) -> None:
        """See :meth:`pinfold.ports.tellers.Teller.forget`."""
        try:
            await self._teller.forget(pod_uid)
        finally:
            # Now: another pod of that uid may have been told meanwhile.
            for key in [one for one in self._last if one.pod_uid == pod_uid]:
                del self._last[key]
                self._moved.pop(key, None)

    async def retain(self, pod_uids: Collection[str]) -> Sequence[str]:
        """See :meth:`pinfold.ports.tellers.Teller.retain`."""
        return await self._teller.retain(pod_uids)

    def _made(
        self,
        view: View,
        pod: AdmittedPod,
        container: Container,
        where: Whereabouts,
        last: Assignment | None,
    ) -> Assignment:
        owner = Owner(pod.uid, container.name)
        has = assigned_now(view, pod, container)
        move = view.move if view.move and owner in view.move.plan.start.placed else None
        if last is not None and move is not None and _is_told_next(move, owner):
            return last  # what is coming follows at once
        pending = None if move is None else self._pending(move, owner, has, last)
        news = Assignment(
            generation=1 + (self._above.get(pod.uid, 0) if last is None else last.generation),
            current=has,
            coming=has if pending is None else pending.coming,
            previous=None,
            reason=self._why(pod.key(container), move, where, has, last),
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

    def _why(
        self,
        key: ContainerKey,
        move: PendingMove | None,
        where: Whereabouts,
        has: Assigned,
        last: Assignment | None,
    ) -> str:
        if last is None:
            return ADMISSION
        if move is not None:
            return _reason_of(move)
        if has != last.coming and (reason := self._moved.get(key)) is not None:
            return reason
        return _reason(where, has, last)

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


def assigned_now(view: View, pod: AdmittedPod, container: Container) -> Assigned:
    """The exclusive CPUs and the NUMA nodes that a container has at this moment."""
    where = view.where(pod, container)
    if where.own is None:
        return Assigned()
    return Assigned(where.own - where.offline, where.mems or CPUSet())


def _reason_of(move: PendingMove) -> str:
    return UNDO if move.plan.back else move.why


def _is_told_next(move: PendingMove, owner: Owner) -> bool:
    """Whether what is next is to tell it what is coming: at once, or now that it has new CPUs."""
    at_once = takewhile(lambda step: isinstance(step, Announce), move.plan.steps[move.made :])
    if any(isinstance(step, Announce) and step.owner == owner for step in at_once):
        return True
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


def _reason(where: Whereabouts, has: Assigned, last: Assignment) -> str:
    """Why a container has something else, where no plan of moves says it."""
    if has == last.coming:
        return last.reason
    if where.offline:
        return OFFLINE
    if has == last.current:
        return UNDO  # what was announced is not to be
    if last.reason == OFFLINE:
        return ONLINE
    # It was moved, and nobody remembers why.
    if not (has.cpus and last.coming.cpus):
        return LOAD_DRIVEN
    return RESIZE if len(has.cpus) != len(last.coming.cpus) else REBALANCE


def _says_the_same(news: Assignment, last: Assignment) -> bool:
    """Whether there is nothing new; a deadline is counted from clocks that are read twice."""
    if (news.current, news.coming) != (last.current, last.coming):
        return False
    if news.deadline is None or last.deadline is None:
        return news.deadline is last.deadline
    return abs(news.deadline - last.deadline) < _SAME
