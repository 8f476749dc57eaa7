"""An agent whose containers are plain processes of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import structlog

from pinfold.adapters.affinity import Affinity
from pinfold.adapters.cgroup import CgroupError, DomainSettings, open_cgroups
from pinfold.adapters.guardian import GuardianProcess
from pinfold.adapters.podfiles import PodFileFolder
from pinfold.adapters.process import ProcessRuntime
from pinfold.adapters.volumes import VolumeFolders
from pinfold.agent.claims import Claim
from pinfold.agent.own_pods import pods_agent
from pinfold.agent.service import Agent
from pinfold.agent.start import LOGS, PODS, Start
from pinfold.config.agent import AgentConfig
from pinfold.documents.status import CgroupTree
from pinfold.logs.folders import LogFolders
from pinfold.node.pods.containers import PodContainers
from pinfold.node.pods.manager import Manager
from pinfold.node.recovery.survivors import survivors
from pinfold.ports.cgroups import Cgroups, Undoable

CONTAINERS: Final = "containers"
DOMAINS: Final = "domains.json"
"""The file in the state directory with the cpusets above the tree that were domains (v1)."""

log = structlog.get_logger("pinfold")


@asynccontextmanager
async def process_agent(start: Start) -> AsyncIterator[Agent]:
    """An agent that has taken over what runs, and can serve; raises what ``start_agent`` does."""
    config, front = start.config, start.front
    logs = LogFolders(start.state_dir / LOGS)
    folder = start.state_dir / CONTAINERS
    runtime = front(ProcessRuntime(folder, log_root=logs.root, log_limits=config.logs))
    found, tree, described = open_tree(config)
    cgroups = front(found)
    async with start.alone(tree, cgroups, runtime) as listener:
        store = start.open_record()
        plugins = await start.open_plugins()
        files = front(PodFileFolder(start.state_dir / PODS))
        await start.confine_system()

        settings = start.settings(described.path or "")
        restored = await start.restore(store, settings.cgroups, await survivors(runtime, cgroups))
        volumes = VolumeFolders(start.state_dir / PODS)
        containers = PodContainers(cgroups, runtime, settings, runtime, volumes=volumes, logs=logs)
        guardian = None
        if isinstance(found, Undoable):
            guardian = front(GuardianProcess(start.state_dir, found.undoing()))
        books = start.books(
            restored, containers, store, files, settings, plugins=plugins, guardian=guardian
        )
        yield await pods_agent(
            start,
            Manager(books, containers, plugins, config.node.dynamic),
            runtime,
            restored,
            files=files,
            listener=listener,
            tree=tree,
            described=described,
        )


def open_tree(config: AgentConfig) -> tuple[Cgroups, Claim | None, CgroupTree]:
    """The cgroups of this machine; where none can be written, affinities of our own processes.

    Returns:
        The port, what no other agent may have of it (None: nothing that could be locked), and
        what ``/v1/status`` says of it.

    Raises:
        CgroupError: a cgroup parent was asked for and cannot be used.
    """
    try:
        own = config.own.cgroups
        domains = DomainSettings(
            Path(config.own.record.state_dir) / DOMAINS,
            has_root=not own.root_load_balance and own.partition != "member",
            relax_level=own.sched_relax_domain_level,
        )
        cgroups = open_cgroups(own.cgroup_parent, own.cgroup_name, domains=domains)
    except CgroupError as error:
        if config.own.cgroups.cgroup_parent is not None:
            raise
        affinity = Affinity()
        limitations = list(affinity.limitations())
        log.warning("weaker", problem=str(error), limitations=limitations)
        return affinity, None, CgroupTree(kind="affinity", limitations=limitations)
    return cgroups, cgroups.claim, cgroups.describe()
