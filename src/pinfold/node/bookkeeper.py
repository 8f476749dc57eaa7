"""What everybody who gives out a node's CPUs shares: the state, its record, the shared pool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from msgspec import Struct

from pinfold.admission.admission import Decision, Node, NodeState
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.active_pod import ActivePod
from pinfold.node.announcements import Announcements
from pinfold.node.counters import Counters
from pinfold.node.exits import Exits
from pinfold.node.forgotten_logs import ForgottenLogs
from pinfold.node.offline_owners import OfflineOwners
from pinfold.node.pod_table import PodTable
from pinfold.node.pods.containers import Containers
from pinfold.node.settings import ManagerSettings
from pinfold.ports.devices import DevicePlugins
from pinfold.ports.errors import CgroupError, PortError, StoreError
from pinfold.ports.records import Batch, NodeRecord, PodRecord
from pinfold.ports.runtime import ContainerStatus
from pinfold.ports.store import Store

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
"""Seconds between two tries to write what has happened."""


class Observers(Struct, frozen=True):
    """What the manager calls and does not depend on.

    ``clock`` gives seconds since the epoch; ``describe`` makes the JSON document of a decision for
    the history; ``report`` takes a problem for the operator (pod as ``namespace/name`` or None).
    """

    clock: Callable[[], float]
    describe: Callable[[Decision, NodeState], Awaitable[str]]
    report: Callable[[str | None, str], None]
    pool_changed: Callable[[CPUSet], None] = lambda _: None
    """Told the shared pool whenever the kernel has been."""
    online: Callable[[], CPUSet] | None = None
    """The CPUs that are online at this moment."""


class Bookkeeper:
    """Keeps ledger, record and the kernel's shared pool the same; all in one event loop.

    ``lock`` is held while the three change together.

    Args:
        node: the policies in force.
        state: what the ledger says at the start; see :mod:`pinfold.node.recovery.recovery`.
        containers: runtime and cgroups.
        store: the durable record.
        announcements: who is told.
        settings: see the class.
        observers: see the class.
        plugins: the device plugins; None where the node has no devices of its own.
    """

    def __init__(  # noqa: PLR0913 - the ports, one each
        self,
        node: Node,
        state: NodeState,
        *,
        containers: Containers,
        store: Store,
        announcements: Announcements,
        settings: ManagerSettings,
        observers: Observers,
        plugins: DevicePlugins | None = None,
    ) -> None:
        self.node = node
        self.state = state
        self.containers = containers
        self.store = store
        self.announcements = announcements
        self.settings = settings
        self.observers = observers
        self.plugins = plugins
        self.counters = Counters()
        self.pods = PodTable()
        self.lock = asyncio.Lock()
        self.exits = Exits()
        self.offline_owners = OfflineOwners(self)
        self.forgotten_logs = ForgottenLogs(self.spawn, observers.report)
        self._owed = Batch()
        self._tasks: set[asyncio.Task[None]] = set()
        self._announcing: asyncio.Task[None] | None = None
        self._announce_again = False

    @property
    def machine(self) -> CPUSet:
        """Every CPU that is known, offline ones too."""
        return self.state.ledger.limits.machine

    @property
    def pool(self) -> CPUSet:
        """The CPUs on which the shared containers really run.

        The ledger's shared pool, without offline CPUs, and without ``reservedSystemCPUs`` while
        there is any other CPU.
        """
        online = self.state.ledger.default - self.state.offline
        return online - self.settings.reserved_system_cpus or online

    async def apply_pool(self) -> None:
        """Make the kernel's shared pool that of the ledger.

        Raises:
            CgroupError: some task may still run elsewhere.
        """
        if self.pool:
            await self.containers.cgroups.set_shared(self.pool)
            self.observers.pool_changed(self.pool)

    async def grow_pool(self) -> None:
        """Let the shared containers have CPUs that came back."""
        try:
            await self.apply_pool()
        except CgroupError as error:
            # The pool is smaller than it could be; the next reconciliation makes it right.
            self.observers.report(None, f"the shared pool did not grow: {error}")

    async def set_offline(self, cpus: CPUSet) -> None:
        """Take note of the CPUs that are offline: nothing new is placed there.

        Whoever has lost all of its own goes where it shares none of another's.
        """
        async with self.lock:
            await self.offline_owners.follow(cpus)
        self.announce_soon()

    async def look_at_cpus(self) -> None:
        """See whether CPUs have gone or come this moment; the lock is held.

        Nobody may be given CPUs on which an owner runs that has just lost its own.
        """
        if self.observers.online is not None:
            await self.offline_owners.follow(self.machine - self.observers.online())

    def anybody_shares(self) -> bool:
        """Whether a container of an active pod runs, or has to run, on the shared pool."""
        return any(
            (where := self.offline_owners.of(pod, container)).own is None or where.place == "shared"
            for pod, container in self.pods.containers().values()
        )

    def node_record(self, state: NodeState) -> NodeRecord:
        """What is written down of the node."""
        ledger = state.ledger
        return NodeRecord(
            policy_name=ledger.policy_name,
            default=ledger.default,
            reserved=ledger.limits.reserved,
            machine=ledger.limits.machine,
            memory_policy="None" if state.memory is None else "Static",
            runtime=self.settings.runtime,
            cgroups=self.settings.cgroups,
        )

    async def commit(self, batch: Batch) -> None:
        """Write down, with what is owed; the lock is held.

        Raises:
            StoreError: it cannot be written, and nothing was changed.
        """
        await self.store.commit(self._owed.then(batch))
        self._owed = Batch()

    async def commit_or_owe(self, batch: Batch) -> None:
        """Write down what has happened and needs no record to be so; the lock is held.

        What cannot be written is owed: it is written with whatever is written next, so that
        nothing new can be decided before.
        """
        try:
            await self.commit(batch)
        except PortError as error:
            self.observers.report(None, f"{error}; trying again")
            if self._owed == Batch():
                self.spawn(self._pay(), name="what is owed to the record")
            self._owed = self._owed.then(batch)

    async def _pay(self) -> None:
        async def pay() -> None:
            if self._owed != Batch():
                await self.commit(Batch())

        await asyncio.sleep(FIRST_PAUSE)
        await self.for_sure(pay)

    async def for_sure(self, change: Callable[[], Awaitable[None]]) -> None:
        """Write down what has happened already: there is no way back, so it is tried for ever.

        ``change`` is carried out with the lock held: it commits, and then makes hold what it has
        written.  Between two tries the lock is free, and everything may have changed.
        """
        pause = FIRST_PAUSE
        while True:
            try:
                async with self.lock:
                    await change()
            except StoreError as error:
                self.observers.report(None, f"{error}; trying again in {pause:g} s")
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                return

    async def remember(self, record: PodRecord) -> None:
        """Keep an ended pod for ``status`` and ``explain``; too many push the oldest out."""
        ended = self.pods.ended
        ended[record.uid] = record
        while len(ended) > self.settings.kept_pods:
            oldest = next(iter(ended.values()))
            try:
                await self.commit(Batch(drop=(oldest.uid,)))
            except StoreError as error:
                self.observers.report(None, f"{error}; more pods than usual are remembered")
                return
            del ended[oldest.uid]
            self.remove_logs(oldest)

    def remove_logs(self, pod: PodRecord) -> None:
        """Let what a pod has written go, once the pod is forgotten."""
        self.forgotten_logs.remove(self.containers.logs, pod)

    async def containers_of(self, pod: ActivePod) -> list[ContainerStatus]:
        """The pod's containers; a runtime that is away is waited for."""
        pause = 0.1
        while True:
            try:
                known = await self.containers.runtime.containers()
            except PortError as error:
                self.observers.report(pod.name, f"{error}; trying again in {pause:g} s")
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)
            else:
                return [status for status in known if status.key.pod_uid == pod.uid]

    def mirror(self) -> None:
        """Write the kubelet's state files, where something has changed."""
        self.announcements.mirror(self.state, [pod.record for pod in self.pods.active.values()])

    async def announce(self) -> None:
        """Tell the mirror and the applications what holds now."""
        self.mirror()
        await self.announcements.publish(
            self.pods.active.values(), self.offline_owners.of, self.pool
        )

    def announce_soon(self) -> None:
        """Mirror what holds now; applications are told beside, at the latest state there is then.

        There is a file for each pod, and whoever waits for CPUs does not wait for these.
        """
        self.mirror()
        if self._announcing is None or self._announcing.done():
            self._announcing = self.spawn(self._tell_applications(), name="announce")
        else:
            self._announce_again = True

    async def _tell_applications(self) -> None:
        while True:
            self._announce_again = False
            pods, pool = self.pods.active.values(), self.pool
            where = self.offline_owners.of
            await self.announcements.publish(pods, where, pool, self.lock.locked)
            if not self._announce_again:
                return

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Let something go on beside; its failure is reported, :meth:`close` cancels it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.observers.report(None, f"{task.get_name()}: {error!r}")

    async def close(self) -> None:
        """Let go; all containers run on."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
