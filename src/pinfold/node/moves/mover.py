"""Carries out plans of moves on a live node: one is in flight at a time, step by step.

A run of steps is written down, with the claims that hold after it, and made then; so the record is
ahead of the kernel, and CPUs have left the one before the other has them.  While somebody waits
for an application nothing is locked: pods are admitted, end and are deleted meanwhile.  What the
kernel refuses is undone by a plan of its own, which is tried for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Final

from msgspec.structs import replace

from pinfold.core.moves.gone import is_gone
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import (
    Announce,
    GiveBack,
    MigrateMemory,
    MovePlan,
    Narrow,
    ShrinkPool,
    Step,
    Wait,
    Widen,
    undo,
)
from pinfold.documents.move_plan import MemoryMoved
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.drafted import Unwritten
from pinfold.node.moves.finishing import finish
from pinfold.node.moves.moving import BusyError, Moving
from pinfold.node.moves.placing import AtWorkError, Placing, RefusedError
from pinfold.node.moves.runs import is_over, is_told, key_of, keys_of, last_run, run_end, still_for
from pinfold.node.moves.waiting import has_waited
from pinfold.node.node_containers import may_live
from pinfold.ports.errors import ContainerKey, PortError, StoreError
from pinfold.ports.records import PendingMove, PendingResize
from pinfold.retry.backoff import Backoff
from pinfold.state.ledger import InvariantError

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
"""Seconds between two tries of what could not be made or written."""


class Mover:
    """One for each node; it has the books, like everybody who changes them."""

    def __init__(self, books: Books) -> None:
        self.books = books
        self._placing = Placing(books)
        self._moving: Moving | None = None
        self._is_sure = not self.is_busy
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
            why: ``resize``, ``rebalance`` or ``make-room``.
            resize: the resize that it is made for; at its end the pod's record says so.
            replaces: the plan in flight is given up for it; see :meth:`may_replace`.

        Raises:
            BusyError: another plan is in flight; nothing was changed.
            StoreError: it cannot be written down; nothing was changed.
            InvariantError: it was planned from something else than what the books say.
        """
        observers = self.books.observers
        if draft.move is not None and not replaces:
            raise BusyError("another plan of moves is under way")
        self.books.expect_room()
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
        self._is_sure = True
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

    # ----------------------------------------------------------------------------------- the steps

    async def _carry_out(self) -> None:
        while (move := self.books.view.move) is not None:
            try:
                await self._go(move)
            except Exception as error:  # noqa: BLE001 - nobody else carries the plan on
                await self._stumbled(f"{type(error).__name__}: {error}")

    async def _go(self, move: PendingMove) -> None:
        try:
            await self._advance(move)
        except AtWorkError as error:
            await self.books.containers.seen.until_idle([error.key])
        except RefusedError as error:
            await self._refused(error)
        except StoreError as error:
            await self._pause(f"{error}")
        except InvariantError as error:
            problem = f"{error}; start with --on-mismatch=repair if this stays"
            await self._refused(RefusedError(problem if move.plan.back else str(error), move.made))
        else:
            self._backoff.well()

    async def _advance(self, move: PendingMove) -> None:
        """Make what is next.

        Raises:
            StoreError: it could not be written, and was not made.
            RefusedError, InvariantError: it was refused.
            AtWorkError: a container is in other hands just now.
        """
        if not self._is_sure and move.written:
            await self._run(move, last_run(move.plan, move.written), move.written)
            return
        if is_over(move):
            await self._change(move, self._finish)
            return
        step = move.plan.steps[move.made]
        if isinstance(step, Wait):
            if await has_waited(self.books, move, step):
                await self._change(move, partial(self._progress, made=move.made + 1))
        elif isinstance(step, MigrateMemory):
            await self._migrate(move, step)
        elif is_told(step):
            await self._change(move, self._announce)
        else:
            await self._run(move, move.made, run_end(move.plan, move.made))

    async def _run(self, move: PendingMove, first: int, end: int) -> None:
        run = move.plan.steps[first:end]
        keys = list(keys_of(*run))
        for key in keys:
            self._placing.expect_idle(key)
        await self._change(move, partial(self._make, first=first, end=end), *still_for(run, keys))

    async def _change(
        self,
        move: PendingMove,
        work: Callable[[Draft, PendingMove], Awaitable[None]],
        *still: Collection[ContainerKey] | None,
    ) -> None:
        """Work in a change of the books, if the plan is still the one that was looked at."""
        async with AsyncExitStack() as stack:
            for keys in still:
                await stack.enter_async_context(self.books.containers.still(keys))
            draft = await stack.enter_async_context(self.books.change())
            if self.books.view.move is not move:
                return
            if move.problem and not move.plan.back:
                move = replace(move, problem="")
                draft.progress(move)
            await work(draft, move)

    @staticmethod
    async def _progress(draft: Draft, move: PendingMove, *, made: int) -> None:
        draft.progress(replace(move, made=made))

    async def _make(self, draft: Draft, move: PendingMove, *, first: int, end: int) -> None:
        """Write a run down, and have the kernel make it."""
        await draft.look_at_cpus()
        steps = move.plan.steps
        if isinstance(steps[first], GiveBack):
            await self._finish(draft, move)
            return
        offline = self.books.view.state.offline
        for step in steps[first:end]:
            # It would run on others' CPUs, though it has some that are online.
            if not isinstance(step, Narrow) or is_gone(step.owner):
                continue
            if not step.now - offline and step.was - offline:
                problem = f"{step.owner}: all of CPUs {step.now} are offline"
                raise RefusedError(problem, move.made)
        if move.written < end:
            draft.carry(replace(move, written=end))
        works = [partial(self._step, draft, at, steps[at]) for at in range(first, end)]
        await draft.write(Unwritten.REFUSED, *works)
        if any(isinstance(step, ShrinkPool) for step in steps[first:end]):
            await draft.look_at_cpus()
        self._is_sure = True

    async def _step(self, draft: Draft, at: int, step: Step) -> None:
        """Have the kernel make a step; what it refuses was made in part, or not at all."""
        before = self._now
        # One that is made again changes nothing of what is known to be made.
        made = max(before.made, at + 1)
        widens = isinstance(step, Widen) and made > before.made
        draft.progress(replace(before, made=made, widens=widens))
        try:
            if isinstance(step, ShrinkPool):
                await draft.apply_pool()
            elif isinstance(step, Widen | Narrow):
                await self._placing.place(step.owner)
        except Exception as error:
            draft.progress(replace(self._now, made=before.made, widens=False))
            if isinstance(error, PortError):
                self.books.counters.cgroup_failures += 1
                raise RefusedError(str(error), made) from error
            raise
        if widens:
            draft.progress(replace(self._now, widens=False))

    @property
    def _now(self) -> PendingMove:
        move = self.books.view.move
        assert move is not None, "the steps of a plan are made while it is in flight"  # noqa: S101 - no caller's fault
        return move

    async def _finish(self, draft: Draft, move: PendingMove) -> None:
        """Write down that it is over, and let the pool have what is free."""
        self.books.announcements.moved(move)
        finish(draft)
        await draft.write()
        self._is_sure = True
        try:
            await draft.grow_pool()
            if move.resize is not None:
                # Its limits may have changed with what it asks for.
                await self._placing.place(move.resize.owner)
        except (PortError, AtWorkError) as error:
            self.books.observers.report(None, f"moves of CPUs: {error}")
            if move.resize is not None:
                # It is where it belongs; its limits are tried again as all that is refused.
                self.books.offline_owners.misplace(key_of(move.resize.owner), str(error))
        finally:
            seconds = self.books.observers.uptime() - self._began
            outcome = "undone" if move.plan.back else "done"
            self.books.counters.count_move(move.why, outcome, seconds)
            if self._moving is not None:
                self._moving.end(move.problem if move.plan.back else "")
            self._moving = None

    # ----------------------------------------------------------------------- what takes its time

    async def _announce(self, draft: Draft, move: PendingMove) -> None:
        """Write down until when nothing is taken, and tell the owners."""
        observers, end = self.books.observers, run_end(move.plan, move.made)
        told = [one for one in move.plan.steps[move.made : end] if isinstance(one, Announce)]
        now = observers.uptime()
        deadlines = {**move.deadlines, **{one.owner: now + one.seconds for one in told}}
        boot = observers.boot
        if boot != move.boot:
            deadlines = {one.owner: now + one.seconds for one in told}
        move = replace(move, written=end, made=end, deadlines=deadlines, boot=boot)
        draft.carry(move)
        # Who is not told before it is written would have less than his time.
        keys = [key_of(one.owner) for one in told if not is_gone(one.owner)]
        async with self.books.announcements.ahead(replace(self.books.view, move=move), keys):
            await draft.write()

    async def _migrate(self, move: PendingMove, step: MigrateMemory) -> None:
        """Have an owner's memory moved; it is written down when that is over.

        Until then the owner has both, and nobody narrows its NUMA nodes by the way.
        """
        status, key = self._placing.running(step.owner), key_of(step.owner)
        pod = self.books.view.pods.active.get(step.owner.pod_uid)
        if pod is not None and step.owner.container in pod.record.memory:
            problem = f"{step.owner}: the memory manager gave it its memory, which stays"
            raise RefusedError(problem, move.made + 1)
        moved: MemoryMoved | None = None
        if status is not None:
            try:
                moved = await self.books.containers.cgroups.migrate(key, step.now)
            except PortError as error:
                if may_live(self.books.containers.cgroups, status):
                    raise RefusedError(str(error), move.made + 1) from error
        await self._change(move, partial(self._migrated, moved=moved))

    async def _migrated(
        self, draft: Draft, move: PendingMove, *, moved: MemoryMoved | None
    ) -> None:
        at = move.made
        memory = move.memory if moved is None else {**move.memory, at: moved}
        draft.carry(replace(move, written=at + 1, made=at + 1, memory=memory))
        await draft.write()

    # ---------------------------------------------------------------------------- what goes wrong

    async def _refused(self, refused: RefusedError) -> None:
        """Turn back; on the way back try again, for ever."""
        move = self.books.view.move
        if move is None:
            return
        if move.plan.back:
            await self._stumbled(refused.problem)
            return
        self.books.observers.report(None, f"moves of CPUs are undone: {refused.problem}")

        async def turn() -> None:
            async with self.books.change() as draft:
                if (now := self.books.view.move) is None:
                    return
                back = undo(now.plan, refused.attempted)
                draft.carry(
                    replace(
                        now, plan=back, written=0, made=0, deadlines={}, problem=refused.problem
                    )
                )
                await draft.write()
                self._is_sure = True

        await self.books.insist(turn)

    async def _stumbled(self, problem: str) -> None:
        """Say for all to see that a plan does not go on, and wait before it is tried again."""
        if (move := self.books.view.move) is not None:
            if move.plan.back:
                problem += "; what was begun cannot be undone so far"
            with suppress(StoreError):
                async with self.books.change() as draft:
                    if (move := self.books.view.move) is not None:
                        draft.progress(replace(move, problem=problem))
        await self._pause(problem)

    async def _pause(self, problem: str) -> None:
        pause = self._backoff.failed(problem)
        self.books.observers.report(None, f"{problem}; trying again in {pause:g} s")
        await asyncio.sleep(pause)
