"""The steps of a plan of moves, made on a live node: each run in a change of the books."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

from msgspec.structs import replace

from pinfold.core.moves.gone import is_gone
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import (
    Announce,
    GiveBack,
    MigrateMemory,
    Narrow,
    ShrinkPool,
    Step,
    Wait,
    Widen,
)
from pinfold.documents.move_plan import MemoryMoved
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.drafted import Unwritten
from pinfold.node.moves.finishing import finish
from pinfold.node.moves.placing import AtWorkError, Placing, RefusedError
from pinfold.node.moves.runs import is_over, is_told, key_of, keys_of, last_run, run_end, still_for
from pinfold.node.moves.waiting import has_waited
from pinfold.node.node_containers import may_live
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.records import PendingMove

NO_POOL: Final = "no CPU of the shared pool is online that it could go to"


class Stepping:
    """Makes what is next of the plan in flight.

    Args:
        books: the node's.
        over: called when nothing is left of a plan.

    Attributes:
        are_sure: whether the last steps on record are known to be made; they are not where another
            agent has written them, and are made again.
    """

    def __init__(self, books: Books, over: Callable[[PendingMove], None]) -> None:
        self._books = books
        self._placing = Placing(books)
        self._over = over
        self.are_sure = books.view.move is None

    async def advance(self, move: PendingMove) -> None:
        """Make what is next.

        Raises:
            StoreError: it could not be written, and was not made.
            RefusedError, InvariantError: it was refused.
            AtWorkError: a container is in other hands just now.
        """
        if not self.are_sure and move.written:
            await self._run(move, last_run(move.plan, move.written), move.written)
            return
        if is_over(move):
            await self._change(move, self._finish)
            return
        step = move.plan.steps[move.made]
        if isinstance(step, Wait):
            if await has_waited(self._books, move, step):
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
                await stack.enter_async_context(self._books.containers.still(keys))
            draft = await stack.enter_async_context(self._books.change())
            if self._books.view.move is not move:
                return
            await work(draft, move)
            if (now := self._books.view.move) is not None and now.held_up:
                draft.progress(replace(now, held_up=""))

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
        if move.written < end:
            draft.carry(replace(move, written=end))
        works = [partial(self._step, draft, at, steps[at]) for at in range(first, end)]
        await draft.write(Unwritten.REFUSED, *works)
        if any(isinstance(step, ShrinkPool) for step in steps[first:end]):
            await draft.look_at_cpus()
        self.are_sure = True

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
            elif isinstance(step, Widen):
                await self._place(at, step)
            elif isinstance(step, Narrow):
                # Who dies in between leaves nobody who believes to have what is taken.
                async with self._books.announcements.ahead(self._books.view, list(keys_of(step))):
                    await self._place(at, step)
        except Exception as error:
            draft.progress(replace(self._now, made=before.made, widens=False))
            if isinstance(error, PortError):
                self._books.counters.cgroup_failures += 1
                raise RefusedError(str(error), at) from error
            raise
        if widens:
            draft.progress(replace(self._now, widens=False))

    async def _place(self, at: int, step: Widen | Narrow) -> None:
        self._expect_online(at, step)
        await self._placing.place(step.owner)

    def _expect_online(self, at: int, step: Widen | Narrow) -> None:
        """Refuse to take from an owner all of its CPUs that are online: it would run on others'."""
        offline = self._books.view.state.offline
        if not step.now:
            if not self._books.view.pool:
                raise RefusedError(f"{step.owner}: {NO_POOL}", at)
            return
        if not is_gone(step.owner) and not step.now - offline and step.was - offline:
            raise RefusedError(f"{step.owner}: all of CPUs {step.now} are offline", at)

    @property
    def _now(self) -> PendingMove:
        move = self._books.view.move
        assert move is not None, "the steps of a plan are made while it is in flight"  # noqa: S101 - no caller's fault
        return move

    async def _finish(self, draft: Draft, move: PendingMove) -> None:
        """Write down that it is over, and let the pool have what is free."""
        self._books.announcements.moved(move)
        finish(draft, self._books.observers)
        await draft.write()
        self.are_sure = True
        try:
            # Before others have what he has left: somebody else may have moved him back.
            for owner in _unsettled(move):
                await self._settle(owner)
        finally:
            await draft.grow_pool()
            self._over(move)

    async def _settle(self, owner: Owner) -> None:
        """See an owner where he is now for good; he is tried again as all who are misplaced."""
        try:
            await self._placing.place(owner)
        except (PortError, AtWorkError) as error:
            self._books.observers.report(None, f"moves of CPUs: {error}")
            self._books.offline_owners.misplace(key_of(owner), str(error))

    # ----------------------------------------------------------------------- what takes its time

    async def _announce(self, draft: Draft, move: PendingMove) -> None:
        """Write down until when nothing is taken, and tell the owners."""
        observers, end = self._books.observers, run_end(move.plan, move.made)
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
        async with self._books.announcements.ahead(replace(self._books.view, move=move), keys):
            await draft.write()

    async def _migrate(self, move: PendingMove, step: MigrateMemory) -> None:
        """Have an owner's memory moved; it is written down when that is over.

        Until then the owner has both, and nobody narrows its NUMA nodes by the way.
        """
        status, key = self._placing.running(step.owner), key_of(step.owner)
        moved: MemoryMoved | None = None
        if status is not None:
            try:
                moved = await self._books.containers.cgroups.migrate(key, step.now)
            except PortError as error:
                if may_live(self._books.containers.cgroups, status):
                    raise RefusedError(str(error), move.made) from error
        await self._change(move, partial(self._migrated, moved=moved))

    async def _migrated(
        self, draft: Draft, move: PendingMove, *, moved: MemoryMoved | None
    ) -> None:
        at = move.made
        memory = move.memory if moved is None else {**move.memory, at: moved}
        draft.carry(replace(move, written=at + 1, made=at + 1, memory=memory))
        await draft.write()


def _unsettled(move: PendingMove) -> Collection[Owner]:
    """Whose limits may be others now, and of whom a step may have been refused."""
    before, after = move.plan.start.placed, move.plan.end.placed
    asked = None if move.resize is None else move.resize.owner
    return [
        one
        for one in before
        if move.plan.back or one == asked or len(after[one]) != len(before[one])
    ]
