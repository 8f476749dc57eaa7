"""How pods end, and what of their lives is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import release
from pinfold.core.pod.pod import Container
from pinfold.node.active_pod import ActivePod
from pinfold.node.bookkeeper import FIRST_PAUSE, LONGEST_PAUSE, Bookkeeper
from pinfold.node.pods.caller import NOBODY, Caller
from pinfold.node.pods.worker import PodWorker
from pinfold.node.pods.worker_host import ManagerHost
from pinfold.ports.errors import PortError, StoreError
from pinfold.ports.records import Batch, HistoryEntry, PodPhase, PodRecord

FOREGROUND: Final = "run"
"""The source of pods that wrap a process of ``pinfold run``."""


class PodEndings(Bookkeeper):
    """Ends pods that a runtime runs; the half of the manager that gives CPUs back."""

    @cached_property
    def host(self) -> ManagerHost:
        """What the workers of pods ask for."""
        return ManagerHost(self)

    async def release(
        self, name: str, *, grace: float | None = None, caller: Caller = NOBODY
    ) -> None:
        """End a pod and forget it; returns when its CPUs are back in the shared pool.

        Args:
            name: uid, ``namespace/name``, or name (in namespace ``default``).
            grace: seconds from SIGTERM to SIGKILL; None is the pod's own.
            caller: who waits for it, and may go away before anything is changed.

        Raises:
            UnknownPodError: no such pod.
            GoneError: the caller is gone; the pod runs on.
            StoreError: that it is to go could not be written down; it runs on.
        """
        uid = self.pods.find(name)
        pod = self.pods.active.get(uid)
        if pod is not None:
            async with self.lock:
                caller.begin()
                first = not pod.ending
                if first:
                    await self._mark(pod)
            if first:
                await self.finish(pod, pod.workload.grace_period if grace is None else grace)
            else:
                await pod.gone.wait()
        async with self.lock:
            caller.begin()
            if uid in self.pods.ended:
                await self.commit(Batch(drop=(uid,)))
                self.remove_logs(self.pods.ended.pop(uid))
        await self.forgotten_logs.removed(uid)

    async def _mark(self, pod: ActivePod) -> None:
        """Write down that a pod is to go; from now on nobody else ends it."""
        pod.ending = True
        record = replace(pod.record, phase=PodPhase.TERMINATING)
        try:
            await self.commit(Batch(put=(record,)))
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
        """End all containers of a pod, however long that takes, then give its CPUs back.

        Args:
            pod: the pod, which nobody else ends.
            grace: seconds from SIGTERM to SIGKILL.
            phase: what is remembered of it; None forgets it.
        """
        await self._end_containers(pod, grace)
        try:
            await self.for_sure(lambda: self._forget(pod, phase))
            self.announce_soon()
            await self.announcements.retract(pod)
            await self._forget_sandbox(pod)
        finally:
            if self.pods.active.get(pod.uid) is not pod:
                pod.gone.set()
                if phase is None:
                    self.remove_logs(pod.record)

    async def _end_containers(self, pod: ActivePod, grace: float) -> None:
        """End all containers of a pod; whatever fails is tried again, for nobody else does it."""
        worker = pod.worker or PodWorker(self.host, pod)
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        pause = FIRST_PAUSE
        while True:
            try:
                # Nothing is started any more before it is asked what there is.
                await worker.stop()
                async with self.lock:
                    await self.offline_owners.wake(pod)
                live = await self.containers_of(pod)
                deadline = loop.time() + grace if deadline is None else deadline
                await worker.terminate(live, deadline - loop.time())
            except Exception as error:  # noqa: BLE001 - a pod that nobody ends keeps its CPUs
                problem = f"it has not ended: {error!r}; trying again in {pause:g} s"
                self.observers.report(pod.name, problem)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                return

    async def _forget(self, pod: ActivePod, phase: PodPhase | None) -> None:
        """Write down that nothing is left of a pod, then give its CPUs back."""
        after = release(self.state, pod.workload.pod)
        kind = "released" if phase is None else "ended"
        entry = HistoryEntry(self.observers.clock(), kind, pod.uid, pod.name, "{}")
        last = replace(pod.record, phase=phase or PodPhase.FAILED).without_resources()
        if phase is PodPhase.FAILED and pod.failure:
            last = replace(last, reason=pod.failure_reason, message=pod.failure)
        put, drop = ((), (pod.uid,)) if phase is None else ((last,), ())
        await self.commit(Batch(self.node_record(after), put, drop, (entry,)))
        self.state = after
        del self.pods.active[pod.uid]
        if phase is not None:
            await self.remember(last)
        await self.grow_pool()

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

        async def give() -> None:
            left = {n: c for n, c in pod.record.assignments.items() if n != container.name}
            record = replace(change(pod.record), assignments=left)
            ledger = self.state.ledger.without(pod.uid, container.name)
            after = replace(self.state, ledger=ledger)
            await self.commit(Batch(self.node_record(after), (record,)))
            grown = ledger.default != self.state.ledger.default
            self.state, pod.record = after, record
            if grown:
                await self.grow_pool()

        await self.for_sure(give)
        self.announce_soon()

    async def update(self, pod: ActivePod, change: Callable[[PodRecord], PodRecord]) -> None:
        """Write down what has become of a pod, however long that takes."""

        async def write() -> None:
            record = change(pod.record)
            if record != pod.record and pod.uid in self.pods.active:
                await self.commit(Batch(put=(record,)))
                pod.record = record

        await self.for_sure(write)

    async def note(self, pod: ActivePod, change: Callable[[PodRecord], PodRecord]) -> None:
        """Take note of what a later agent would find out again: nobody waits for the disk."""
        async with self.lock:
            if (record := change(pod.record)) != pod.record and pod.uid in self.pods.active:
                pod.record = record
                try:
                    await self.commit(Batch(put=(record,)))
                except StoreError as error:
                    # Whatever is written of the pod next has it.
                    self.observers.report(pod.name, str(error))
