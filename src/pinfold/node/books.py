"""The books of a node: who has what.  This is the only writer.

Everybody else reads :attr:`Books.view`, which nobody can change, and changes the books like this::

    async with books.change() as draft:
        decision = decide(draft.node, draft.state, pod)
        draft.state = settle(draft.state, decision)
        draft.admit(workload, record)

Leaving the block writes it all down in one transaction, makes it hold, and takes the CPUs that
were given away out of the shared pool, confirmed by the kernel, before anybody runs on them; CPUs
that came back go to the pool.  What cannot be written is not changed, and what the kernel does not
do is taken back.  A draft that is not left in peace (an exception) changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from pinfold.admission.admission import Node
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.history import TakenBack
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.announcements import Announcements
from pinfold.node.counters import Counters, Drifts
from pinfold.node.draft import Draft, Effect
from pinfold.node.drafted import Unwritten, table
from pinfold.node.idle.loans import Loans
from pinfold.node.leases.lease import Lease
from pinfold.node.node_containers import NodeContainers
from pinfold.node.observers import Observers
from pinfold.node.offline_owners import OfflineOwners
from pinfold.node.record_writer import RecordWriter
from pinfold.node.recovery.recovery import Restored
from pinfold.node.remains import Remains
from pinfold.node.settings import NodeSettings
from pinfold.node.tasks import Tasks
from pinfold.node.view import View
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey, StoreError
from pinfold.ports.guardian import Guardian, Undone
from pinfold.ports.records import Batch, NodeRecord, PendingMove, PodRecord
from pinfold.ports.runtime import ContainerStatus
from pinfold.ports.store import Store
from pinfold.retry.backoff import Backoff

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
"""Seconds between two tries to write what has happened."""

LAST_CHANGE: Final = 5.0
"""Seconds that a stop waits for a change that is under way; the disk does it in any case."""


class Books:
    """Keeps state, record and the kernel's shared pool the same; all in one event loop."""

    def __init__(  # noqa: PLR0913 - the ports, one each
        self,
        node: Node,
        restored: Restored,
        *,
        containers: NodeContainers,
        store: Store,
        announcements: Announcements,
        settings: NodeSettings,
        observers: Observers,
        guardian: Guardian | None = None,
    ) -> None:
        active = {uid: AdmittedPod(load, pod) for uid, (pod, load) in restored.active.items()}
        pods = table(active, restored.ended | restored.failed)
        self._view = View(
            node, restored.state, pods, settings, restored.move, objects=restored.objects
        )
        self.containers = containers
        self.store = store
        self.announcements = announcements
        self.observers = observers
        self.counters, self.drifts = Counters(), Drifts()
        self.offline_owners = OfflineOwners(self, containers, observers)
        self._tasks, self._changes = Tasks(observers.report), Tasks(observers.report)
        self.spawn = self._tasks.spawn
        self.lease = Lease(
            containers.cgroups,
            guardian,
            self._tell_undone,
            self._lost,
            clock=observers.clock,
        )
        self.loans = Loans(self, self.lease, self._see, containers, observers.report)
        self.remains = Remains(self.spawn, observers.report)
        self._lock = asyncio.Lock()
        self._node_written: NodeRecord | None = None
        self._move_written: PendingMove | UnsetType | None = UNSET
        self._record = RecordWriter(store, observers.report, self._owes)
        self._moved, self._news = asyncio.Event(), asyncio.Event()
        self._growth = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
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

    @property
    def statuses(self) -> Mapping[ContainerKey, ContainerStatus]:
        """The newest container of each key, as it was seen last."""
        return self.containers.seen.statuses

    def placement(self, key: ContainerKey) -> Placement:
        """What the kernel is told about a container of an active pod now."""
        pod = self.view.pods.active[key.pod_uid]
        container = pod.container(key.name)
        return self.containers.placement(pod, container, self.view.where(pod, container))

    async def until_replanned(self, move: PendingMove) -> None:
        """Return when another plan of moves is on record than this one, or none."""
        while self.view.move is move:
            await self._moved.wait()

    async def until_news(self, view: View, within: float) -> None:
        """Return when others want to hear of what has changed since this view, or in time.

        Args:
            view: what is known.
            within: seconds after which it returns at the latest.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not self.view.is_news_after(view):
                    await self._news.wait()

    def problems(self) -> Iterator[str]:
        """What is not as the books say, a sentence each."""
        if self.store.problem:
            yield self.store.problem
        if (move := self.view.move) is not None and (move.held_up or move.problem):
            yield f"moves of CPUs that are under way: {move.held_up or move.problem}"
        if self._growth.problem:
            yield f"the shared pool did not grow: {self._growth.problem}"
        yield from self.offline_owners.problems()
        containers = self.view.pods.containers()
        for key, looks in self.drifts.recurring():
            who = "the shared pool"
            if key is not None and key not in containers:
                continue
            if key is not None:
                who = f"container {key.name} of pod {containers[key][0].name}"
            yield f"{who} was not where it should be {looks}: find out who else moves it"

    # --------------------------------------------------------------------------------- changes

    @asynccontextmanager
    async def change(self) -> AsyncIterator[Draft]:
        """Change the books, or hold them still while the kernel is looked at; see the module.

        Raises:
            StoreError, CgroupError: it cannot be done; see :meth:`Draft.apply`.
        """
        await self._lock.acquire()
        draft, before = Draft(self), self.view
        try:
            self.expect_open()
            yield draft
            if draft._is_open():
                await draft.apply()
        finally:
            if draft._under_way is not None and draft._is_under_way:
                # Its caller was cancelled: nobody comes in between all the same.
                draft._under_way.add_done_callback(self._changes.report_failure)
                draft._under_way.add_done_callback(lambda _: self._left(before))
            else:
                self._left(before)

    def _left(self, before: View) -> None:
        """A change is over: the next one may come."""
        self._lock.release()
        if self.view.is_news_after(before):
            self._news.set()
            self._news = asyncio.Event()
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

        await self._insist(once)

    async def _insist(self, once: Effect) -> None:
        """Carry out what leads to a change of the books, again and again until it is written."""

        def failed(error: Exception, pause: float) -> None:
            self.observers.report(None, f"{error}; trying again in {pause:g} s")

        await Backoff(FIRST_PAUSE, LONGEST_PAUSE, StoreError).insist(once, failed)

    async def set_offline(self, cpus: CPUSet) -> None:
        """Take note of the CPUs that are offline; see :meth:`Draft.follow_cpus`."""
        async with self.change() as draft:
            await draft.follow_cpus(cpus)

    async def open_cgroups(self, pool: CPUSet) -> None:
        """Open them, or once more, with this shared pool (empty: as it is); nothing is lent then.

        Raises:
            CgroupError: they cannot be had, or not as this node is configured.
        """
        await self.containers.cgroups.open(pool)
        self.loans.begin()

    async def lend(self, more: CPUSet) -> None:
        """Lend these CPUs of owners to the idle side, besides those that are.

        Raises:
            CgroupError: nobody may have them lent just now, or the kernel refuses.
            StoreError: the agent is stopping.
        """
        async with self.change():
            await self.loans.lend(more)

    async def give_back(self, cpus: CPUSet) -> None:
        """Take back, confirmed, what is lent of these CPUs; no change of the books is waited for.

        Raises:
            CgroupError: somebody may still run there; they count as lent until nobody does.
        """
        await self.loans.give_back(cpus)

    def _lost(self) -> None:
        self.loans.lost()

    async def settle(self) -> None:
        """Try again to grow the pool, and to bring everybody where he belongs."""
        now = asyncio.get_running_loop().time()
        grows = bool(self._growth.problem) and self._growth.due <= now
        if grows or self.offline_owners.due():
            async with self.change() as draft:
                if grows:
                    await draft.grow_pool()
                await self.offline_owners.settle(draft)

    async def _write(self, draft: Draft, unwritten: Unwritten, above: int = 0) -> None:
        made = draft.outcome(self.view, self._node_written, self._move_written, above)
        # Nobody else gets a CPU, and none moves, while somebody borrows it.
        await self.loans.give_back_before(made.view)
        if await self._record.write(made.batch, unwritten, draft.subject):
            self._node_written, self._move_written = made.node, made.view.move
        # What is on record holds from now on: nothing may come in between.
        before = self._view
        # What is lent changes while somebody writes; what is parked is on no record.
        self._view = replace(made.view, lent=before.lent, parked=before.parked)
        if before.move is not made.view.move:
            self._moved.set()
            self._moved = asyncio.Event()
        for record in made.gone:
            self.remains.remove_logs(self.containers.logs, record)
        draft.start_over(self.view)

    async def _remember(self, batch: Batch) -> None:
        await self._record.commit(batch)

    def _see(self, view: View) -> None:
        """What holds now without being on record."""
        if self._move_written is self._view.move:
            self._move_written = view.move
        self._view = view

    def _tell_undone(self, undone: Sequence[Undone]) -> None:
        """Write down what was taken back because nobody watched."""
        for one in undone:
            cap = " and the cap of best-effort containers" * one.uncapped
            what = f"what was lent (CPUs {one.cpus or 'none'}){cap} was taken back"
            self.observers.report(None, f"{what}: {one.why}")

        async def write() -> None:
            async with self.change() as draft:
                entries = []
                for one in undone:
                    back = TakenBack(cpus=str(one.cpus), uncapped=one.uncapped, why=one.why)
                    entries.append(draft.entry("taken-back", document=back, at=one.at))
                await self._remember(Batch(history=tuple(entries)))

        self.spawn(self._insist(write), name="what was taken back")

    def _owes(self) -> None:
        async def pay() -> None:
            async with self.change():
                await self._record.commit(Batch())

        self.spawn(self._insist(pay), name="what is owed to the record")

    async def _apply(
        self,
        draft: Draft,
        move: Effect | None,
        instead: Callable[[CgroupError], PodRecord] | None,
    ) -> None:
        subject = draft.subject
        await self._write(draft, Unwritten.REFUSED)
        before, now = draft._confirmed, self.view
        taken, pool = before.state.ledger.default - now.state.ledger.default, before.pool
        try:
            if taken:
                # What an owner leaves is nobody's before it has.
                pool = now.pool if move is None else pool & now.pool or now.pool
                await self._set_pool(pool)
            if move is not None:
                await move()
        except CgroupError as error:
            self.counters.cgroup_failures += 1
            await self._undo(draft, before, move, instead and instead(error))
            draft._settled()
            raise
        if pool != now.pool or (draft.grows and not taken):
            await draft.grow_pool()
        draft._settled()
        if taken:
            try:
                await self.offline_owners.follow(draft, self._offline_now())
            except (OSError, ValueError) as error:
                # It is on record and goes on; the next look is a moment away.
                self.observers.report(subject, f"the CPUs that are online: {error}")

    async def _undo(
        self, draft: Draft, before: View, move: Effect | None, failed: PodRecord | None
    ) -> None:
        """Take back what was written, as the kernel has not done it."""
        draft.take_back(before, failed)
        try:
            await self._write(draft, Unwritten.OWED if failed is None else Unwritten.REFUSED)
            if move is not None:
                await move()
        except StoreError:
            return  # it stays as it was written, and whoever asked for it ends it
        except CgroupError as error:
            # Others come back when the reconciliation has brought it where it was.
            self.observers.report(None, str(error))
        else:
            await draft.grow_pool()

    def _offline_now(self) -> CPUSet:
        online = self.observers.online
        return self.view.state.offline if online is None else self.view.machine - online()

    async def _set_pool(self, cpus: CPUSet) -> None:
        if cpus:
            await self.lease.set_shared(cpus)
        if cpus == self.view.pool:
            self._growth.well()
            if cpus:
                self.observers.pool_changed(cpus)

    def _pool_is_behind(self, problem: str) -> None:
        """It is smaller than it could be."""
        if problem != self._growth.problem:
            self.observers.report(None, f"the shared pool did not grow: {problem}")
        self._growth.failed(problem)

    def expect_room(self) -> None:
        """Raise :class:`StoreError` where nothing new should be begun: pods can just be ended."""
        if self.store.problem:
            raise StoreError(self.store.problem)

    def expect_open(self) -> None:
        """Raise :class:`StoreError` once they are closed: nothing is begun any more."""
        if self._is_closed:
            raise StoreError("the agent is stopping", "ask again when it is back")

    async def close(self) -> None:
        """Let go; all containers run on.  A change under way is carried out, and none is begun."""
        self._is_closed = True
        await self._tasks.end()
        await self._changes.end(LAST_CHANGE)
        await self._tasks.end()  # what has followed
