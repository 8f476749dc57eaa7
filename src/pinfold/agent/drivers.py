"""What runs containers: the agent itself, a runtime that it tells to, or one for a kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import structlog

from pinfold.agent.log_bounds import log_companion
from pinfold.agent.parts import CRI_BATCH, PODS, Companion, Parse, Ports, Report
from pinfold.config.agent import AgentConfig
from pinfold.core.cpuset import CPUSet
from pinfold.logs.folders import LogFolders
from pinfold.node.cgroup_ports import Cgroups
from pinfold.node.containers import Containers
from pinfold.node.log_ports import BoundedLogs, PodLogs
from pinfold.node.manager import Manager
from pinfold.node.ports import Runtime
from pinfold.node.recovery import Restored, take_over
from pinfold.node.settings import ManagerSettings
from pinfold.node.volume_ports import Volumes

if TYPE_CHECKING:
    from pinfold.adapters.cgroup.runtime_cgroups import RuntimeCgroups
    from pinfold.adapters.cri import CriClient, CriRuntime, RuntimeInfo
    from pinfold.node.ports import ContainerSpec, ProcessAdopter
    from pinfold.node.runtime_ledger import RuntimeLedger

CONTAINERS: Final = "containers"
LOGS: Final = "logs"
VOLUMES: Final = "volumes"

CRI_PATIENCE: Final = 60.0
"""Seconds for a runtime that is started at the same time, as when the machine boots."""

log = structlog.get_logger("pinfold")


class Driver(Protocol):
    """What runs the containers, and how the manager deals with it."""

    @property
    def cgroups(self) -> Cgroups:
        """The port."""

    @property
    def runtime(self) -> Runtime:
        """The port."""

    @property
    def describe_cgroups(self) -> Mapping[str, Any]:
        """What ``/v1/status`` says of the cgroups."""

    def containers(self, ports: Ports, settings: ManagerSettings, report: Report) -> Containers:
        """How the manager starts and ends them, on ports that may stand before the own ones."""

    def pool_changed(self, pool: CPUSet) -> None:
        """The shared pool is this now."""

    async def begin(
        self, manager: Manager, restored: Restored, *, parse: Parse
    ) -> Sequence[Companion]:
        """Let the manager go on from its record; what has to go on beside it.

        Raises:
            PortError: the record, the cgroups or the runtime cannot be used.
        """


async def open_driver(config: AgentConfig) -> Driver:
    """What the configuration asks for.

    Raises:
        PortError: it is not there, or cannot be used.
    """
    if config.own.runtime == "cri":
        return await _open_cri(config)
    if config.own.runtime == "nri":
        from pinfold.adapters.cgroup.runtime_cgroups import RuntimeCgroups  # noqa: PLC0415
        from pinfold.agent.nri_driver import NriDriver  # noqa: PLC0415 - one of three

        return NriDriver(config, RuntimeCgroups())
    return open_processes(config)


# -------------------------------------------------------------------------------------- processes


class ProcessDriver:
    """Containers are plain processes of the agent."""

    def __init__(
        self,
        cgroups: Cgroups,
        runtime: Runtime,
        describe_cgroups: Mapping[str, Any],
        volumes: Volumes | None = None,
        logs: PodLogs | None = None,
    ) -> None:
        self.cgroups = cgroups
        self.runtime = runtime
        self.describe_cgroups = describe_cgroups
        self._volumes = volumes
        self._logs = logs

    def containers(self, ports: Ports, settings: ManagerSettings, report: Report) -> Containers:
        """See :class:`Driver`."""
        del report
        adopter = cast("ProcessAdopter", ports.runtime)
        return Containers(
            ports.cgroups,
            ports.runtime,
            settings,
            adopter,
            volumes=self._volumes,
            logs=self._logs,
        )

    def pool_changed(self, pool: CPUSet) -> None:
        """The processes are in the pool's own cgroup: there is nobody to tell."""

    async def begin(
        self, manager: Manager, restored: Restored, *, parse: Parse
    ) -> Sequence[Companion]:
        """See :class:`Driver`."""
        del parse
        await take_over(manager, restored)
        # Asked of what it was made with: a test may have put something in front of the runtime.
        return (log_companion(self.runtime),) if isinstance(self.runtime, BoundedLogs) else ()


def open_processes(config: AgentConfig) -> ProcessDriver:
    """The cgroups of this machine; where none can be written, affinities of our own processes.

    Raises:
        CgroupError: a cgroup parent was asked for and cannot be used.
    """
    from pinfold.adapters.affinity import Affinity  # noqa: PLC0415 - one of the two
    from pinfold.adapters.cgroup import CgroupError, open_cgroups  # noqa: PLC0415
    from pinfold.adapters.process import ProcessRuntime  # noqa: PLC0415 - one of three
    from pinfold.adapters.volumes import VolumeFolders  # noqa: PLC0415 - two of three

    state_dir = Path(config.own.state_dir)
    logs = LogFolders(state_dir / LOGS)
    runtime = ProcessRuntime(state_dir / CONTAINERS, log_root=logs.root, log_limits=config.logs)
    volumes = VolumeFolders(state_dir / PODS)
    try:
        cgroups = open_cgroups(config.own.cgroup_parent, config.own.cgroup_name)
    except CgroupError as error:
        if config.own.cgroup_parent is not None:
            raise
        affinity = Affinity()
        limitations = list(affinity.limitations())
        log.warning("weaker", problem=str(error), limitations=limitations)
        described = {"kind": "affinity", "limitations": limitations}
        return ProcessDriver(affinity, runtime, described, volumes, logs)
    return ProcessDriver(cgroups, runtime, cgroups.describe(), volumes, logs)


# -------------------------------------------------------------------------------------------- CRI


class CriDriver:
    """Containers are those of a container runtime that the agent tells what to do."""

    def __init__(  # noqa: PLR0913 - the parts, one each
        self,
        cgroups: RuntimeCgroups,
        runtime: CriRuntime,
        client: CriClient,
        info: RuntimeInfo,
        *,
        parent: Callable[[str], str],
        volumes: Volumes,
        logs: PodLogs,
    ) -> None:
        from pinfold.adapters.cri import CriRecord  # noqa: PLC0415 - heavy

        self.cgroups = cgroups
        self.runtime = runtime
        self.describe_cgroups = cgroups.describe()
        self._client = client
        self._parent = parent
        self._volumes = volumes
        self._logs = logs
        self._info = info
        self._record = CriRecord(client)
        self._ledger: RuntimeLedger | None = None

    def containers(self, ports: Ports, settings: ManagerSettings, report: Report) -> Containers:
        """See :class:`Driver`."""
        from pinfold.node.runtime_containers import PooledCgroups, RuntimeContainers  # noqa: PLC0415
        from pinfold.node.runtime_ledger import RuntimeLedger  # noqa: PLC0415

        cgroups = cast("PooledCgroups", ports.cgroups)
        self._ledger = RuntimeLedger(cgroups, report, batch=CRI_BATCH, gate=cgroups.starting)
        return RuntimeContainers(
            cgroups,
            ports.runtime,
            settings,
            record=self._record,
            ledger=self._ledger,
            parent=self._parent,
            volumes=self._volumes,
            logs=self._logs,
        )

    def pool_changed(self, pool: CPUSet) -> None:
        """See :class:`Driver`."""
        if self._ledger is not None:
            self._ledger.follow(pool)

    async def begin(
        self, manager: Manager, restored: Restored, *, parse: Parse
    ) -> Sequence[Companion]:
        """See :class:`Driver`."""
        del parse
        await take_over(manager, restored)
        ledger = self._ledger
        assert ledger is not None  # noqa: S101 - the manager has asked for its containers

        async def follow(stop: asyncio.Event) -> None:
            del stop
            await ledger.run(self._record)

        async def tell(stop: asyncio.Event) -> None:
            del stop
            await self._tell_when_away()

        def about() -> Mapping[str, Any]:
            return {
                "name": self._info.name,
                "version": self._info.version,
                "endpoint": self._client.address,
                "behind": ledger.behind,
                "problem": self.runtime.problem,
            }

        def problem() -> str:
            return self.runtime.problem

        also = {"container runtime's absence": tell}
        return (Companion("containerRuntime", follow, also, problem=problem, about=about),)

    async def _tell_when_away(self) -> None:
        told = ""
        while True:
            if (problem := self.runtime.problem) != told:
                told = problem
                if problem:
                    log.warning("runtime", name=self._info.name, problem=problem)
                else:
                    log.info("runtime", name=self._info.name, answers="again")
            await asyncio.sleep(1.0)


async def _open_cri(config: AgentConfig) -> CriDriver:
    from pinfold.adapters.cgroup.runtime_cgroups import RuntimeCgroups  # noqa: PLC0415
    from pinfold.adapters.cri import (  # noqa: PLC0415 - heavy
        CgroupDriver,
        CriRuntime,
        CriSettings,
        pod_cgroup_parent,
        wait_for_runtime,
    )
    from pinfold.adapters.volumes import VolumeFolders  # noqa: PLC0415 - two of three

    client, info = await wait_for_runtime(
        config.own.runtime_endpoint or "",
        patience=CRI_PATIENCE,
        report=lambda problem: log.warning("waiting", runtime="cri", problem=problem),
    )
    if info.not_ready:
        log.warning("runtime", name=info.name, problem=info.not_ready)
    driver = info.cgroup_driver or CgroupDriver.CGROUPFS
    name = config.own.cgroup_name
    cgroups = RuntimeCgroups(root=pod_cgroup_parent(name, "", driver).rpartition("/")[0])

    def parent(pod_uid: str) -> str:
        return pod_cgroup_parent(name, pod_uid, driver)

    def parent_of(spec: ContainerSpec) -> str:
        return parent(spec.key.pod_uid)

    state_dir = Path(config.own.state_dir)
    settings = CriSettings(
        log_root=state_dir / LOGS, volume_root=state_dir / VOLUMES, cgroup_parent=parent_of
    )
    log.info("runtime", name=info.name, version=info.version, endpoint=client.address)
    volumes = VolumeFolders(state_dir / PODS)
    runtime = CriRuntime(client, settings)
    logs = LogFolders(settings.log_root)
    return CriDriver(cgroups, runtime, client, info, parent=parent, volumes=volumes, logs=logs)
