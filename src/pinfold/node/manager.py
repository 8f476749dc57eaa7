"""The manager: the one writer of a node's CPUs.

The order of every admission is: decide, write down, take the CPUs away from everybody else and
see it confirmed, start the owner.  The order of every release is: the owner is gone, write down,
give the CPUs back to the shared pool.  A crash between any two steps leaves a record from which
the next start goes on, and never a CPU with two owners.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Final

from pinfold.core.pod import Container
from pinfold.core.topology_manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.core.workload import Workload
from pinfold.node.active_pod import ActivePod
from pinfold.node.admission import POOL_EMPTY, Decision, NodeState, release, settle
from pinfold.node.bookkeeper import Bookkeeper
from pinfold.node.device_grants import PluginTalk, Question
from pinfold.node.pod_worker import PodWorker
from pinfold.node.port_errors import CgroupError, PortError
from pinfold.node.records import Batch, HistoryEntry, PodPhase, PodRecord
from pinfold.node.worker_host import ManagerHost

FOREGROUND: Final = "run"
"""The source of pods that wrap a process of ``pinfold run``."""


class Manager(Bookkeeper):
    """Admits and releases the pods that a runtime runs for it; see :class:`Bookkeeper`."""

    @cached_property
    def host(self) -> ManagerHost:
        """What the workers of pods ask for."""
        return ManagerHost(self)

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
            RuntimeFailedError: there are no files left to watch it with; nothing was changed.
            CgroupError: the CPUs could not be taken from the others; the pod failed.
        """
        pod = workload.pod
        talk = PluginTalk(self.plugins, self.counters, asyncio.get_running_loop().time)
        while True:
            async with self.lock:
                self.pods.check_free(pod)
                self.containers.check_room(pod, self.pods.active.values())
                decision, question = self._decide(workload, talk)
                if question is None:
                    record, active = await self._take(workload, decision, talk, manifest, source)
                    if active is not None:
                        active.attached_pid = pid
                    break
            # A plugin may take its time: others are admitted meanwhile, and it is decided anew.
            await talk.ask(question)
        if active is None:
            return record
        self.announce_soon()
        self.begin(active)
        return record

    async def _take(
        self,
        workload: Workload,
        decision: Decision,
        talk: PluginTalk,
        manifest: str,
        source: str,
    ) -> tuple[PodRecord, ActivePod | None]:
        """Write a decision down and make it hold; the pod, where it was admitted."""
        pod = workload.pod
        self.counters.count_admission(self.node, decision)
        record = self._record(decision, talk, manifest, source)
        entry = HistoryEntry(
            record.admitted_at,
            "admitted" if decision.admitted else "rejected",
            pod.uid,
            f"{pod.namespace}/{pod.name}",
            await self.observers.describe(decision, self.state),
        )
        before, after = self.state, settle(self.state, decision)
        namesakes = self.pods.ended_namesakes(pod)
        # Who waits in the foreground is told; the history is all that is left of a rejection.
        kept = () if source == FOREGROUND and not decision.admitted else (record,)
        await self.store.commit(Batch(self.node_record(after), kept, namesakes, (entry,)))
        for uid in namesakes:
            await self.remove_logs(self.pods.ended.pop(uid))
        if not decision.admitted:
            for one in kept:
                await self.remember(one)
            return record, None
        self.state = after
        active = self.pods.active[pod.uid] = ActivePod(workload, record)
        if after.ledger.default != before.ledger.default:
            await self._make_room(active, before)
        return record, active

    def _decide(self, workload: Workload, talk: PluginTalk) -> tuple[Decision, Question | None]:
        """A decision, and what a plugin must be asked before it may hold."""
        decision, question = talk.decide(self.node, self.state, workload.pod)
        if not decision.admitted or question is not None:
            return decision, question
        after = settle(self.state, decision)
        shares = len(decision.allocations) < len(workload.pod.all_containers)
        if after.ledger.default - after.offline or not (shares or self.anybody_shares()):
            return decision, None
        return decision.refused(UNEXPECTED_ADMISSION_ERROR, POOL_EMPTY), None

    def _record(
        self, decision: Decision, talk: PluginTalk, manifest: str, source: str
    ) -> PodRecord:
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
            memory=decision.memory,
            devices=talk.grants(decision),
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
            ).without_resources()
            await self.commit_for_sure(Batch(self.node_record(before), (failed,)))
            self.state = before
            del self.pods.active[pod.uid]
            await self.remember(failed)
            await self.grow_pool()
            raise

    def begin(self, pod: ActivePod) -> None:
        """Let a pod's containers run, from where its record says that they are."""
        pod.worker = PodWorker(self.host, pod)
        pod.worker.start(self.spawn)

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
                await self.remove_logs(self.pods.ended.pop(uid))

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
        self.spawn(self.finish(pod, pod.workload.grace_period, phase), name=f"end {pod.uid}")

    async def finish(self, pod: ActivePod, grace: float, phase: PodPhase | None = None) -> None:
        """End all containers of a pod, then give its CPUs back.

        Args:
            pod: the pod, which nobody else ends.
            grace: seconds from SIGTERM to SIGKILL.
            phase: what is remembered of it; None forgets it.
        """
        worker = pod.worker or PodWorker(self.host, pod)
        # Nothing is started any more before it is asked what there is.
        await worker.stop()
        await worker.terminate(await self.containers_of(pod), grace)
        async with self.lock:
            after = release(self.state, pod.workload.pod)
            kind = "released" if phase is None else "ended"
            entry = HistoryEntry(self.observers.clock(), kind, pod.uid, pod.name, "{}")
            last = replace(pod.record, phase=phase or PodPhase.FAILED).without_resources()
            if phase is PodPhase.FAILED and pod.failure:
                last = replace(last, reason=pod.failure_reason, message=pod.failure)
            put, drop = ((), (pod.uid,)) if phase is None else ((last,), ())
            await self.commit_for_sure(Batch(self.node_record(after), put, drop, (entry,)))
            self.state = after
            del self.pods.active[pod.uid]
            if phase is not None:
                await self.remember(last)
            await self.grow_pool()
        self.announce_soon()
        await self.announcements.retract(pod)
        await self._forget_sandbox(pod)
        if phase is None:
            await self.remove_logs(pod.record)
        pod.gone.set()

    async def _forget_sandbox(self, pod: ActivePod) -> None:
        try:
            await self.containers.end_pod(pod.uid)
        except PortError as error:
            # The CPUs are back, and nothing of the pod runs; the next start looks again.
            self.observers.report(pod.name, str(error))

    async def give_back(
        self, pod: ActivePod, container: Container, change: Callable[[PodRecord], PodRecord]
    ) -> None:
        """Return the CPUs of an init container that is done while its pod lives on."""
        async with self.lock:
            left = {n: c for n, c in pod.record.assignments.items() if n != container.name}
            record = replace(change(pod.record), assignments=left)
            ledger = self.state.ledger.without(pod.uid, container.name)
            after = replace(self.state, ledger=ledger)
            await self.commit_for_sure(Batch(self.node_record(after), (record,)))
            grown = ledger.default != self.state.ledger.default
            self.state, pod.record = after, record
            if grown:
                await self.grow_pool()
        self.announce_soon()

    async def update(self, pod: ActivePod, change: Callable[[PodRecord], PodRecord]) -> None:
        """Write down what has become of a pod."""
        async with self.lock:
            record = change(pod.record)
            if record != pod.record and pod.uid in self.pods.active:
                await self.commit_for_sure(Batch(put=(record,)))
                pod.record = record
