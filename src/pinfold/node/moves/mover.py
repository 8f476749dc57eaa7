"""Carries out plans of moves on a live node: one is in flight at a time, step by step.

A run of steps is written down, with the claims that hold after it, and made then; so the record is
ahead of the kernel, and CPUs have left the one before the other has them.  While somebody waits
for an application nothing is locked: pods are admitted, end and are deleted meanwhile.  What the
kernel refuses is undone by a plan of its own; what cannot be undone either stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from pinfold.core.moves.owners import MoveError, Owner, Refusal
from pinfold.core.moves.steps import MigrateMemory, MovePlan, Wait
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.moves.finishing import stay, turn_back
from pinfold.node.moves.moving import BusyError, Moving
from pinfold.node.moves.placing import AtWorkError, RefusedError
from pinfold.node.moves.runs import is_told, run_end
from pinfold.node.moves.stepping import Stepping
from pinfold.ports.errors import StoreError
from pinfold.ports.records import PendingMove, PendingResize
from pinfold.retry.backoff import Backoff
from pinfold.state.ledger import InvariantError

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
"""Seconds between two tries of what could not be made or written."""

_PATIENCE: Final = 5.0
"""Seconds for which somebody else may be at work on a container before it is said."""


class Mover:
    """One for each node; it has the books, like everybody who changes them."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self._steps = Stepping(books, self._over)
        self._moving: Moving | None = None
        self._task: asyncio.Task[None] | None = None
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._began = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a plan is in flight."""
        return self.books.view.move is not None

    @property
    def in_flight(self) -> Moving | None:
        """The plan in flight."""
        if (move := self.books.view.move) is None:
            return None
        if self._moving is None:
            self._moving, self._began = Moving(move.plan), self.books.observers.uptime()
        return self._moving

    async def begin(
        self,
        draft: Draft,
        plan: MovePlan,
        *,
        why: str,
        resize: PendingResize | None = None,
        replaces: bool = False,
    ) -> Moving:
        """Write a plan down, with all else that is drafted; its steps follow by themselves.

        Args:
            draft: the change of the books in which it was planned.
            plan: from what the books say now.
            why: one of :data:`pinfold.documents.move_plan.WHY`.
            resize: the resize that it is made for; at its end the pod's record says so.
            replaces: the plan in flight is given up for it; see :meth:`may_replace`.

        Raises:
            BusyError: another plan is in flight; nothing was changed.
            StoreError: it cannot be written down; nothing was changed.
            InvariantError: it was planned from something else than what the books say.
            MoveError: it moves memory that the memory manager has on record elsewhere.
        """
        observers = self.books.observers
        if draft.move is not None and not replaces:
            raise BusyError("another plan of moves is under way")
        self.books.expect_room()
        _expect_memory_to_stay(draft, plan)
        for owner in plan.start.placed:
            pod = draft.pod(owner.pod_uid)
            has = None if pod is None else pod.record.baseline(owner.container)
            if pod is not None and has is not None:
                baselines = {**pod.record.baselines, owner.container: has}
                draft.put(pod, replace(pod.record, baselines=baselines))
        end = run_end(plan, 0) if plan.steps and not is_told(plan.steps[0]) else 0
        draft.carry(
            PendingMove(
                plan,
                why,
                # What is on record is ahead: so far everybody is where he was.
                written=end,
                began_at=observers.clock(),
                boot=observers.boot,
                resize=resize,
            )
        )
        await draft.write_ahead()
        if self._moving is not None:
            self._moving.end(replaced=True)
        self._moving, self._began = Moving(plan), observers.uptime()
        self._steps.are_sure = True
        self.go_on()
        return self._moving

    def may_replace(self, owner: Owner) -> bool:
        """Whether the plan in flight can be given up for another one of this owner alone.

        So it is while nobody else is in it, and the owner has all that it claims and waits: a
        resize that is announced, and not made.
        """
        move = self.books.view.move
        return (
            move is not None
            and move.resize is not None
            and not move.plan.back
            and move.plan.start.placed.keys() == {owner}
            and move.holds.placed == move.on_record.claims
            and move.made < len(move.plan.steps)
            and isinstance(move.plan.steps[move.made], Wait)
        )

    def go_on(self) -> None:
        """Carry out what is in flight, as after a restart; nothing where nothing is."""
        if self.in_flight is None:
            return
        if self._task is None or self._task.done():
            self._task = self.books.spawn(self._carry_out(), name="moves")

    async def _carry_out(self) -> None:
        while (move := self.books.view.move) is not None:
            try:
                await self._go(move)
            except Exception as error:  # noqa: BLE001 - nobody else carries the plan on
                await self._stumbled(f"{type(error).__name__}: {error}")

    async def _go(self, move: PendingMove) -> None:
        try:
            await self._steps.advance(move)
        except AtWorkError as error:
            await self._until_idle(error)
        except RefusedError as error:
            await self._refused(str(error), error.at)
        except StoreError as error:
            await self._pause(f"{error}")
        except InvariantError as error:
            if move.plan.back:
                await self._stumbled(f"{error}; start with --on-mismatch=repair if this stays")
            else:
                await self._turn_back(str(error), move.made)
        else:
            self._backoff.well()

    def _over(self, move: PendingMove) -> None:
        """Nothing is left of a plan, and the books say so."""
        seconds = self.books.observers.uptime() - self._began
        outcome = "undone" if move.plan.back else "done"
        self.books.counters.count_move(move.why, outcome, seconds)
        if self._moving is not None:
            self._moving.end(move.problem if move.plan.back else "")
        self._moving = None

    # ---------------------------------------------------------------------------- what goes wrong

    async def _refused(self, problem: str, at: int) -> None:
        """Turn back; on the way back try again for a while, and stay then."""
        move = self.books.view.move
        if move is None:
            return
        if not move.plan.back:
            await self._turn_back(problem, max(move.made, at + 1))
        elif self._backoff.pause < _LONGEST_PAUSE:
            await self._stumbled(problem)
        else:
            self.books.observers.report(None, f"moves of CPUs are not undone: {problem}")
            await self._change_plan(partial(stay, at=at, problem=problem))

    async def _turn_back(self, problem: str, attempted: int) -> None:
        self.books.observers.report(None, f"moves of CPUs are undone: {problem}")
        await self._change_plan(partial(turn_back, attempted=attempted, problem=problem))

    async def _change_plan(self, change: Callable[[Draft], None]) -> None:
        await self.books.change_for_sure(change)
        self._steps.are_sure = True
        self._backoff.well()

    async def _stumbled(self, problem: str) -> None:
        """Say for all to see that a plan does not go on, and wait before it is tried again."""
        if (move := self.books.view.move) is not None and move.plan.back:
            problem += "; what was begun cannot be undone so far"
        await self._say(problem)
        await self._pause(problem)

    async def _until_idle(self, error: AtWorkError) -> None:
        """Wait for whoever starts or ends a container, and say so where that takes long."""
        key, seen = error.key, self.books.containers.seen
        try:
            async with asyncio.timeout(_PATIENCE):
                await seen.until_idle([key])
        except TimeoutError:
            pod = self.books.view.pods.active.get(key.pod_uid)
            name = key.pod_uid if pod is None else pod.name
            await self._say(f"pod {name}, container {key.name}: {error}")
            await seen.until_idle([key])

    async def _say(self, problem: str) -> None:
        """Say for all to see what holds a plan up."""
        with suppress(StoreError):
            async with self.books.change() as draft:
                if (move := self.books.view.move) is not None:
                    draft.progress(replace(move, held_up=problem))

    async def _pause(self, problem: str) -> None:
        pause = self._backoff.failed(problem)
        self.books.observers.report(None, f"{problem}; trying again in {pause:g} s")
        await asyncio.sleep(pause)


def _expect_memory_to_stay(draft: Draft, plan: MovePlan) -> None:
    """See that nobody's memory moves whose NUMA nodes are the memory manager's to give."""
    for step in plan.steps:
        if not isinstance(step, MigrateMemory):
            continue
        pod = draft.pod(step.owner.pod_uid)
        if pod is not None and step.owner.container in pod.record.memory:
            raise MoveError(
                Refusal.MEMORY,
                f"{step.owner} has its memory from the memory manager, on NUMA nodes "
                f"{pod.record.memory_nodes(step.owner.container)}",
                "move its CPUs alone, or start its pod anew",
            )
