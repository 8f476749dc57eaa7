"""Starting containers through a runtime that makes their cgroups itself.

A container is created with the CPUs that it is to have.  When it is started, the shared pool holds
still until its cgroup is known: so it follows every later change, and begins on no CPU that was
taken away since it was created.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.pods.containers import PodContainers
from pinfold.node.recorded_cpusets import RecordedCpusets
from pinfold.node.settings import NodeSettings
from pinfold.ports.cgroups import GatedCgroups, Placement
from pinfold.ports.errors import ContainerKey, ProcessGoneError
from pinfold.ports.logs import PodLogs
from pinfold.ports.nri import ContainerUpdate, Resources, RuntimeRecord
from pinfold.ports.runtime import ContainerSpec, ContainerState, ContainerStatus, Runtime
from pinfold.ports.volumes import Volumes


class PooledCgroups(GatedCgroups, Protocol):
    """Cgroups in which each shared container has a copy of the shared pool's CPUs."""

    @property
    def pool(self) -> CPUSet:
        """The shared pool, as it was set last."""


class CriContainers(PodContainers):
    """See :class:`pinfold.node.pods.containers.PodContainers`.

    Args:
        parent: OCI's ``cgroupsPath`` of the cgroup that holds a pod's, by the pod's uid.
        volumes: makes the ``emptyDir`` volumes; without it the runtime does, as plain folders.
    """

    def __init__(  # noqa: PLR0913 - the ports, one each
        self,
        cgroups: PooledCgroups,
        runtime: Runtime,
        settings: NodeSettings,
        *,
        record: RuntimeRecord,
        on_record: RecordedCpusets,
        parent: Callable[[str], str],
        volumes: Volumes | None = None,
        logs: PodLogs | None = None,
    ) -> None:
        super().__init__(cgroups, runtime, settings, volumes=volumes, logs=logs)
        self._pooled = cgroups
        self._record = record
        self._on_record = on_record
        self._parent = parent
        self._created: dict[str, CPUSet] = {}

    async def create(self, spec: ContainerSpec) -> ContainerStatus:
        """Create with the CPUs that hold now."""
        placement = spec.placement or Placement()
        cpus = placement.within(self._pooled.pool)
        status = await super().create(replace(spec, placement=replace(placement, cpus=cpus)))
        self._created[status.id] = cpus
        return status

    async def resume(
        self, status: ContainerStatus, placement: Placement
    ) -> tuple[ContainerStatus, str]:
        """See the base class."""
        key = status.key
        self._pooled.identify(key, status.id)
        created = self._created.pop(status.id, None)
        async with self._pooled.starting():
            cpus = placement.within(self._pooled.pool)
            granted = await self.cgroups.place(key, placement)
            if status.state is ContainerState.CREATED:
                if created != cpus:
                    # It was created before the pool changed, or by an agent before this one.
                    await self._record.update(
                        [ContainerUpdate(status.id, Resources(cpus=str(cpus)))]
                    )
                status = await self.runtime.start(status.id)
            await self._enter(status)
        self._on_record.put(key, status.id, _of_cpus(placement), str(cpus))
        return status, granted

    async def _enter(self, status: ContainerStatus) -> None:
        if status.pid is None:
            return
        # It may have ended already; the runtime tells when it has noticed.
        with suppress(ProcessGoneError):
            await self.cgroups.enter(status.key, status.pid)

    async def adopt(self, status: ContainerStatus, placement: Placement) -> None:
        """See the base class."""
        self._pooled.identify(status.key, status.id)
        await self.cgroups.place(status.key, placement)
        await self._enter(status)
        # What the runtime has on record is not known, so it is told.
        self._on_record.put(status.key, status.id, _of_cpus(placement), "")

    def still(self, keys: Collection[ContainerKey] | None) -> AbstractAsyncContextManager[None]:
        """See the base class."""
        return self._on_record.still(keys)

    async def end_pod(self, pod_uid: str) -> None:
        """See the base class."""
        await super().end_pod(pod_uid)
        self._pooled.remove_parent(self._parent(pod_uid))

    async def end(self, key: ContainerKey) -> None:
        """See the base class."""
        self._on_record.forget(key)
        await super().end(key)


def _of_cpus(placement: Placement) -> Placement:
    """What the runtime's record follows: the NUMA nodes there are those of the creation."""
    return Placement(placement.cpus, mixed=placement.mixed)
