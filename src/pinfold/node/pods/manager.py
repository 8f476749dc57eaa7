"""The manager: admits and releases the pods that a runtime runs for it.

The order of every admission is: decide, write down, take the CPUs away from everybody else and
see it confirmed, start the owner.  The order of every release is: the owner is gone, write down,
give the CPUs back to the shared pool.  A crash between any two steps leaves a record from which
the next start goes on, and never a CPU with two owners.  What is written, and the pool, are the
books' affair (:mod:`pinfold.node.books`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import POOL_EMPTY
from pinfold.admission.decision import Decision
from pinfold.admission.quota import FORBIDDEN, forbidden
from pinfold.admission.settling import release, settle
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.pod.workload import Workload
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.documents.explanation import Ended
from pinfold.node.books import FIRST_PAUSE, LONGEST_PAUSE, Books
from pinfold.node.draft import Draft
from pinfold.node.drafted import Unwritten
from pinfold.node.held import as_held
from pinfold.node.moves.mover import Mover
from pinfold.node.moves.moving import Moving
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.moves.resizing import Resizing
from pinfold.node.pod_table import NameTakenError
from pinfold.node.pods.caller import NOBODY, Caller
from pinfold.node.pods.containers import PodContainers
from pinfold.node.pods.device_grants import PluginAnswers, Question
from pinfold.node.pods.pod_life import PodLife
from pinfold.node.pods.quotas import admission_refusal, resize_refusal
from pinfold.node.pods.worker import PodWorker
from pinfold.node.pods.worker_host import ManagerHost
from pinfold.ports.devices import DevicePlugins
from pinfold.ports.errors import CgroupError, PortError
from pinfold.ports.held_process import HeldProcess
from pinfold.ports.records import ByLoad, PodPhase, PodRecord
from pinfold.ports.runtime import ContainerStatus
from pinfold.retry.backoff import Backoff

FOREGROUND: Final = "run"
"""The source of pods that wrap a process of ``pinfold run``."""

MOVES_PATIENCE: Final = 30.0
"""Seconds from its coming for which a pod waits for moves of others, before room is made for it."""


class Manager:
    """Admits pods, lets them live, and ends them; the books have the same containers.

    ``lives`` are those of the pods that it runs, by uid; ``mover`` takes them to other CPUs:
    ``resizing`` to more or fewer, ``rebalancing`` to better ones.  ``dynamic`` is what that may do
    unasked; None under another policy.
    """

    def __init__(
        self,
        books: Books,
        containers: PodContainers,
        plugins: DevicePlugins | None = None,
        dynamic: DynamicOptions | None = None,
    ) -> None:
        self.books = books
        self.containers = containers
        self.plugins = plugins
        self.host = ManagerHost(books, containers, plugins, self.ended_by_itself)
        self.mover = Mover(books)
        self.resizing = Resizing(books, self.mover, resize_refusal)
        self.rebalancing = Rebalancing(books, self.mover, dynamic)
        self.lives: dict[str, PodLife] = {}
        self._workers: dict[str, PodWorker] = {}

    # ------------------------------------------------------------------------------- admission

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

        A later agent can go on from ``manifest``, the pod as JSON; ``held`` is a process that waits
        to become its only container; ``caller`` may go away before anything is changed.

        Returns:
            The pod's record: phase ADMITTED, or REJECTED with the reason.

        Raises:
            NameTakenError: there is a pod of that name.
            StoreError: the decision could not be written down, or there is hardly room for what
                it would lead to; nothing was changed.
            RuntimeFailedError: there are no files left to watch it with; nothing was changed.
            GoneError: the caller is gone; nothing was changed.
            CgroupError: the CPUs could not be taken from the others; the pod failed.
        """
        books = self.books
        workload = replace(workload, pod=books.view.node.seen(workload.pod))
        pod = workload.pod
        now = asyncio.get_running_loop().time
        answers = PluginAnswers(self.plugins, books.counters, now)
        patient_until = now() + MOVES_PATIENCE
        made: Moving | None = None
        while True:
            async with books.change() as draft:
                await draft.look_at_cpus()
                pods = books.view.pods
                pods.check_free(pod)
                if held is not None:
                    self._check_held(held)
                self.containers.check_room(pod, pods)
                books.expect_room()
                decision, question = self._decide(draft, workload, manifest, answers)
                moving: Moving | None = None
                forbids = decision.reason == FORBIDDEN
                if question is None and made is None and not (decision.admitted or forbids):
                    if now() < patient_until:
                        moving = self.rebalancing.before_room()
                    if moving is None:
                        made = moving = await self.rebalancing.make_room(draft, pod)
                if question is None and moving is None:
                    caller.begin()
                    record = self._record(decision, answers, manifest, source)
                    return await self._take(draft, workload, record, decision, held)
            # A plugin may take its time: others are admitted meanwhile, and it is decided anew.
            # So is it once others have moved aside, or wherever they were moving.
            if question is not None:
                await answers.ask(question)
            elif moving is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(patient_until if made is None else None):
                        await moving.ended()

    def _check_held(self, held: HeldProcess) -> None:
        """See that a process is no container of a pod, nor is to be one.

        Raises:
            NameTakenError: it is.
        """
        seen, active = self.containers.seen.statuses.values(), self.books.view.pods.active
        uids = {life.uid for life in self.lives.values() if life.attached == held}
        uids |= {status.key.pod_uid for status in seen if status.pid == held.pid}
        for uid in uids & active.keys():
            name = active[uid].name
            raise NameTakenError(f"process {held.pid} is a container of pod {name} already")

    async def _take(
        self,
        draft: Draft,
        workload: Workload,
        record: PodRecord,
        decision: Decision,
        held: HeldProcess | None,
    ) -> PodRecord:
        """Write a decision down and make it hold; a pod that was admitted begins.

        Returns:
            Its record, with what it was given.
        """
        books, pod = self.books, workload.pod
        books.counters.count_admission(draft.node, decision)
        document = await books.observers.describe(decision, draft.state)
        kind = "admitted" if decision.admitted else "rejected"
        name = pod.full_name
        draft.note(kind, (pod.uid, name), document, record.admitted_at)
        draft.forget(*books.view.pods.ended_namesakes(pod))
        if not decision.admitted:
            # Who waits in the foreground is told; the history is all that is left of it.
            if record.source != FOREGROUND:
                draft.remember(record)
            await draft.apply()
            return record
        draft.state = settle(draft.state, decision)
        record = as_held(record, draft.state)
        draft.admit(workload, record)
        self.rebalancing.rooms.taken(pod.uid)
        life = self.lives[pod.uid] = PodLife(pod.uid, name, held)

        def failed(error: CgroupError) -> PodRecord:
            life.failure = f"the CPUs could not be taken from the shared pool: {error}"
            life.failure_reason = UNEXPECTED_ADMISSION_ERROR
            return _last(life, record, PodPhase.REJECTED)

        def then(error: PortError | None) -> None:
            if error is None:
                self.begin(life)
            elif pod.uid in books.view.pods.active:
                # That it is not to be could not be written: it is ended as a pod that is.
                self.end_in_background(life, PodPhase.FAILED)
            else:
                self._over(life)

        await draft.apply(instead=failed, then=then)
        return record

    def _decide(
        self, draft: Draft, workload: Workload, manifest: str, answers: PluginAnswers
    ) -> tuple[Decision, Question | None]:
        """A decision, and what a plugin must be asked before it may hold; quotas come first."""
        view, clock = self.books.view, self.books.observers.clock
        refused = admission_refusal(view, workload.pod, manifest, clock)
        if refused is not None:
            self.books.counters.quota_refusals[f"{workload.pod.namespace}/{refused.quota}"] += 1
            return forbidden(workload.pod, refused), None
        state = self.rebalancing.rooms.seen_by(draft.state, workload.pod.uid)
        decision, question = answers.decide(draft.node, state, workload.pod)
        if not decision.admitted or question is not None:
            return decision, question
        if view.leaves_nobody_without_cpus(decision, settle(draft.state, decision)):
            return decision, None
        return decision.refused(UNEXPECTED_ADMISSION_ERROR, POOL_EMPTY), None

    def _record(
        self, decision: Decision, answers: PluginAnswers, manifest: str, source: str
    ) -> PodRecord:
        pod = decision.pod
        return PodRecord(
            uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            manifest=manifest,
            phase=PodPhase.ADMITTED if decision.admitted else PodPhase.REJECTED,
            source=source,
            reason=decision.reason,
            message=decision.message,
            admitted_at=self.books.observers.clock(),
            devices=answers.grants(decision),
            load_driven=dict.fromkeys(decision.load_driven, ByLoad()),
        )

    def begin(self, pod: PodLife) -> None:
        """Let a pod's containers run, from where its record says that they are."""
        worker = self._workers[pod.uid] = PodWorker(self.host, pod)
        worker.start(self.books.spawn)

    # --------------------------------------------------------------------------------- release

    async def release(
        self, name: str, *, grace: float | None = None, caller: Caller = NOBODY
    ) -> None:
        """End a pod and forget it; returns when its CPUs are back in the shared pool.

        ``grace`` are the seconds from SIGTERM to SIGKILL; None is the pod's own.

        Raises:
            UnknownPodError: no such pod.
            GoneError: the caller is gone; the pod runs on.
            StoreError: that it is to go could not be written down; it runs on.
        """
        books = self.books
        uid = books.view.pods.find(name)
        async with books.change() as draft:
            caller.begin()
            # Looked up here: it may have come to an end while others were changing the books.
            pod = self.lives.get(uid)
            if pod is not None and not pod.ending:
                await self._mark(draft, pod, grace)
        if pod is not None:
            await pod.gone.wait()
        async with books.change() as draft:
            if uid in books.view.pods.ended:
                draft.forget(uid)
        await books.remains.gone(uid)

    async def _mark(self, draft: Draft, pod: PodLife, grace: float | None) -> None:
        """Write down that a pod is to go, and see to it that it goes."""

        def then(error: PortError | None) -> None:
            if error is None:
                self.end_in_background(pod, grace=grace)

        now = self.host.now(pod)
        draft.put(now, replace(now.record, phase=PodPhase.TERMINATING))
        await draft.apply(then=then)

    def ended_by_itself(self, pod: PodLife, phase: PodPhase) -> None:
        """Clean up after a pod whose containers have ended; it is remembered with ``phase``.

        One that somebody waited for in the foreground is remembered in the history only.
        """
        source = self.host.now(pod).record.source
        self.end_in_background(pod, None if source == FOREGROUND else phase)

    def end_in_background(
        self, pod: PodLife, phase: PodPhase | None = None, grace: float | None = None
    ) -> None:
        """End a pod, unless somebody does; ``phase`` is remembered of it, None forgets it."""
        if pod.ending:
            return
        pod.ending = True
        grace = self.host.now(pod).workload.grace_period if grace is None else grace
        task = self.books.spawn(self._finish(pod, grace, phase), name=f"end {pod.uid}")
        self.books.remains.follow(pod.uid, task)

    async def _finish(self, pod: PodLife, grace: float, phase: PodPhase | None) -> None:
        """End all containers of a pod, however long that takes, then give its CPUs back."""
        books = self.books
        await self._end_containers(pod, grace)
        record = self.host.now(pod).record
        try:
            await books.change_for_sure(lambda draft: self._forget(draft, pod, phase))
            await books.announcements.retract(pod.uid, pod.name)
            await self._forget_sandbox(pod)
        finally:
            if pod.uid not in books.view.pods.active or self.lives.get(pod.uid) is not pod:
                self._over(pod)
                if phase is None:
                    books.remains.remove_logs(books.containers.logs, record)

    def _over(self, pod: PodLife) -> None:
        """Nothing is left of a pod; another of the same uid may live by now."""
        pod.gone.set()
        if self.lives.get(pod.uid) is pod:
            del self.lives[pod.uid]

    async def _end_containers(self, pod: PodLife, grace: float) -> None:
        """End all containers of a pod; whatever fails is tried again, for nobody else does it."""
        worker = self._workers.pop(pod.uid, None) or PodWorker(self.host, pod)
        loop = asyncio.get_running_loop()
        deadline: float | None = None

        async def end() -> None:
            nonlocal deadline
            # Nothing is started any more before it is asked what there is.
            await worker.stop()
            async with self.books.change() as draft:
                # Who is to end has to run to hear of it.
                if not (now := self.host.now(pod)).is_ending:
                    draft.let_end(now)
                    await draft.write(Unwritten.REPORTED)
                await self.books.offline_owners.wake(draft, pod.uid)
            live = await self._containers_of(pod)
            deadline = loop.time() + grace if deadline is None else deadline
            await worker.terminate(live, deadline - loop.time())

        def failed(error: Exception, pause: float) -> None:
            problem = f"it has not ended: {error!r}; trying again in {pause:g} s"
            self.books.observers.report(pod.name, problem)

        await Backoff(FIRST_PAUSE, LONGEST_PAUSE, Exception).insist(end, failed)
        self.containers.seen.drop_pod(pod.uid)

    async def _containers_of(self, pod: PodLife) -> list[ContainerStatus]:
        """The pod's containers; a runtime that is away is waited for."""

        def failed(error: Exception, pause: float) -> None:
            self.books.observers.report(pod.name, f"{error}; trying again in {pause:g} s")

        ask = self.containers.statuses
        known = await Backoff(FIRST_PAUSE, LONGEST_PAUSE, PortError).insist(ask, failed)
        return [status for status in known if status.key.pod_uid == pod.uid]

    def _forget(self, draft: Draft, pod: PodLife, phase: PodPhase | None) -> None:
        """Nothing is left of a pod: its CPUs go back."""
        now = self.host.now(pod)
        draft.state = release(draft.state, now.workload.pod)
        last = phase and _last(pod, now.record, phase)
        if last is None:
            draft.note("released", (pod.uid, pod.name))
        else:
            ended = Ended(phase=last.phase.value, reason=last.reason, message=last.message)
            draft.note("ended", (pod.uid, pod.name), ended)
        draft.end(now, last)

    async def _forget_sandbox(self, pod: PodLife) -> None:
        try:
            await self.containers.end_pod(pod.uid)
        except PortError as error:
            # The CPUs are back, and nothing of the pod runs; the next start looks again.
            self.books.observers.report(pod.name, str(error))

    async def close(self) -> None:
        """Let go; all containers run on."""
        await self.books.close()


def _last(pod: PodLife, record: PodRecord, phase: PodPhase) -> PodRecord:
    """What is remembered of a pod."""
    last = replace(record, phase=phase).without_resources()
    if phase is not PodPhase.SUCCEEDED and pod.failure:
        last = replace(last, reason=pod.failure_reason, message=pod.failure)
    return last
