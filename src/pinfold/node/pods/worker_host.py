"""What the workers of pods ask of the manager."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from msgspec.structs import replace

from pinfold.core.pod.pod import Container
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.drafted import Unwritten
from pinfold.node.held import as_held
from pinfold.node.pods.containers import PodContainers
from pinfold.node.pods.device_grants import prepare_devices
from pinfold.node.pods.pod_life import PodLife
from pinfold.ports.cgroups import Placement
from pinfold.ports.devices import DevicePlugins
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.records import PodPhase, PodRecord
from pinfold.ports.runtime import ContainerStatus
from pinfold.retry.backoff import Backoff, pause_after

_Start = Callable[[Placement], Awaitable[tuple[ContainerStatus, str]]]
"""Starts a container where it is to be; raises PortError."""

FIRST_LOOK: Final = 0.05
LONGEST_LOOK: Final = 1.0
"""Seconds between two looks whether a runtime is there again."""

REPORT_PATIENCE: Final = 2.0
"""Seconds in which the exit code of a process that was taken over should be told."""


class ManagerHost:
    """What a worker has done and written; ``ended`` cleans up after a pod that ended by itself."""

    def __init__(
        self,
        books: Books,
        containers: PodContainers,
        plugins: DevicePlugins | None,
        ended: Callable[[PodLife, PodPhase], None],
    ) -> None:
        self._books = books
        self.containers = containers
        self._plugins = plugins
        self.ended = ended

    def now(self, pod: PodLife) -> AdmittedPod:
        """What the books say of a pod at this moment."""
        return self._books.view.pods.active[pod.uid]

    @asynccontextmanager
    async def at_work(self, pod: PodLife, container: Container) -> AsyncIterator[None]:
        """Hold the pod's lock to start or end a container: nobody else places this one."""
        async with pod.lock:
            with self.containers.seen.at_work(pod.key(container)):
                yield

    async def pull(self, pod: PodLife, container: Container) -> str:
        """See that a container's image is there; raises PortError.

        Nobody is at work meanwhile: a container that is not created yet is nowhere.
        """
        return await self.containers.pull(self.now(pod), container)

    async def start_container(
        self, pod: PodLife, container: Container, attempt: int, image: str
    ) -> ContainerStatus:
        """Create of an image, place and start; raises PortError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        start = await self._prepared(pod, container, attempt, image)
        status, note = await self._placed(pod, container, start)
        self._books.counters.count_start(loop.time() - began)
        await self._started(pod, container, status, note)
        return status

    async def _prepared(
        self, pod: PodLife, container: Container, attempt: int, image: str = ""
    ) -> _Start:
        """What creates, places and starts a container that is made ready for it."""
        books = self._books
        cpus = books.view.where(self.now(pod), container).own
        await books.announcements.publish([pod.uid], books)
        grants = self.now(pod).record.devices.get(container.name, {})
        devices = await prepare_devices(self._plugins, grants)
        generation = books.store.generation
        shared = books.view.pool if self.now(pod).is_mixed(container) else None
        folder = await books.announcements.tell(books.view, self.now(pod), container)
        values = books.announcements.values(books.view, self.now(pod))

        async def start(placement: Placement) -> tuple[ContainerStatus, str]:
            return await self.containers.start(
                *(self.now(pod), container, cpus, attempt, devices),
                placement=placement,
                shared=shared,
                generation=generation,
                attached=pod.attached,
                folder=folder,
                values=values,
                nodes=books.view.volume_nodes(self.now(pod)),
                image=image,
            )

        return start

    async def continue_container(
        self, pod: PodLife, container: Container, status: ContainerStatus
    ) -> ContainerStatus:
        """Place and start one that an agent that is gone has created; raises PortError."""
        created = [status]

        async def start(placement: Placement) -> tuple[ContainerStatus, str]:
            if created:
                return await self.containers.resume(created.pop(), placement)
            # It could not be placed, and is forgotten.
            anew = await self._prepared(pod, container, status.attempt)
            return await anew(placement)

        started, note = await self._placed(pod, container, start)
        await self._started(pod, container, started, note)
        return started

    async def _placed(
        self,
        pod: PodLife,
        container: Container,
        start: _Start,
    ) -> tuple[ContainerStatus, str]:
        """Start a container where it belongs; its CPUs may go offline at any moment of it.

        Raises:
            PortError: it was not started.
        """
        books, key = self._books, pod.key(container)
        while True:
            placement = books.placement(key)
            try:
                # Its first step is taken unfrozen, for that is waited for.
                status, note = await start(replace(placement, frozen=False))
            except PortError:
                if books.placement(key) == placement:
                    raise
                await self.forget_attempts(key)
                continue
            if placement.frozen or books.placement(key) != placement:
                async with books.change():
                    try:
                        await self.containers.adopt(status, books.placement(key))
                    except PortError as error:
                        # It runs, and is tried again as all who could not be brought.
                        books.offline_owners.misplace(key, str(error))
                        self.report(pod, f"container {container.name}: {error}")
            return status, note

    async def until_it_may_run(self, pod: PodLife, container: Container) -> None:
        """Return when it would not be frozen, and nothing of a pod before it is removed."""
        await self._books.remains.gone(pod.uid)
        await self._books.offline_owners.until_it_may_run(pod.uid, container)

    async def _started(
        self, pod: PodLife, container: Container, status: ContainerStatus, note: str
    ) -> None:
        self.containers.seen.put(status)
        if note:
            self.report(pod, f"container {container.name}: {note}")
        name, attempt = container.name, status.attempt
        if self.now(pod).record.restarts.get(name, 0) != attempt:
            await self._note(
                pod, lambda record: replace(record, restarts={**record.restarts, name: attempt})
            )

    async def wait_container(self, pod: PodLife, status: ContainerStatus) -> ContainerStatus:
        """Return when it has exited."""
        status = await self.containers.exits.wait(status)
        if status.exit_code is None:
            # Only the parent of a process that was taken over gets its exit status.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(pod.reported.wait(), REPORT_PATIENCE)
            status = replace(status, exit_code=pod.reported_exit)
        return status

    async def forget_container(self, status: ContainerStatus) -> None:
        """Let the runtime forget one that has exited; raises PortError."""
        await self.containers.runtime.remove(status.id)
        seen = self.containers.seen
        if seen.statuses.get(status.key, status).id == status.id:
            seen.drop(status.key)

    async def forget_attempts(self, key: ContainerKey) -> None:
        """Let the runtime forget all that it has of a container; raises PortError."""
        for status in await self.containers.statuses():
            if status.key == key:
                await self.forget_container(status)

    async def until_it_answers(self) -> None:
        """Return when the runtime lists its containers."""
        backoff = Backoff(FIRST_LOOK, LONGEST_LOOK, PortError)
        await backoff.insist(self.containers.statuses, lambda _error, _pause: None)

    async def container_exited(
        self, pod: PodLife, container: Container, exit_code: int, *, final: bool
    ) -> None:
        """Write down how it ended; what an init container that is done needed goes back."""
        self._books.counters.container_exits += 1

        def ended(record: PodRecord) -> PodRecord:
            return replace(record, exit_codes={**record.exit_codes, container.name: exit_code})

        now = self.now(pod)
        is_init = any(container.name == init.name for init in now.workload.pod.init_containers)
        if final and is_init and container.name in now.record.assignments:
            await self._give_back(pod, container, ended)
        else:
            await self._update(pod, ended)

    async def pod_running(self, pod: PodLife) -> None:
        """Every container was started once."""
        await self._note(
            pod,
            lambda record: (
                replace(record, phase=PodPhase.RUNNING)
                if record.phase is PodPhase.ADMITTED
                else record
            ),
        )

    def pause_before(self, attempt: int, ran_for: float) -> float:
        """Seconds to wait before an attempt, after one that ran so long."""
        settings = self._books.view.settings
        return 0.0 if ran_for >= settings.calm else settings.pause_before(attempt)

    def pause_after(self, failures: int) -> float:
        """Seconds to wait after so many tries to get an image."""
        settings = self._books.view.settings
        return pause_after(failures, settings.backoff, settings.longest_backoff)

    async def _give_back(
        self, pod: PodLife, container: Container, change: Callable[[PodRecord], PodRecord]
    ) -> None:
        """Return the CPUs of an init container that is done while its pod lives on."""

        def give(draft: Draft) -> None:
            now = self.now(pod)
            ledger = draft.state.ledger.without(pod.uid, container.name)
            draft.state = replace(draft.state, ledger=ledger)
            draft.put(now, as_held(change(now.record), draft.state))

        await self._books.change_for_sure(give)

    async def _update(self, pod: PodLife, change: Callable[[PodRecord], PodRecord]) -> None:
        """Write down what has become of a pod, however long that takes."""
        await self._books.change_for_sure(lambda draft: self._draft(draft, pod, change))

    async def _note(self, pod: PodLife, change: Callable[[PodRecord], PodRecord]) -> None:
        """Take note of what a later agent would find out again: nobody waits for the disk."""
        async with self._books.change() as draft:
            self._draft(draft, pod, change)
            await draft.write(Unwritten.REPORTED)

    def _draft(self, draft: Draft, pod: PodLife, change: Callable[[PodRecord], PodRecord]) -> None:
        now = draft.pod(pod.uid)
        if now is not None and (record := change(now.record)) != now.record:
            draft.put(now, record)

    def report(self, pod: PodLife, problem: str) -> None:
        """Tell the operator."""
        self._books.observers.report(pod.name, problem)
