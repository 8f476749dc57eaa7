"""CPUs and memory of containers that a runtime starts for somebody else (a kubelet).

The order is that of :mod:`pinfold.node.pods.manager`: decide, write down, take the CPUs away from
everybody else and see it confirmed in the kernel; only then the runtime gets its answer and goes on
to create the owner.  Before the owner's first instruction it is looked once more.  What the runtime
has on record for the others follows (:mod:`pinfold.node.recorded_cpusets`).

A runtime shows no more of a pod than its containers one by one, so each is decided about when it is
created (the topology manager's scope ``pod`` sees those that are there so far).  A container that
has ended keeps its CPUs for its next attempt, unless another container of its pod, which it then
must have been an init container of, takes some of them over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from msgspec.structs import replace

from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.node.nri.creation import adjustment
from pinfold.node.nri.kubelet_room import KubeletRoom
from pinfold.node.nri.lifecycle import ContainerLifecycle
from pinfold.node.nri.resizes import KubeletResizes
from pinfold.node.nri.runtime_pod import RuntimePod
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.nri import (
    Container,
    ContainerAdjustment,
    ContainerState,
    ContainerUpdate,
    PodSandbox,
    RefusedError,
    Resources,
)

CREATION: Final = 10.0
"""Seconds from an answer to the word that the container was created, unless that has failed."""


class Watcher(Protocol):
    """Who is told what is decided; decides nothing."""

    def decided(self, pod: RuntimePod, container: str) -> None:
        """A container was decided about."""

    def refused(self, pod: PodSandbox, container: Container, text: str) -> None:
        """A container may not be created, or changed so."""

    def forgotten(self, pod_uid: str) -> None:
        """A pod is over."""


class PluginEvents:
    """The :class:`pinfold.ports.nri.RuntimeEvents` of a node whose pods a kubelet runs.

    Args:
        containers: what is known of the containers, and all that it is kept in.
        resizes: decides about those of containers with CPUs of their own.
        room: has others move aside for who is refused.
        watcher: told what is decided; None: nobody is.
    """

    def __init__(
        self,
        containers: ContainerLifecycle,
        resizes: KubeletResizes,
        room: KubeletRoom,
        watcher: Watcher | None = None,
    ) -> None:
        self._containers = containers
        self._resizes = resizes
        self._room = room
        self._watcher = watcher
        self._books = containers.books
        self._pods = containers.pods
        self._cgroups = containers.cgroups
        self._table = containers.table
        self._on_record = containers.on_record
        self._creating: dict[ContainerKey, str] = {}

    @property
    def creating(self) -> frozenset[str]:
        """The ids of containers that the runtime has been answered about, and is making."""
        return frozenset(self._creating.values())

    # ------------------------------------------------------------------------------ everything

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> None:
        """See :class:`pinfold.ports.nri.RuntimeEvents`."""
        await self._containers.inquiries.read_new(pods, containers)
        devices = await self._containers.inquiries.devices_of_new(pods, containers)
        async with self._books.change() as draft:
            # Who is not shown has yet to be made, or never will be.
            shown = {one.id for one in containers}
            self._creating = {key: one for key, one in self._creating.items() if one not in shown}
            await self._containers.synchronize(draft, pods, containers, devices)
        self._table.shown.set()
        self._resizes.look()
        by_sandbox = {pod.id: pod for pod in pods}
        for container in containers:
            if (pod := by_sandbox.get(container.sandbox_id)) is not None:
                self._tell_decided(pod, container)

    def _tell_decided(self, pod: PodSandbox, container: Container) -> None:
        runtime_pod = self._pods.by_uid.get(pod.uid)
        if (
            self._watcher is not None
            and runtime_pod is not None
            and container.name in runtime_pod.containers
        ):
            self._watcher.decided(runtime_pod, container.name)

    @contextmanager
    def _told(self, pod: PodSandbox, container: Container) -> Iterator[None]:
        """Tell what is decided about a container."""
        try:
            yield
        except RefusedError as error:
            if self._watcher is not None:
                self._watcher.refused(pod, container, str(error))
            raise
        self._tell_decided(pod, container)

    # ------------------------------------------------------------------------------------ pods

    async def run_pod_sandbox(self, pod: PodSandbox) -> None:
        """See :class:`pinfold.ports.nri.RuntimeEvents`."""
        self._on_record.writes.next_asked()
        self._pods.put(pod)
        self._containers.inquiries.begin(pod)

    async def stop_pod_sandbox(self, pod: PodSandbox) -> None:
        """See :class:`pinfold.ports.nri.RuntimeEvents`."""
        books = self._books
        async with books.change() as draft:
            runtime_pod = self._pods.by_uid.get(pod.uid)
            if runtime_pod is None or runtime_pod.sandbox.id != pod.id:
                return  # a sandbox that another has replaced
            active = books.view.pods.active.get(pod.uid)
            if active is not None:
                await self._containers.forget(draft, active)

    async def remove_pod_sandbox(self, pod: PodSandbox) -> None:
        """See :class:`pinfold.ports.nri.RuntimeEvents`."""
        await self.stop_pod_sandbox(pod)
        runtime_pod = self._pods.by_uid.get(pod.uid)
        if runtime_pod is not None and runtime_pod.sandbox.id == pod.id:
            del self._pods.by_uid[pod.uid]
        if self._watcher is not None and pod.uid not in self._pods.by_uid:
            self._watcher.forgotten(pod.uid)

    # ------------------------------------------------------------------------------ containers

    async def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        """See :class:`pinfold.ports.nri.RuntimeEvents`."""
        self._on_record.writes.next_asked()
        with self._told(pod, container):
            return await self._create(pod, container)

    async def _create(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        books, pods = self._books, self._pods
        self._room.refuse_again(pod, container)
        await self._containers.inquiries.read(pod)
        devices = await self._containers.inquiries.devices_of(pod, container)
        async with books.change() as draft:
            await draft.look_at_cpus()
            runtime_pod = pods.put(pod)
            decision = pods.decide(runtime_pod, container, devices)
            books.counters.count_admission(draft.node, decision, container.name)
            if not decision.admitted:
                state = books.view.state
                decision = await self._room.make(draft, runtime_pod, container, devices, decision)
                await pods.refuse(draft, runtime_pod, decision, state)
            runtime_pod.ran_shared.pop(container.name, None)
            await pods.note(draft, runtime_pod, "admitted", decision)
            given = await self._containers.settle(draft, runtime_pod, container, decision)
            self._room.taken(pod, container)
            self._containers.warn_of_kubelet(runtime_pod, container, given)
            active = books.view.pods.active[pod.uid]
            cpus = books.view.state.ledger.cpus_of(pod.uid, container.name)
        key = ContainerKey(pod.uid, container.name)
        self._creating[key] = container.id
        books.spawn(self._expect(key, pod, container), name=f"creation of {container.id}")
        adjusted = await adjustment(books, active, container, given, cpus)
        self._on_record.answer_nothing()
        return adjusted

    async def post_create_container(self, pod: PodSandbox, container: Container) -> None:
        """See :class:`pinfold.ports.nri.RuntimeEvents`."""
        # It may have taken longer than it was waited for.
        await self._take_over(ContainerKey(pod.uid, container.name), pod, container)

    async def _take_over(self, key: ContainerKey, pod: PodSandbox, container: Container) -> None:
        """Take over what was created unasked, before its first instruction."""
        if self._creating.get(key) == container.id:
            del self._creating[key]
        if self._table.id_of(key) == container.id:
            return
        await self._containers.inquiries.read(pod)
        devices = await self._containers.inquiries.devices_of(pod, container)
        async with self._books.change() as draft:
            if self._table.id_of(key) != container.id:
                runtime_pod = self._pods.put(pod)
                await self._containers.adopt(draft, runtime_pod, container, devices)
                await self._containers.locate(draft, (runtime_pod, container))

    async def _expect(self, key: ContainerKey, pod: PodSandbox, container: Container) -> None:
        """Let go of what a container was given whose creation has failed after the answer."""
        await asyncio.sleep(CREATION)
        if self._creating.get(key) == container.id:
            del self._creating[key]
            self._books.observers.report(
                pod.full_name,
                f"container {container.name} ({container.id[:12]}) was not created: the runtime "
                "has failed after the answer",
            )
            await self.remove_container(pod, container)

    async def start_container(self, pod: PodSandbox, container: Container) -> None:
        """See :class:`pinfold.ports.nri.RuntimeEvents`.

        Its cgroup is there now.  Whatever came in between since the answer to its creation, nobody
        else is on its CPUs when it executes its first instruction.
        """
        self._on_record.writes.next_asked()
        await self._take_over(ContainerKey(pod.uid, container.name), pod, container)
        try:
            await self._confirm(pod, container)
        except CgroupError as error:
            self._books.counters.cgroup_failures += 1
            raise RefusedError(f"{UNEXPECTED_ADMISSION_ERROR}: {error}") from error

    async def post_start_container(self, pod: PodSandbox, container: Container) -> None:
        """See :class:`pinfold.ports.nri.RuntimeEvents`."""
        if not self._containers.change(pod, container, ContainerState.RUNNING):
            return
        self._books.counters.container_starts += 1
        try:
            await self._confirm(pod, container)
        except CgroupError as error:
            # It may have ended already; the reconciliation looks again.
            self._books.observers.report(pod.full_name, str(error))

    async def _confirm(self, pod: PodSandbox, container: Container) -> None:
        books = self._books
        key = ContainerKey(pod.uid, container.name)
        async with books.change() as draft:
            if pod.uid not in books.view.pods.active or self._table.id_of(key) != container.id:
                return
            if books.view.state.ledger.cpus_of(pod.uid, container.name) is not None:
                await draft.apply_pool()
                await self._containers.place(pod.uid, container.name)
            await self._containers.find(key, container)

    async def update_container(
        self, pod: PodSandbox, container: Container, wanted: Resources
    ) -> Sequence[ContainerUpdate]:
        """See :class:`pinfold.ports.nri.RuntimeEvents`."""
        writes, key = self._on_record.writes, ContainerKey(pod.uid, container.name)
        writes.next_asked()
        writes.begun(key)
        try:
            with self._told(pod, container):
                answer = await self._update(pod, container, wanted)
        except RefusedError:
            writes.over(key)
            raise
        writes.begun(key)
        return answer

    async def _update(
        self, pod: PodSandbox, container: Container, wanted: Resources
    ) -> Sequence[ContainerUpdate]:
        books, pods = self._books, self._pods
        key = ContainerKey(pod.uid, container.name)
        changed = replace(container, resources=container.resources.changed_by(wanted))
        if not self._is_known(key, container):
            return ()
        if wanted.changes_requests and pods.bubble_of(pod.uid):
            await self._resizes.refuse_in_bubble(pod, container, changed)
        resizes = wanted.changes_requests and self._resizes.is_one(pods.by_uid[pod.uid], changed)
        if resizes:
            self._resizes.refuse_again(pod, changed)
        devices = await self._containers.inquiries.devices_of(pod, changed)
        if resizes:
            await self._resizes.resize(pod, changed, devices)
        async with books.change() as draft:
            if not self._is_known(key, container):
                return ()
            self._on_record.writes.begun(key)
            runtime_pod = pods.by_uid[pod.uid]
            if not wanted.changes_requests:
                # Only where it runs is to change (the record that follows), and that is decided.
                return (self._where_it_is(runtime_pod, changed),)
            if resizes:
                given = self._containers.resources(key.pod_uid, key.name)
                self._containers.note(runtime_pod, changed, given)
            else:
                keeps = self._containers.keeps(runtime_pod, changed)
                decision = pods.decide(runtime_pod, changed, devices, keeps=keeps)
                if not decision.admitted:
                    await pods.refuse(draft, runtime_pod, decision)
                await pods.note(draft, runtime_pod, "resized", decision)
                given = await self._containers.settle(draft, runtime_pod, changed, decision)
        return (ContainerUpdate(container.id, given), *self._on_record.answer())

    def _is_known(self, key: ContainerKey, container: Container) -> bool:
        """Whether this is the newest container of its name, of a pod that is here."""
        return (
            key.pod_uid in self._pods.by_uid
            and key.pod_uid in self._books.view.pods.active
            and self._table.id_of(key) == container.id
        )

    async def post_update_container(self, pod: PodSandbox, container: Container) -> None:
        """See :class:`pinfold.ports.nri.RuntimeEvents`.

        Whatever it has written, the kernel is made right, and the record follows.
        """
        key = ContainerKey(pod.uid, container.name)
        async with self._books.change():
            self._on_record.writes.over(key)
            if not self._is_known(key, container):
                return
            # An answer about somebody else may have said something newer of this one meanwhile.
            self._containers.record(key, container.id, container.resources)
            try:
                await self._containers.place(key.pod_uid, key.name)
            except CgroupError as error:
                # It may have ended a moment ago; the reconciliation looks again.
                self._books.observers.report(pod.full_name, str(error))

    def _where_it_is(self, runtime_pod: RuntimePod, container: Container) -> ContainerUpdate:
        key = ContainerKey(runtime_pod.sandbox.uid, container.name)
        given = replace(self._containers.resources(key.pod_uid, key.name), cpu_quota=None)
        on_record = replace(given, cpu_quota=container.resources.cpu_quota)
        self._containers.record(key, container.id, on_record)
        return ContainerUpdate(container.id, given)

    async def stop_container(
        self, pod: PodSandbox, container: Container
    ) -> Sequence[ContainerUpdate]:
        """See :class:`pinfold.ports.nri.RuntimeEvents`.

        Its CPUs wait for its next attempt.
        """
        self._on_record.writes.next_asked()
        self._containers.stop(pod, container)
        return self._on_record.answer()

    async def remove_container(self, pod: PodSandbox, container: Container) -> None:
        """See :class:`pinfold.ports.nri.RuntimeEvents`.

        One that goes without a next attempt gives its CPUs back.
        """
        key = ContainerKey(pod.uid, container.name)
        self._on_record.writes.next_asked()
        async with self._books.change() as draft:
            active = self._books.view.pods.active.get(pod.uid)
            runtime_pod = self._pods.by_uid.get(pod.uid)
            if active is None or runtime_pod is None:
                return
            if self._table.id_of(key) not in {None, container.id}:
                return  # its next attempt is there
            is_last = runtime_pod.containers.keys() <= {container.name}
            if is_last and not self._pods.bubble_of(pod.uid):
                await self._containers.forget(draft, active)
            else:
                await self._containers.forget_container(draft, active, container.name)
