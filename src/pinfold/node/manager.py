"""The manager: the one writer of a node's CPUs.

The order of every admission is: decide, write down, take the CPUs away from everybody else and
see it confirmed, start the owner.  The order of every release is: the owner is gone, write down,
give the CPUs back to the shared pool.  A crash between any two steps leaves a record from which
the next start goes on, and never a CPU with two owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

from pinfold.core.cpuset import CPUSet
from pinfold.core.pod import Container
from pinfold.core.topology_manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.core.workload import Workload
from pinfold.node.active_pod import ActivePod
from pinfold.node.admission import Decision, Node, NodeState, decide, release, settle
from pinfold.node.announcements import Announcements
from pinfold.node.containers import Containers
from pinfold.node.counters import Counters
from pinfold.node.exits import Exits
from pinfold.node.pod_table import PodTable
from pinfold.node.pod_worker import PodWorker
from pinfold.node.ports import CgroupError, PortError, Store
from pinfold.node.records import Batch, HistoryEntry, NodeRecord, PodPhase, PodRecord
from pinfold.node.settings import ManagerSettings
from pinfold.node.worker_host import ManagerHost

FOREGROUND: Final = "run"
"""The source of pods that wrap a process of ``pinfold run``."""

CANNOT_RUN: Final = "ContainerCannotRun"
"""The reason of a pod that failed because a container of it could not be started."""

POOL_EMPTY: Final = (
    "no CPU would be left for the containers that share CPUs (strict-cpu-reservation)"
)


@dataclass(frozen=True, slots=True)
class Observers:
    """What the manager calls and does not depend on.

    ``clock`` gives seconds since the epoch; ``describe`` makes the JSON document of a decision for
    the history; ``report`` takes a problem for the operator (pod as ``namespace/name`` or None).
    """

    clock: Callable[[], float]
    describe: Callable[[Decision, NodeState], str]
    report: Callable[[str | None, str], None]


class Manager:
    """Admits and releases pods; all methods run in one event loop.

    ``lock`` is held while the ledger, the record and the kernel's shared pool change together.

    Args:
        node: the policies in force.
        state: what the ledger says at the start; see :mod:`pinfold.node.recovery`.
        containers: runtime and cgroups.
        store: the durable record.
        announcements: who is told.
        settings: see the class.
        observers: see the class.
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
    ) -> None:
        self.node = node
        self.state = state
        self.containers = containers
        self.store = store
        self.announcements = announcements
        self.settings = settings
        self.observers = observers
        self.counters = Counters()
        self.pods = PodTable()
        self.lock = asyncio.Lock()
        self.exits = Exits()
        self.host = ManagerHost(self)
        self._tasks: set[asyncio.Task[None]] = set()

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

    # ----------------------------------------------------------------------------- admission

    async def admit(
        self, workload: Workload, *, manifest: str, source: str = "api", pid: int | None = None
    ) -> PodRecord:
        """Decide about a pod, and when it is admitted make room for it and start it.

        Args:
            workload: the pod.
            manifest: the pod as JSON, from which a later agent can go on.
            source: who asks.
            pid: a process that waits to become the pod's only container.

        Returns:
            The pod's record: phase ADMITTED, or FAILED with the reason.

        Raises:
            NameTakenError: there is a pod of that name.
            StoreError: the decision could not be written down; nothing was changed.
            CgroupError: the CPUs could not be taken from the others; the pod failed.
        """
        pod = workload.pod
        async with self.lock:
            self.pods.check_free(pod)
            decision = self._decide(workload)
            self.counters.count_admission(decision)
            record = self._record(decision, manifest, source)
            entry = HistoryEntry(
                record.admitted_at,
                "admitted" if decision.admitted else "rejected",
                pod.uid,
                f"{pod.namespace}/{pod.name}",
                self.observers.describe(decision, self.state),
            )
            before, after = self.state, settle(self.state, decision)
            namesakes = self.pods.ended_namesakes(pod)
            await self.store.commit(Batch(node_record(after), (record,), namesakes, (entry,)))
            for uid in namesakes:
                del self.pods.ended[uid]
            if not decision.admitted:
                await self._remember(record)
                return record
            self.state = after
            active = self.pods.active[pod.uid] = ActivePod(workload, record, attached_pid=pid)
            if after.ledger.default != before.ledger.default:
                await self._make_room(active, before)
        await self.announce()
        self.begin(active)
        return record

    def _decide(self, workload: Workload) -> Decision:
        decision = decide(self.node, self.state, workload.pod)
        if not decision.admitted:
            return decision
        after = settle(self.state, decision)
        shares = len(decision.allocations) < len(workload.pod.all_containers)
        if after.ledger.default - after.offline or not (shares or self._anybody_shares()):
            return decision
        return replace(
            decision,
            admitted=False,
            reason=UNEXPECTED_ADMISSION_ERROR,
            message=POOL_EMPTY,
            allocations={},
        )

    def _anybody_shares(self) -> bool:
        return any(
            pod.exclusive_cpus(self.state.ledger, container) is None
            for pod, container in self.pods.containers().values()
        )

    def _record(self, decision: Decision, manifest: str, source: str) -> PodRecord:
        pod = decision.pod
        return PodRecord(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            manifest=manifest,
            phase=PodPhase.ADMITTED if decision.admitted else PodPhase.FAILED,
            source=source,
            reason=decision.reason,
            message=decision.message,
            admitted_at=self.observers.clock(),
            assignments={name: a.cpus for name, a in decision.allocations.items()},
        )

    async def _make_room(self, pod: ActivePod, before: NodeState) -> None:
        try:
            await self.apply_pool()
        except CgroupError as error:
            self.counters.cgroup_failures += 1
            failed = replace(
                pod.record,
                phase=PodPhase.FAILED,
                reason=UNEXPECTED_ADMISSION_ERROR,
                message=f"the CPUs could not be taken from the shared pool: {error}",
                assignments={},
            )
            await self._commit_for_sure(Batch(node_record(before), (failed,)))
            self.state = before
            del self.pods.active[pod.uid]
            await self._remember(failed)
            await self._grow_pool()
            raise

    def begin(self, pod: ActivePod) -> None:
        """Let a pod's containers run, from where its record says that they are."""
        pod.worker = PodWorker(self.host, pod)
        pod.worker.start(self._spawn)

    # ------------------------------------------------------------------------------- release

    async def release(self, name: str, *, grace: float | None = None) -> None:
        """End a pod and forget it; returns when its CPUs are back in the shared pool.

        Args:
            name: uid, ``namespace/name``, or name (in namespace ``default``).
            grace: seconds from SIGTERM to SIGKILL; None is the pod's own.

        Raises:
            UnknownPodError: no such pod.
            StoreError: that it is to go could not be written down; it runs on.
        """
        uid = self.pods.find(name)
        pod = self.pods.active.get(uid)
        if pod is not None:
            async with self.lock:
                first = not pod.ending
                if first:
                    await self._mark(pod)
            if first:
                await self.finish(pod, pod.workload.grace_period if grace is None else grace)
            else:
                await pod.gone.wait()
        async with self.lock:
            if uid in self.pods.ended:
                await self.store.commit(Batch(drop=(uid,)))
                self.pods.ended.pop(uid, None)

    async def _mark(self, pod: ActivePod) -> None:
        """Write down that a pod is to go; from now on nobody else ends it."""
        pod.ending = True
        record = replace(pod.record, phase=PodPhase.TERMINATING)
        try:
            await self.store.commit(Batch(put=(record,)))
        except BaseException:
            pod.ending = False
            if pod.ended_as is not None:
                self.ended_by_itself(pod, pod.ended_as)
            raise
        pod.record = record

    def ended_by_itself(self, pod: ActivePod, phase: PodPhase) -> None:
        """Clean up after a pod whose containers have ended; it is remembered with ``phase``.

        One that somebody waited for in the foreground is remembered in the history only.
        """
        pod.ended_as = phase
        if not pod.ending:
            pod.ending = True
            self.end_in_background(pod, None if pod.record.source == FOREGROUND else phase)

    def end_in_background(self, pod: ActivePod, phase: PodPhase | None = None) -> None:
        """Finish a pod (see :meth:`finish`) without waiting for it."""
        self._spawn(self.finish(pod, pod.workload.grace_period, phase), name=f"end {pod.uid}")

    async def finish(self, pod: ActivePod, grace: float, phase: PodPhase | None = None) -> None:
        """End all containers of a pod, then give its CPUs back.

        Args:
            pod: the pod, which nobody else ends.
            grace: seconds from SIGTERM to SIGKILL.
            phase: what is remembered of it; None forgets it.
        """
        worker = pod.worker or PodWorker(self.host, pod)
        known = await self.containers.runtime.containers()
        await worker.terminate([s for s in known if s.key.pod_uid == pod.uid], grace)
        async with self.lock:
            after = release(self.state, pod.workload.pod)
            kind = "released" if phase is None else "ended"
            entry = HistoryEntry(self.observers.clock(), kind, pod.uid, pod.name, "{}")
            last = replace(pod.record, phase=phase or PodPhase.FAILED, assignments={})
            if phase is PodPhase.FAILED and pod.failure:
                last = replace(last, reason=CANNOT_RUN, message=pod.failure)
            put, drop = ((), (pod.uid,)) if phase is None else ((last,), ())
            await self._commit_for_sure(Batch(node_record(after), put, drop, (entry,)))
            self.state = after
            del self.pods.active[pod.uid]
            if phase is not None:
                await self._remember(last)
            await self._grow_pool()
        await self.announce()
        await self.announcements.retract(pod)
        pod.gone.set()

    async def give_back(
        self, pod: ActivePod, container: Container, change: Callable[[PodRecord], PodRecord]
    ) -> None:
        """Return the CPUs of an init container that is done while its pod lives on."""
        async with self.lock:
            left = {n: c for n, c in pod.record.assignments.items() if n != container.name}
            record = replace(change(pod.record), assignments=left)
            ledger = self.state.ledger.without(pod.uid, container.name)
            after = replace(self.state, ledger=ledger)
            await self._commit_for_sure(Batch(node_record(after), (record,)))
            grown = ledger.default != self.state.ledger.default
            self.state, pod.record = after, record
            if grown:
                await self._grow_pool()
        await self.announce()

    async def update(self, pod: ActivePod, change: Callable[[PodRecord], PodRecord]) -> None:
        """Write down what has become of a pod."""
        async with self.lock:
            record = change(pod.record)
            if record != pod.record and pod.uid in self.pods.active:
                await self._commit_for_sure(Batch(put=(record,)))
                pod.record = record

    async def set_offline(self, cpus: CPUSet) -> None:
        """Take note of the CPUs that are offline: nothing new is placed there."""
        async with self.lock:
            if cpus == self.state.offline:
                return
            self.state = replace(self.state, offline=cpus)
            await self._grow_pool()
        await self.announce()

    async def _grow_pool(self) -> None:
        try:
            await self.apply_pool()
        except CgroupError as error:
            # The pool is smaller than it could be; the next reconciliation makes it right.
            self.observers.report(None, f"the shared pool did not grow: {error}")

    async def _commit_for_sure(self, batch: Batch) -> None:
        """Write down what has happened already: there is no way back, so it is tried for ever."""
        pause = 0.1
        while True:
            try:
                await self.store.commit(batch)
            except PortError as error:
                self.observers.report(None, f"{error}; trying again in {pause:g} s")
                await asyncio.sleep(pause)
                pause = min(pause * 2, 10.0)
            else:
                return

    async def _remember(self, record: PodRecord) -> None:
        ended = self.pods.ended
        ended[record.uid] = record
        while len(ended) > self.settings.kept_pods:
            oldest = next(iter(ended))
            del ended[oldest]
            await self._commit_for_sure(Batch(drop=(oldest,)))

    async def announce(self) -> None:
        """Tell the mirror and the applications what holds now."""
        self.announcements.mirror(self.state.ledger)
        await self.announcements.publish(self.pods.active.values(), self.state.ledger, self.pool)

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
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


def node_record(state: NodeState) -> NodeRecord:
    """What is written down of the node."""
    ledger, bounds = state.ledger, state.ledger.bounds
    return NodeRecord(
        policy_name=ledger.policy_name,
        default=ledger.default,
        reserved=CPUSet() if bounds is None else bounds.reserved,
        machine=ledger.known if bounds is None else bounds.machine,
    )
