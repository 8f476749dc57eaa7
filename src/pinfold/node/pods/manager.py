"""The manager: the one writer of a node's CPUs.

The order of every admission is: decide, write down, take the CPUs away from everybody else and
see it confirmed, start the owner.  The order of every release is: the owner is gone, write down,
give the CPUs back to the shared pool.  A crash between any two steps leaves a record from which
the next start goes on, and never a CPU with two owners.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import POOL_EMPTY, Decision, NodeState, settle
from pinfold.core.pod.workload import Workload
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.node.active_pod import ActivePod
from pinfold.node.pods.caller import NOBODY, Caller
from pinfold.node.pods.device_grants import PluginTalk, Question
from pinfold.node.pods.endings import FOREGROUND, PodEndings
from pinfold.node.pods.worker import PodWorker
from pinfold.ports.errors import CgroupError, StoreError
from pinfold.ports.held_process import HeldProcess
from pinfold.ports.records import Batch, HistoryEntry, PodPhase, PodRecord

NO_ROOM_REMEDY: Final = "make room on the disk; what pods have written goes with them"


class Manager(PodEndings):
    """Admits and releases the pods that a runtime runs for it; see :class:`PodEndings`."""

    async def admit(
        self,
        workload: Workload,
        *,
        manifest: str,
        source: str = "api",
        held: HeldProcess | None = None,
        caller: Caller = NOBODY,
    ) -> PodRecord:
        """Decide about a pod, and when it is admitted make room for it and start it.

        Args:
            workload: the pod.
            manifest: the pod as JSON, from which a later agent can go on.
            source: who asks.
            held: a process that waits to become the pod's only container.
            caller: who waits for it, and may go away before anything is changed.

        Returns:
            The pod's record: phase ADMITTED, or FAILED with the reason.

        Raises:
            NameTakenError: there is a pod of that name.
            StoreError: the decision could not be written down, or there is hardly room for what
                it would lead to; nothing was changed.
            RuntimeFailedError: there are no files left to watch it with; nothing was changed.
            GoneError: the caller is gone; nothing was changed.
            CgroupError: the CPUs could not be taken from the others; the pod failed.
        """
        pod = workload.pod
        talk = PluginTalk(self.plugins, self.counters, asyncio.get_running_loop().time)
        while True:
            async with self.lock:
                await self.look_at_cpus()
                self.pods.check_free(pod, held)
                self.containers.check_room(pod, self.pods.active.values())
                if self.store.problem:
                    raise StoreError(self.store.problem, NO_ROOM_REMEDY)
                decision, question = self._decide(workload, talk)
                if question is None:
                    caller.begin()
                    record, active = await self._take(workload, decision, talk, manifest, source)
                    if active is not None:
                        active.attached = held
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
        await self.commit(Batch(self.node_record(after), kept, namesakes, (entry,)))
        # What is on record holds from now on: nothing may come in between.
        active = ActivePod(workload, record) if decision.admitted else None
        if active is not None:
            self.state = after
            self.pods.active[pod.uid] = active
        for uid in namesakes:
            self.remove_logs(self.pods.ended.pop(uid))
        if active is None:
            for one in kept:
                await self.remember(one)
            return record, None
        if after.ledger.default != before.ledger.default:
            await self._make_room(active, before)
            try:
                await self.look_at_cpus()
            except (OSError, ValueError) as error:
                # It is on record and goes on; the next look is a moment away.
                self.observers.report(active.name, f"the CPUs that are online: {error}")
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
            try:
                await self.commit(Batch(self.node_record(before), (failed,)))
            except StoreError:
                # The record has a pod that is admitted: it is ended as one.
                pod.failure, pod.failure_reason = failed.message or "", UNEXPECTED_ADMISSION_ERROR
                pod.ending = True
                self.end_in_background(pod, PodPhase.FAILED)
                raise error from None
            self.state = before
            del self.pods.active[pod.uid]
            await self.remember(failed)
            await self.grow_pool()
            raise

    def begin(self, pod: ActivePod) -> None:
        """Let a pod's containers run, from where its record says that they are."""
        pod.worker = PodWorker(self.host, pod)
        pod.worker.start(self.spawn)
