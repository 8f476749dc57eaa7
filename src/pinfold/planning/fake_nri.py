"""A container runtime that a kubelet drives and that asks before each step, in memory.

It does what containerd does with NRI: a container's cpuset comes from the answer to its creation;
a change of its resources writes the whole record into the kernel again; a refusal, and only that,
keeps a container from being created; without anybody to ask, it is created as it was asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_cgroups import Faults
from pinfold.ports.errors import ContainerKey, RuntimeFailedError
from pinfold.ports.nri import (
    Container,
    ContainerState,
    ContainerUpdate,
    Existing,
    PodSandbox,
    Resources,
    RuntimeEvents,
)

_ABOVE_PODS: Final = frozenset({"kubepods", "burstable", "besteffort"})


class FakeContainer(Struct):
    """``cpuset`` and ``mems`` are what its cpuset in the kernel has, once there is one."""

    pod: PodSandbox
    seen: Container
    node: FakeNode
    cpuset: CPUSet | None = None
    mems: CPUSet = CPUSet()
    """Empty: wherever there is memory."""
    started: float = 0.0
    """When it began, on the loop's clock."""

    @property
    def key(self) -> ContainerKey:
        """Its key."""
        return ContainerKey(self.pod.uid, self.seen.name)

    @property
    def kernel(self) -> CPUSet | None:
        """The CPUs that the kernel lets it use, once it has a cgroup."""
        if self.cpuset is None:
            return None
        return self.node.effective(Path(self.seen.cgroups_path))

    @property
    def runs(self) -> bool:
        """Whether it executes."""
        return self.seen.state is ContainerState.RUNNING


class FakeNode:
    """Runtime and kernel of a machine; ``plugin`` is who is asked, None while nobody is.

    ``starts`` says where each first instruction ran.
    """

    def __init__(self, machine: CPUSet, version: int = 2) -> None:
        self.machine = machine
        self.version = version
        """Of its cgroups: with 2, what is above a container's cuts its CPUs."""
        self.gates: dict[Path, CPUSet] = {}
        """The cpusets above those of containers that were ever written."""
        self.partitions: set[Path] = set()
        self.gate_faults = Faults()
        self.wrote: Callable[[], None] = lambda: None
        """Called after each write to a cpuset."""
        self.plugin: RuntimeEvents | None = None
        self.pods: dict[str, PodSandbox] = {}
        self.stopped_pods: set[str] = set()
        self.containers: dict[str, FakeContainer] = {}
        self.starts: list[tuple[ContainerKey, CPUSet]] = []
        self.record_faults = Faults()
        self.listing_faults = Faults()
        self.creation_faults = Faults()
        """Creations that fail after the plugin has answered."""
        self.slowness = 0.0
        """Seconds from the answer about a change to its being written."""
        self._number = 0

    async def connect(self, plugin: RuntimeEvents) -> None:
        """A plugin registers, and is shown everything."""
        self.plugin = plugin
        await plugin.synchronize(
            list(self.pods.values()), [one.seen for one in self.containers.values()]
        )

    async def run_pod(
        self,
        uid: str,
        name: str,
        cgroup_parent: str,
        annotations: Mapping[str, str] = MappingProxyType({}),
    ) -> PodSandbox:
        """Start a sandbox."""
        self._number += 1
        pod = PodSandbox(
            f"s{self._number}",
            uid,
            name,
            "default",
            annotations=annotations,
            cgroup_parent=cgroup_parent,
            pid=10_000 + self._number,
        )
        self.pods[pod.id] = pod
        if self.plugin is not None:
            await self.plugin.run_pod_sandbox(pod)
        return pod

    async def create(self, pod: PodSandbox, name: str, resources: Resources) -> FakeContainer:
        """Create a container.

        Raises:
            RefusedError: the plugin does not want it.
            RuntimeFailedError: it failed after the plugin had answered.
        """
        self._number += 1
        number = f"c{self._number}"
        path = f"{pod.cgroup_parent}/{number}"
        seen = Container(
            number, pod.id, name, ContainerState.CREATED, resources=resources, cgroups_path=path
        )
        if self.plugin is not None:
            asked = replace(seen, state=ContainerState.UNKNOWN)
            adjustment = await self.plugin.create_container(pod, asked)
            seen = replace(seen, resources=_applied(resources, adjustment.resources))
            if self.creation_faults.due():
                raise RuntimeFailedError("the disk is full", "injected")
        container = self.containers[number] = FakeContainer(pod, seen, self)
        if self.plugin is not None:
            await self.plugin.post_create_container(pod, seen)
        return container

    async def start(self, container: FakeContainer) -> None:
        """Make its cgroup, then let it execute."""
        container.cpuset = CPUSet.parse(container.seen.resources.cpus) or self.machine
        container.mems = CPUSet.parse(container.seen.resources.mems)
        self.wrote()
        if self.plugin is not None:
            await self.plugin.start_container(container.pod, container.seen)
        self.starts.append((container.key, container.kernel or CPUSet()))
        self._number += 1
        container.seen = replace(container.seen, state=ContainerState.RUNNING, pid=self._number)
        container.started = asyncio.get_running_loop().time()
        if self.plugin is not None:
            await self.plugin.post_start_container(container.pod, container.seen)

    async def resize(self, container: FakeContainer, wanted: Resources) -> None:
        """Change its resources in place; raises RefusedError."""
        updates: Sequence[ContainerUpdate] = ()
        if self.plugin is not None:
            updates = await self.plugin.update_container(container.pod, container.seen, wanted)
        own = wanted
        for update in updates:
            if update.container_id == container.seen.id:
                own = _applied(own, update.resources)
        self._change([one for one in updates if one.container_id != container.seen.id])
        if self.slowness:
            await asyncio.sleep(self.slowness)
        self._change([ContainerUpdate(container.seen.id, own)])
        if self.plugin is not None:
            await self.plugin.post_update_container(container.pod, container.seen)

    async def stop(self, container: FakeContainer) -> None:
        """It ends."""
        container.seen = replace(container.seen, state=ContainerState.STOPPED, pid=None)
        container.cpuset = None
        if self.plugin is not None:
            self._change(await self.plugin.stop_container(container.pod, container.seen))

    async def remove(self, container: FakeContainer) -> None:
        """Forget a container that has ended."""
        del self.containers[container.seen.id]
        if self.plugin is not None:
            await self.plugin.remove_container(container.pod, container.seen)

    async def end_pod(self, pod: PodSandbox) -> None:
        """End a pod with all its containers; they can still be looked at."""
        for one in [one for one in self.containers.values() if one.pod.id == pod.id]:
            if one.seen.state is not ContainerState.STOPPED:
                await self.stop(one)
        self.stopped_pods.add(pod.id)
        if self.plugin is not None:
            await self.plugin.stop_pod_sandbox(pod)

    async def stop_pod(self, pod: PodSandbox) -> None:
        """End a pod with all its containers, and forget it."""
        await self.end_pod(pod)
        for one in [one for one in self.containers.values() if one.pod.id == pod.id]:
            await self.remove(one)
        del self.pods[pod.id]
        self.stopped_pods.discard(pod.id)
        if self.plugin is not None:
            await self.plugin.remove_pod_sandbox(pod)

    async def existing(self) -> Existing:
        """See :class:`pinfold.ports.nri.RuntimeListing`."""
        if self.listing_faults.due():
            raise RuntimeFailedError("the runtime does not answer", "injected")
        return Existing(
            {pod: pod not in self.stopped_pods for pod in self.pods},
            {
                number: one.seen.state is not ContainerState.STOPPED
                for number, one in self.containers.items()
            },
        )

    def began(self, pid: int) -> int | None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        pods = {pod.pid for name, pod in self.pods.items() if name not in self.stopped_pods}
        return pid if pid in pods | {one.seen.pid for one in self.containers.values()} else None

    def age(self, pid: int) -> float | None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        now = asyncio.get_running_loop().time()
        ages = (now - one.started for one in self.containers.values() if one.seen.pid == pid)
        return next(ages, None)

    async def update(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        """See :class:`pinfold.ports.nri.RuntimeRecord`."""
        if self.record_faults.due():
            raise RuntimeFailedError("the runtime does not answer", "injected")
        self._change(updates)
        return ()

    async def update_over_cri(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        """See :class:`pinfold.ports.nri.RuntimeRecord`; the plugin is asked each time."""
        if self.record_faults.due():
            raise RuntimeFailedError("the runtime does not answer", "injected")
        for update in updates:
            container = self.containers.get(update.container_id)
            if container is not None:
                await self.resize(container, update.resources)
        return ()

    def _change(self, updates: Sequence[ContainerUpdate]) -> None:
        for update in updates:
            container = self.containers.get(update.container_id)
            if container is None:
                continue  # a runtime passes over ids that it does not know
            resources = _applied(container.seen.resources, update.resources)
            container.seen = replace(container.seen, resources=resources)
            if container.cpuset is not None and resources.cpus:
                container.cpuset = CPUSet.parse(resources.cpus)
                container.mems = CPUSet.parse(resources.mems) or container.mems
                self.wrote()

    def effective(self, folder: Path) -> CPUSet:
        """The CPUs that the kernel lets those in a cgroup use."""
        cpus = self.machine
        container = self.by_path(str(folder))
        own = [] if container is None or container.cpuset is None else [container.cpuset]
        above = (self.gates.get(one, CPUSet()) for one in [*reversed(folder.parents), folder])
        # One without any of what is above it has all of that.
        for configured in [*above, *own]:
            cpus = configured & cpus or cpus
        return cpus

    def has_cgroup(self, folder: Path) -> bool:
        """Whether there is such a cgroup: of a container, a pod, or above pods."""
        if self.by_path(str(folder)) is not None:
            return True
        pods = [Path(pod.cgroup_parent) for pod in self.pods.values()]
        return any(pod == folder for pod in pods) or folder.name in _ABOVE_PODS

    def by_path(self, path: str) -> FakeContainer | None:
        """The container whose cgroup this is, once it is there."""
        found = (one for one in self.containers.values() if one.seen.cgroups_path == path)
        container = next(found, None)
        return None if container is None or container.cpuset is None else container


def _applied(before: Resources, change: Resources) -> Resources:
    given = {
        name: value
        for name in ("cpu_shares", "cpu_quota", "cpu_period", "memory")
        if (value := getattr(change, name)) is not None
    }
    return replace(
        before, cpus=change.cpus or before.cpus, mems=change.mems or before.mems, **given
    )
