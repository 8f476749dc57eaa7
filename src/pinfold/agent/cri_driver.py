"""Containers are those of a container runtime that the agent tells what to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import structlog

from pinfold.adapters.cgroup import claim_of_runtime
from pinfold.adapters.cgroup.runtime_cgroups import RuntimeCgroups
from pinfold.adapters.cri import (
    CgroupDriver,
    CriClient,
    CriRecord,
    CriRuntime,
    CriSettings,
    RuntimeInfo,
    pod_cgroup_parent,
    wait_for_runtime,
)
from pinfold.adapters.volumes import VolumeFolders
from pinfold.agent.log_bounds import log_companion
from pinfold.agent.parts import CRI_BATCH, LOGS, PODS, Claim, Companion, Parse, Ports, Report
from pinfold.config.agent import AgentConfig
from pinfold.core.values.cpuset import CPUSet
from pinfold.logs.folders import LogFolders
from pinfold.node.pods.containers import Containers
from pinfold.node.pods.manager import Manager
from pinfold.node.pods.runtime_containers import PooledCgroups, RuntimeContainers
from pinfold.node.recovery.recovery import Restored
from pinfold.node.recovery.resumption import take_over
from pinfold.node.runtime_ledger import RuntimeLedger
from pinfold.node.settings import ManagerSettings
from pinfold.ports.logs import PodLogs
from pinfold.ports.runtime import ContainerSpec
from pinfold.ports.volumes import Volumes

VOLUMES: Final = "volumes"

CRI_PATIENCE: Final = 60.0
"""Seconds for a runtime that is started at the same time, as when the machine boots."""

log = structlog.get_logger("pinfold")


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
        claim: Claim,
    ) -> None:
        self.claim: Claim | None = claim
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
        return (
            Companion("containerRuntime", follow, also, problem=problem, about=about),
            log_companion(self.runtime),
        )

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


async def open_cri(config: AgentConfig) -> CriDriver:
    """The runtime that the configuration names, once it answers.

    Raises:
        PortError: it does not, or its cgroups cannot be used.
    """
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
        log_root=state_dir / LOGS,
        volume_root=state_dir / VOLUMES,
        log_limits=config.logs,
        cgroup_parent=parent_of,
    )
    log.info("runtime", name=info.name, version=info.version, endpoint=client.address)
    volumes = VolumeFolders(state_dir / PODS)
    runtime = CriRuntime(client, settings)
    logs, claim = LogFolders(settings.log_root), claim_of_runtime(name)
    return CriDriver(
        cgroups, runtime, client, info, parent=parent, volumes=volumes, logs=logs, claim=claim
    )
