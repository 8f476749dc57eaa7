"""The containers of a kubelet, as their runtime has told of them: what the books look at.

Nothing is started or ended here: that is the kubelet's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Final

from msgspec.structs import replace

from pinfold.core.pod import pod
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.exits import Exits
from pinfold.node.recorded_cpusets import RecordedCpusets
from pinfold.node.seen_containers import SeenContainers
from pinfold.node.view import Whereabouts
from pinfold.ports import nri
from pinfold.ports.cgroups import FoundCgroups, Placement
from pinfold.ports.errors import ContainerKey
from pinfold.ports.logs import PodLogs
from pinfold.ports.nri import Container
from pinfold.ports.runtime import ContainerState, ContainerStatus
from pinfold.ports.volumes import Volumes

_STATES: Final = {
    nri.ContainerState.CREATED: ContainerState.CREATED,
    nri.ContainerState.PAUSED: ContainerState.RUNNING,
    nri.ContainerState.RUNNING: ContainerState.RUNNING,
    nri.ContainerState.STOPPED: ContainerState.EXITED,
    nri.ContainerState.UNKNOWN: ContainerState.CREATED,
}


class KubeletContainers:
    """The newest container of each name.

    Fulfils :class:`pinfold.node.node_containers.NodeContainers`.

    Args:
        cgroups: the cgroups that the runtime makes.
        on_record: what the runtime has on record.
    """

    logs: PodLogs | None = None
    volumes: Volumes | None = None

    def __init__(self, cgroups: FoundCgroups, on_record: RecordedCpusets) -> None:
        self.cgroups = cgroups
        self.exits = Exits()
        self._on_record = on_record
        self.seen = SeenContainers()
        self.shown = asyncio.Event()
        """Set once the runtime has shown what there is, and all of it is where it belongs."""

    # ------------------------------------------------------------------- what the runtime tells

    def put(self, key: ContainerKey, container: Container) -> None:
        """Take note of a container, which replaces an earlier attempt of the same name."""
        before = self.seen.statuses.get(key)
        attempt = 0
        if before is not None:
            attempt = before.attempt + (before.id != container.id)
        state = _STATES[container.state]
        self.seen.put(ContainerStatus(container.id, key, attempt, state, container.pid))

    def change(
        self,
        key: ContainerKey,
        container_id: str,
        state: nri.ContainerState,
        pid: int | None = None,
    ) -> bool:
        """Take note of a change; False when that container is not the newest of its name."""
        status = self.seen.statuses.get(key)
        if status is None or status.id != container_id:
            return False
        pid = None if state is nri.ContainerState.STOPPED else pid or status.pid
        self.seen.put(replace(status, state=_STATES[state], pid=pid))
        return True

    def id_of(self, key: ContainerKey) -> str | None:
        """The runtime's id of the newest container of this name."""
        status = self.seen.statuses.get(key)
        return None if status is None else status.id

    def pid_of(self, key: ContainerKey) -> int | None:
        """The main process of the newest container of this name, while it runs."""
        status = self.seen.statuses.get(key)
        return None if status is None else status.pid

    # ---------------------------------------------------------------------- what the books need

    async def statuses(self) -> Sequence[ContainerStatus]:
        """See :class:`pinfold.node.node_containers.NodeContainers`."""
        return list(self.seen.statuses.values())

    def placement(
        self, pod: AdmittedPod, container: pod.Container, where: Whereabouts
    ) -> Placement:
        """Where a container belongs; its limits are the runtime's affair."""
        del pod, container
        return Placement(
            cpus=where.cpus,
            mems=where.mems,
            frozen=where.frozen,
            mixed=where.mixed,
            pooled=where.pooled,
        )

    async def adopt(self, status: ContainerStatus, placement: Placement) -> None:
        """See a container that runs placed; the runtime's record follows.

        Raises:
            CgroupError: it is not.
        """
        await self.cgroups.place(status.key, placement)
        if status.pid is not None:
            await self.cgroups.enter(status.key, status.pid)
        self._on_record.move(status.key, placement)

    @asynccontextmanager
    async def still(self, keys: Collection[ContainerKey] | None) -> AsyncIterator[None]:
        """See :class:`pinfold.node.node_containers.NodeContainers`.

        Before the runtime has shown what there is, nobody's cgroup is known: it would be
        confirmed that somebody has left CPUs who has not.
        """
        await self.shown.wait()
        async with self._on_record.still(keys):
            yield

    async def end(self, key: ContainerKey) -> None:
        """Look after a container no more: to end it is the kubelet's."""
        await self.cgroups.remove(key)
