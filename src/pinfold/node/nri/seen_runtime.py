"""A runtime that runs containers for somebody else: it can be looked at, and not be asked for any.

What :class:`pinfold.node.nri.container_lifecycle.ContainerLifecycle` has been told, in the form in
which the reconciliation and the audit ask a runtime.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final, NoReturn

from msgspec.structs import replace

from pinfold.node.pods.containers import Containers
from pinfold.node.runtime_ledger import RuntimeLedger
from pinfold.node.settings import ManagerSettings
from pinfold.ports import nri
from pinfold.ports.cgroups import Cgroups, Placement
from pinfold.ports.errors import ContainerKey, RuntimeFailedError
from pinfold.ports.nri import Container
from pinfold.ports.runtime import ContainerSpec, ContainerState, ContainerStatus, Runtime

_STATES: Final = {
    nri.ContainerState.CREATED: ContainerState.CREATED,
    nri.ContainerState.PAUSED: ContainerState.RUNNING,
    nri.ContainerState.RUNNING: ContainerState.RUNNING,
    nri.ContainerState.STOPPED: ContainerState.EXITED,
    nri.ContainerState.UNKNOWN: ContainerState.CREATED,
}


class SeenRuntimeContainers(Containers):
    """Moves the containers of such a runtime, and lets its record follow.

    Args:
        cgroups: the cgroups that the runtime makes.
        runtime: what it has told.
        settings: see the class.
        ledger: what it has on record.
    """

    def __init__(
        self, cgroups: Cgroups, runtime: Runtime, settings: ManagerSettings, ledger: RuntimeLedger
    ) -> None:
        super().__init__(cgroups, runtime, settings)
        self._ledger = ledger

    async def adopt(self, status: ContainerStatus, placement: Placement) -> None:
        """See the base class."""
        await super().adopt(status, placement)
        self._ledger.move(status.key, placement.cpus)


class SeenRuntime:
    """The :class:`pinfold.ports.runtime.Runtime` of containers that a kubelet starts."""

    def __init__(self) -> None:
        self._newest: dict[ContainerKey, ContainerStatus] = {}

    def put(self, key: ContainerKey, seen: Container) -> ContainerStatus:
        """Take note of a container, which replaces an earlier attempt of the same name."""
        before = self._newest.get(key)
        attempt = 0
        if before is not None:
            attempt = before.attempt + (before.id != seen.id)
        status = ContainerStatus(
            id=seen.id, key=key, attempt=attempt, state=_STATES[seen.state], pid=seen.pid
        )
        self._newest[key] = status
        return status

    def change(
        self,
        key: ContainerKey,
        container_id: str,
        state: nri.ContainerState,
        pid: int | None = None,
    ) -> ContainerStatus | None:
        """Take note of a change; None when that container is not the newest of its name."""
        status = self._newest.get(key)
        if status is None or status.id != container_id:
            return None
        pid = None if state is nri.ContainerState.STOPPED else pid or status.pid
        self._newest[key] = status = replace(status, state=_STATES[state], pid=pid)
        return status

    def drop(self, key: ContainerKey) -> None:
        """A container is forgotten."""
        self._newest.pop(key, None)

    def clear(self) -> None:
        """Nothing is known any more."""
        self._newest.clear()

    def id_of(self, key: ContainerKey) -> str | None:
        """The runtime's id of the newest container of this name."""
        status = self._newest.get(key)
        return None if status is None else status.id

    def pid_of(self, key: ContainerKey) -> int | None:
        """The main process of the newest container of this name, while it runs."""
        status = self._newest.get(key)
        return None if status is None else status.pid

    async def containers(self) -> Sequence[ContainerStatus]:
        """See :class:`pinfold.ports.runtime.Runtime`."""
        return list(self._newest.values())

    async def exits(self) -> AsyncIterator[ContainerStatus]:
        """None is ever told here: nobody waits for them."""
        await asyncio.get_running_loop().create_future()
        nobody: tuple[ContainerStatus, ...] = ()
        for status in nobody:
            yield status

    async def create(self, spec: ContainerSpec) -> ContainerStatus:
        """Refuse."""
        self._refuse(str(spec.key))

    async def start(self, container_id: str) -> ContainerStatus:
        """Refuse."""
        self._refuse(container_id)

    async def signal(self, container_id: str, signal: int) -> None:
        """Refuse."""
        del signal
        self._refuse(container_id)

    async def remove(self, container_id: str) -> None:
        """Refuse."""
        self._refuse(container_id)

    async def close(self) -> None:
        """There is nothing to let go of."""

    def _refuse(self, what: str) -> NoReturn:
        raise RuntimeFailedError(
            f"container {what}: this agent looks after the containers of a kubelet",
            "create and delete pods through Kubernetes",
        )
