"""An agent whose containers are those of a container runtime that it tells what to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from pinfold.adapters.cgroup import claim_of_runtime, remove_leftovers
from pinfold.adapters.cgroup.runtime.runtime_cgroups import RuntimeCgroups
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
from pinfold.adapters.podfiles import PodFileFolder
from pinfold.adapters.volumes import VolumeFolders
from pinfold.agent.loops.runnables import Runnable
from pinfold.agent.own_pods import pods_agent
from pinfold.agent.reports import report
from pinfold.agent.service import Agent
from pinfold.agent.start import CRI_BATCH, LOGS, PODS, Start
from pinfold.documents.status import ContainerRuntime
from pinfold.logs.folders import LogFolders
from pinfold.node.pods.cri_containers import CriContainers
from pinfold.node.pods.manager import Manager
from pinfold.node.recorded_cpusets import RecordedCpusets
from pinfold.node.recovery.survivors import survivors

VOLUMES: Final = "volumes"

CGROUP_V2: Final = 2

CRI_PATIENCE: Final = 60.0
"""Seconds for a runtime that is started at the same time, as when the machine boots."""

log = structlog.get_logger("pinfold")


@asynccontextmanager
async def cri_agent(start: Start) -> AsyncIterator[Agent]:
    """An agent that has taken over what runs, and can serve; raises what ``start_agent`` does."""
    config, front = start.config, start.front
    client, info = await wait_for_runtime(
        config.own.containers.runtime_endpoint or "",
        patience=CRI_PATIENCE,
        report=lambda problem: log.warning("waiting", runtime="cri", problem=problem),
    )
    if info.not_ready:
        log.warning("runtime", name=info.name, problem=info.not_ready)
    log.info("runtime", name=info.name, version=info.version, endpoint=client.address)

    name, driver = config.own.cgroups.cgroup_name, info.cgroup_driver or CgroupDriver.CGROUPFS

    def parent(pod_uid: str) -> str:
        return pod_cgroup_parent(name, pod_uid, driver)

    found = RuntimeCgroups(parent=parent)
    cgroups, described = front(found), found.describe()
    logs = LogFolders(start.state_dir / LOGS)
    cri_settings = CriSettings(
        log_root=logs.root,
        volume_root=start.state_dir / VOLUMES,
        log_limits=config.logs,
        cgroup_parent=lambda spec: parent(spec.key.pod_uid),
        protects_memory=described.version == CGROUP_V2,
    )
    runtime, tree = front(CriRuntime(client, cri_settings)), claim_of_runtime(name)
    async with start.alone(tree, cgroups, runtime) as listener:
        store = start.open_record()
        plugins = await start.open_plugins()
        files = front(PodFileFolder(start.state_dir / PODS))
        await start.confine_system()

        settings = start.settings(name)
        restored = await start.restore(store, name, await survivors(runtime, cgroups))
        await remove_leftovers(config.own.cgroups.cgroup_parent, name)
        record = CriRecord(client)
        on_record = RecordedCpusets(cgroups, report, batch=CRI_BATCH, gate=cgroups.starting)
        containers = CriContainers(
            cgroups,
            runtime,
            settings,
            record=record,
            on_record=on_record,
            parent=parent,
            volumes=VolumeFolders(start.state_dir / PODS),
            logs=logs,
        )
        books = start.books(
            restored,
            containers,
            store,
            files,
            settings,
            plugins=plugins,
            pool_changed=on_record.follow,
        )
        yield await pods_agent(
            start,
            Manager(books, containers, plugins, config.node.dynamic),
            runtime,
            restored,
            _told_runtime(client, info, runtime, record, on_record),
            files=files,
            listener=listener,
            tree=tree,
            described=described,
        )


def _told_runtime(
    client: CriClient,
    info: RuntimeInfo,
    runtime: CriRuntime,
    record: CriRecord,
    on_record: RecordedCpusets,
) -> Runnable:
    """Lets the runtime's record follow, and tells when the runtime is away."""

    async def follow() -> None:
        await on_record.run(record)

    async def tell_when_away() -> None:
        told = ""
        while True:
            if (problem := runtime.problem) != told:
                told = problem
                if problem:
                    log.warning("runtime", name=info.name, problem=problem)
                else:
                    log.info("runtime", name=info.name, answers="again")
            await asyncio.sleep(1.0)

    def about() -> ContainerRuntime:
        return ContainerRuntime(
            name=info.name,
            version=info.version,
            endpoint=client.address,
            behind=on_record.behind,
            problem=runtime.problem,
        )

    also = {"container runtime's absence": tell_when_away}
    return Runnable("containerRuntime", follow, also, problem=lambda: runtime.problem, about=about)
