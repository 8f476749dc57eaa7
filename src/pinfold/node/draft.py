"""A change of the books that is being made; see :mod:`pinfold.node.books`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.drafted import Drafted, Unwritten
from pinfold.node.idle.loans import Loans
from pinfold.node.observers import Observers
from pinfold.node.offline_owners import OfflineOwners
from pinfold.node.tasks import Tasks
from pinfold.node.view import View
from pinfold.ports.errors import CgroupError, PortError
from pinfold.ports.records import Batch, HistoryEntry, PendingMove, PodRecord

Effect = Callable[[], Awaitable[None]]

Then = Callable[[PortError | None], None]
"""What follows when something drafted holds, or has failed; it is called whoever is cancelled."""


def _nothing(_: PortError | None) -> None:
    """Nothing follows."""


class Bookkeeper(Protocol):
    """What a draft has of the books, and nobody else."""

    _changes: Tasks
    observers: Observers
    offline_owners: OfflineOwners
    loans: Loans

    @property
    def view(self) -> View:
        """What holds at this moment."""

    def expect_open(self) -> None:
        """See that something may still be begun; raises StoreError."""

    async def _remember(self, batch: Batch) -> None: ...

    def _see(self, view: View) -> None: ...

    def _offline_now(self) -> CPUSet: ...

    async def _set_pool(self, cpus: CPUSet) -> None: ...

    def _pool_is_behind(self, problem: str) -> None: ...

    async def _write(self, draft: Draft, unwritten: Unwritten, above: int = 0) -> None: ...

    async def _apply(
        self,
        draft: Draft,
        move: Effect | None,
        instead: Callable[[CgroupError], PodRecord] | None,
    ) -> None: ...


class Draft(Drafted):
    """A change that is being made; nobody else changes the books until it is left."""

    def __init__(self, books: Bookkeeper) -> None:
        super().__init__(books.view, books.observers.clock)
        self._books = books
        self._confirmed = books.view
        self._under_way: asyncio.Task[None] | None = None

    async def write(
        self, unwritten: Unwritten = Unwritten.REFUSED, *after: Effect, above: int = 0
    ) -> None:
        """Write down what is drafted, and make it hold; the kernel is told by what comes next.

        The record's generation is to be above ``above``.  What is to be done ``after`` it is done
        whoever is cancelled, before anybody else's change.

        Raises:
            StoreError: it cannot be written; nothing was changed.
        """
        await self._unbroken(partial(self._books._write, self, unwritten, above), *after)

    async def apply(
        self,
        *,
        move: Effect | None = None,
        instead: Callable[[CgroupError], PodRecord] | None = None,
        then: Then = _nothing,
    ) -> None:
        """Write down what is drafted, and see the kernel do it: others off first.

        Args:
            move: takes an owner where the books say: others have left its new CPUs, and get its
                old ones after that.  It is called once more when all is taken back.
            instead: what is remembered of a new pod whose CPUs could not be had; where that cannot
                be written, the pod stays, and who has asked for it ends it.
            then: see :data:`Then`.

        Raises:
            StoreError, CgroupError: it cannot be done; the books say what they said before.
        """
        await self._unbroken(partial(self._books._apply, self, move, instead), then=then)

    async def write_ahead(self) -> None:
        """Write down what is drafted; somebody else tells the kernel in a change of his own.

        Until then nobody else has what was given away, and it is in no cpuset but the pool's.

        Raises:
            StoreError: it cannot be written; nothing was changed.
        """
        await self.write()
        self._settled()

    async def apply_pool(self) -> None:
        """Make the kernel's shared pool that of the books, confirmed.

        Raises:
            CgroupError: some task may still run elsewhere, and nothing is taken back for that.
        """
        if not self._is_under_way:
            self._books.expect_open()
        try:
            await self._books._set_pool(self._books.view.pool)
        finally:
            self._settled()

    async def grow_pool(self) -> None:
        """Let the shared containers have CPUs that came back; what fails is tried again soon."""
        try:
            await self.apply_pool()
        except CgroupError as error:
            self._books._pool_is_behind(str(error))

    async def park(self, cpus: CPUSet) -> None:
        """Have the shared pool leave these CPUs, confirmed, and no others; it is on no record.

        Raises:
            CgroupError: some task may still run there; what was parked before is.
        """
        books, before = self._books, self._books.view.parked
        books._see(replace(books.view, parked=cpus))
        try:
            await self._unbroken(self.apply_pool)
        except CgroupError:
            books._see(replace(books.view, parked=before))
            raise

    async def look_at_cpus(self) -> None:
        """See whether CPUs have gone or come this moment.

        Nobody may be given CPUs on which an owner runs that has just lost its own.
        """
        await self.follow_cpus(self._books._offline_now())

    async def follow_cpus(self, offline: CPUSet) -> None:
        """Nothing new is placed on offline CPUs; who has lost all of its own shares no other's."""
        books = self._books
        if offline != books.view.state.offline:
            follow = partial(books.offline_owners.follow, self, offline)
            await self._unbroken(follow, books.loans.give_back_unowned)

    def take_offline(self, cpus: CPUSet) -> None:
        """These CPUs are offline: nothing new is placed there, whatever else is drafted."""
        books, before = self._books, self._books.view.state
        books._see(replace(books.view, state=replace(before, offline=cpus)))
        drafts = self.state is not before
        self.state = replace(self.state, offline=cpus) if drafts else books.view.state

    def progress(self, move: PendingMove) -> None:
        """So much of the plan in flight is made, or is being made, whatever else is drafted.

        It is not on record: a later agent begins with what is written.
        """
        self._books._see(replace(self._books.view, move=move))
        self.move = self._moved = move

    async def tell(self, *entries: HistoryEntry) -> None:
        """Write into the history what was seen; what cannot be written is only reported."""
        if entries:
            try:
                await self._books._remember(Batch(history=entries))
            except PortError as error:
                self._books.observers.report(entries[0].pod, str(error))

    async def _unbroken(self, *works: Effect, then: Then = _nothing) -> None:
        """Carry out: whoever waits for it may be cancelled, not it.

        Raises:
            RuntimeError: it was, and the draft is not his any more.
        """
        if self._is_under_way:
            raise RuntimeError("a change that is being carried out takes nothing more")
        self._under_way = self._books._changes.begin(self._carry_out(works, then), name="change")
        await asyncio.shield(self._under_way)

    async def _carry_out(self, works: tuple[Effect, ...], then: Then) -> None:
        try:
            self._books.expect_open()
            for work in works:
                await work()
        except PortError as error:
            then(error)
            raise
        then(None)

    @property
    def _is_under_way(self) -> bool:
        return self._under_way is not None and not self._under_way.done()

    def _is_open(self) -> bool:
        """Whether anything is left to be done."""
        now, confirmed = self._books.view.state.ledger, self._confirmed.state.ledger
        return self.differs(self._books.view) or now is not confirmed or self.grows

    def _settled(self) -> None:
        """The kernel has been told what holds."""
        self._confirmed, self.grows = self._books.view, False
