"""The books of a node: who has what.  This is the only writer.

Everybody else reads :attr:`Books.view`, which nobody can change, and changes the books like this::

    async with books.change() as draft:
        decision = decide(draft.node, draft.state, pod)
        draft.state = settle(draft.state, decision)
        active = draft.admit(workload, record)

Leaving the block writes it all down in one transaction, makes it hold, and takes the CPUs that
were given away out of the shared pool, confirmed by the kernel, before anybody runs on them; CPUs
that came back go to the pool.  What cannot be written is not changed, and what the kernel does not
do is taken back.  A draft that is not left in peace (an exception) changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec.structs import replace

from pinfold.admission.admission import Node
from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.active_pod import ActivePod
from pinfold.node.announcements import Announcements
from pinfold.node.counters import Counters
from pinfold.node.drafted import Drafted, Unwritten, table
from pinfold.node.forgotten_logs import ForgottenLogs
from pinfold.node.node_containers import NodeContainers
from pinfold.node.observers import Observers
from pinfold.node.offline_owners import OfflineOwners
from pinfold.node.recovery.recovery import Restored
from pinfold.node.settings import ManagerSettings
from pinfold.node.view import View
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, PortError, StoreError
from pinfold.ports.records import Batch, HistoryEntry, NodeRecord, PodRecord
from pinfold.ports.store import Store
from pinfold.retry.backoff import Backoff

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
"""Seconds between two tries to write what has happened."""

LAST_CHANGE: Final = 5.0
"""Seconds that a stop waits for a change that is under way; the disk does it in any case."""


class Draft(Drafted):
    """A change that is being made; nobody else changes the books until it is left."""

    def __init__(self, books: Books) -> None:
        super().__init__(books.view, books.observers.clock)
        self._books = books
        self._confirmed = books.view
        self._under_way: asyncio.Task[None] | None = None
        self._pays = False

    async def write(self, unwritten: Unwritten = Unwritten.REFUSED, *, above: int = 0) -> None:
        """Write down what is drafted, and make it hold; the kernel is told by what comes next.

        Args:
            unwritten: what becomes of it when it cannot be written.
            above: a generation that the record's is to be above.

        Raises:
            StoreError: it cannot be written; nothing was changed.
        """
        await self._unbroken(self._books._write(self, unwritten, above))

    async def apply(
        self,
        *,
        move: Callable[[], Awaitable[None]] | None = None,
        instead: Callable[[CgroupError], PodRecord] | None = None,
    ) -> None:
        """Write down what is drafted, and see the kernel do it: others off first.

        Args:
            move: takes an owner to its new CPUs: others have left those, and get its old ones
                after that.
            instead: what is remembered of a new pod whose CPUs could not be had.

        Raises:
            StoreError: it cannot be written; nothing was changed.
            CgroupError: CPUs could not be taken out of the shared pool, and the books say what
                they said before.  Where that could not be written, and with ``move``, they say
                what was drafted.
        """
        await self._unbroken(self._books._apply(self, move, instead))

    async def apply_pool(self) -> None:
        """Make the kernel's shared pool that of the books, confirmed.

        Raises:
            CgroupError: some task may still run elsewhere.
        """
        await self._books._set_pool(self._books.view.pool)
        self._settled()

    async def grow_pool(self) -> None:
        """Let the shared containers have CPUs that came back."""
        try:
            await self.apply_pool()
        except CgroupError as error:
            # The pool is smaller than it could be; the next reconciliation makes it right.
            self._books.observers.report(None, f"the shared pool did not grow: {error}")
            self._settled()

    async def look_at_cpus(self) -> None:
        """See whether CPUs have gone or come this moment.

        Nobody may be given CPUs on which an owner runs that has just lost its own.
        """
        books = self._books
        if books.observers.online is not None:
            offline = books.view.machine - books.observers.online()
            await books.offline_owners.follow(self, offline)

    def take_offline(self, cpus: CPUSet) -> None:
        """These CPUs are offline: nothing new is placed there, whatever else is drafted."""
        books = self._books
        self.state = replace(self.state, offline=cpus)
        books._view = replace(books.view, state=replace(books.view.state, offline=cpus))

    async def tell(self, *entries: HistoryEntry) -> None:
        """Write into the history what was seen; what cannot be written is only reported."""
        if entries:
            try:
                await self._books._commit(Batch(history=entries))
            except PortError as error:
                self._books.observers.report(entries[0].pod, str(error))

    async def _unbroken(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry out: whoever waits for it may be cancelled, not it."""
        changes = self._books._changes
        self._under_way = task = asyncio.get_running_loop().create_task(work, name="change")
        changes.add(task)
        task.add_done_callback(changes.discard)
        await asyncio.shield(self._under_way)

    def _is_open(self) -> bool:
        """Whether anything is left to be done."""
        now, confirmed = self._books.view.state.ledger, self._confirmed.state.ledger
        return self.differs(self._books.view) or now is not confirmed or self.grows or self._pays

    def _settled(self) -> None:
        """The kernel has been told what holds."""
        self._confirmed, self.grows = self._books.view, False
        self.before.clear()


class Books:
    """Keeps state, record and the kernel's shared pool the same; all in one event loop.

    Args:
        node: the policies in force.
        restored: what the record says; see :mod:`pinfold.node.recovery.recovery`.
        containers: runtime and cgroups.
        store: the durable record.
        announcements: who is told.
        settings, observers: see the classes.
    """

    def __init__(  # noqa: PLR0913 - the ports, one each
        self,
        node: Node,
        restored: Restored,
        *,
        containers: NodeContainers,
        store: Store,
        announcements: Announcements,
        settings: ManagerSettings,
        observers: Observers,
    ) -> None:
        active = {uid: ActivePod(load, pod) for uid, (pod, load) in restored.active.items()}
        pods = table(active, restored.ended | restored.failed)
        self._view = View(node, restored.state, pods, settings)
        self.containers = containers
        self.store = store
        self.announcements = announcements
        self.observers = observers
        self.counters = Counters()
        self.offline_owners = OfflineOwners(self, containers, observers)
        self.forgotten_logs = ForgottenLogs(self.spawn, observers.report)
        self._lock = asyncio.Lock()
        self._node_written: NodeRecord | None = None
        self._owed = Batch()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # --------------------------------------------------------------------------------- readers

    @property
    def view(self) -> View:
        """What holds at this moment; the next change makes another one."""
        return self._view

    @property
    def is_changing(self) -> bool:
        """Whether somebody is changing the books."""
        return self._lock.locked()

    def placement(self, pod: ActivePod, container: Container) -> Placement:
        """What the kernel is told about a container now."""
        return self.containers.placement(pod, container, self.view.where(pod, container))

    def problems(self) -> Iterator[str]:
        """What is not as the books say, a sentence each."""
        if self.store.problem:
            yield self.store.problem
        yield from self.offline_owners.problems()

    # --------------------------------------------------------------------------------- changes

    @asynccontextmanager
    async def change(self) -> AsyncIterator[Draft]:
        """Change the books, or hold them still while the kernel is looked at; see the module.

        Raises:
            StoreError: it cannot be written; nothing was changed.
            CgroupError: the kernel does not do it; see :meth:`Draft.apply`.
        """
        await self._lock.acquire()
        if self._is_closed:
            self._lock.release()
            raise StoreError("the agent is stopping", "ask again when it is back")
        draft, before = Draft(self), self.view
        try:
            yield draft
            if draft._is_open():
                await draft.apply()
        finally:
            if (task := draft._under_way) is None or task.done():
                self._lock.release()
            else:
                # Its caller was cancelled: nobody comes in between all the same.
                task.add_done_callback(lambda _: self._lock.release())
            if self.view.is_news_after(before):
                # The mirror is a file, and on the disk before anything goes on: after the answer.
                loop = asyncio.get_running_loop()
                loop.call_soon(self.announcements.soon, self, self.spawn)

    async def change_for_sure(self, fill: Callable[[Draft], None]) -> None:
        """Write down what has happened already: there is no way back, so it is tried for ever.

        Between two tries anybody may change the books: ``fill`` makes the draft anew each time.
        """

        async def once() -> None:
            async with self.change() as draft:
                fill(draft)

        def failed(error: Exception, pause: float) -> None:
            self.observers.report(None, f"{error}; trying again in {pause:g} s")

        await Backoff(FIRST_PAUSE, LONGEST_PAUSE, StoreError).insist(once, failed)

    async def set_offline(self, cpus: CPUSet) -> None:
        """Take note of the CPUs that are offline: nothing new is placed there.

        Whoever has lost all of its own goes where it shares none of another's.
        """
        async with self.change() as draft:
            await self.offline_owners.follow(draft, cpus)

    async def settle(self) -> None:
        """Bring those where they belong who could not be brought there."""
        if self.offline_owners.due():
            async with self.change() as draft:
                await self.offline_owners.settle(draft)

    async def _write(self, draft: Draft, unwritten: Unwritten, above: int = 0) -> None:
        made = draft.outcome(self.view, self._node_written, above)
        if made.batch != Batch() or draft._pays:
            try:
                await self._commit(made.batch)
            except PortError as error:
                if unwritten is Unwritten.REFUSED:
                    raise
                self._not_written(made.batch, draft.subject, error, unwritten)
        # What is on record holds from now on: nothing may come in between.
        self._node_written, self._view = made.node, made.view
        for one in draft.pods.values():
            one.pod.write(one.workload, one.record)
        for record in made.gone:
            self.forgotten_logs.remove(self.containers.logs, record)
        draft.start_over(self.view)

    async def _commit(self, batch: Batch) -> None:
        await self.store.commit(self._owed.then(batch))
        self._owed = Batch()

    def _not_written(
        self, batch: Batch, pod: str | None, error: PortError, unwritten: Unwritten
    ) -> None:
        if unwritten is Unwritten.REPORTED:
            self.observers.report(pod, str(error))
            return
        self.observers.report(None, f"{error}; trying again")
        if self._owed == Batch():
            self.spawn(self._pay(), name="what is owed to the record")
        self._owed = self._owed.then(batch)

    async def _pay(self) -> None:
        def pay(draft: Draft) -> None:
            if self._owed != Batch():
                draft._pays = True

        await asyncio.sleep(FIRST_PAUSE)
        await self.change_for_sure(pay)

    async def _apply(
        self,
        draft: Draft,
        move: Callable[[], Awaitable[None]] | None,
        instead: Callable[[CgroupError], PodRecord] | None,
    ) -> None:
        subject = draft.subject
        await self._write(draft, Unwritten.REFUSED)
        before, now = draft._confirmed, self.view
        taken = before.state.ledger.default - now.state.ledger.default
        try:
            if move is not None:
                await self._set_pool(before.pool & now.pool or now.pool)
                await move()
                await self._set_pool(now.pool)
            elif taken:
                await self._set_pool(now.pool)
        except CgroupError as error:
            if move is None:
                self.counters.cgroup_failures += 1
                await self._undo(draft, before, instead and instead(error))
            draft._settled()
            raise
        if taken:
            draft._settled()
            try:
                await draft.look_at_cpus()
            except (OSError, ValueError) as error:
                # It is on record and goes on; the next look is a moment away.
                self.observers.report(subject, f"the CPUs that are online: {error}")
        elif draft.grows or before.state.ledger.default != now.state.ledger.default:
            await draft.grow_pool()
        draft._settled()

    async def _undo(self, draft: Draft, before: View, failed: PodRecord | None) -> None:
        """Take back what was written, as the kernel has not done it."""
        draft.node = before.node
        draft.state = replace(before.state, offline=self.view.state.offline)
        for uid, was in draft.before.items():
            if was is not None:
                draft.put(was.pod, was.record, was.workload)
            elif uid in self.view.pods.active:
                draft.end(self.view.pods.active[uid], failed)
        try:
            await self._write(draft, Unwritten.REFUSED)
        except StoreError:
            return  # it stays as it was written, and whoever asked for it ends it
        await draft.grow_pool()

    async def _set_pool(self, cpus: CPUSet) -> None:
        if cpus:
            await self.containers.cgroups.set_shared(cpus)
            if cpus == self.view.pool:
                self.observers.pool_changed(cpus)

    # ------------------------------------------------------------------------ what goes on beside

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Let something go on beside; its failure is reported, :meth:`close` cancels it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._report_failure)
        return task

    def _report_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.observers.report(None, f"{task.get_name()}: {error!r}")

    async def close(self) -> None:
        """Let go; all containers run on.  A change under way is carried out, and none is begun."""
        self._is_closed = True
        await asyncio.sleep(0)  # what is still to be begun
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if changes := list(self._changes):
            await asyncio.wait(changes, timeout=LAST_CHANGE)
            for task in changes:
                task.cancel()
            await asyncio.gather(*changes, return_exceptions=True)
