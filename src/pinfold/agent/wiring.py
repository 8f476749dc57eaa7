"""Puts a machine, a configuration, the ports and the manager together."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from pinfold.adapters.cgroup import remove_leftovers
from pinfold.adapters.machines.online import online_cpus
from pinfold.adapters.machines.source import open_machine
from pinfold.adapters.podfiles import PodFileFolder
from pinfold.adapters.shield import lower_shield
from pinfold.adapters.store import SQLiteStore
from pinfold.admission.admission import Decision, NodeState
from pinfold.agent.confinement import SHIELD, confine_system
from pinfold.agent.cpu_follower import stay_off_exclusive_cpus
from pinfold.agent.devices import open_plugins, plugin_companion
from pinfold.agent.drivers import Driver, ProcessDriver, open_driver
from pinfold.agent.machine_file import remember_machine, remembered_machine
from pinfold.agent.parts import PODS, Companion, Ports
from pinfold.agent.service import Agent
from pinfold.agent.state_files import StateFiles
from pinfold.config.agent import AgentConfig, device_plugin_dir, pod_resources_socket
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.known import KnownMachine, known_machine
from pinfold.core.pod.workload import Workload
from pinfold.core.pod.workload_api import workload_from_api
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.descriptors import raise_file_limit
from pinfold.linux.socket_places import is_stale
from pinfold.node.announcements import Announcements
from pinfold.node.bookkeeper import Observers
from pinfold.node.pod_resources import ManagedPodResources
from pinfold.node.pods.manager import Manager
from pinfold.node.recovery.recovery import LostRecordError, OnMismatch, restore
from pinfold.node.recovery.survivors import survivors
from pinfold.node.settings import ManagerSettings, OwnerOffline
from pinfold.planning.explain import explain_decision, explain_document
from pinfold.planning.planner import Planner
from pinfold.ports.cgroups import Partition
from pinfold.ports.errors import PortError
from pinfold.retry.loops import Loops
from pinfold.web.listening import listening

if TYPE_CHECKING:
    from pinfold.adapters.deviceplugin import DevicePluginServer

DATABASE: Final = "pinfold.db"

log = structlog.get_logger("pinfold")


async def start_agent(config: AgentConfig) -> None:
    """Put an agent together, take over what runs, and serve.

    What another agent may have is had before anything is changed; an agent that is refused leaves
    nothing behind.

    Raises:
        NodeError: a configuration that does not fit the machine.
        MachineError: the machine cannot be read.
        MismatchError: the record does not fit.
        PortError: the state directory, the cgroups or the socket cannot be used, or are another
            agent's.
    """
    raise_file_limit()
    known = known_machine(open_machine(None), remembered_machine(Path(config.own.state_dir)))
    planner = Planner(known.machine, config.node, rules=SOUND)
    # Before there is any other thread, such as those that talk to a runtime.
    if planner.node.cpu_policy is not None:
        stay_off_exclusive_cpus(planner.node.cpu_policy.reserved, CPUSet())
    driver = await open_driver(config)
    parts = _Parts(driver)
    try:
        if driver.claim is not None:
            driver.claim.take()
        async with listening(Path(config.own.socket)) as listener:
            _check_pod_resources(config)
            await _work(config, planner, known, parts, listener)
    finally:
        await parts.let_go(config)


class _Parts(Struct):
    """What a start has come to have, and what becomes of it at the end."""

    driver: Driver
    store: SQLiteStore | None = None
    plugins: DevicePluginServer | None = None
    agent: Agent | None = None
    has_ended: bool = False
    is_found_used: bool = False  # containers run that nobody knows: nothing is tidied up then

    async def let_go(self, config: AgentConfig) -> None:
        """Close all; without a pod, or after a start that was refused, leave nothing behind."""
        agent, store = self.agent, self.store
        is_refused = agent is None or not agent.has_served
        if agent is not None:
            is_empty = not agent.manager.pods.active
        else:
            is_empty = store is not None and store.is_new and not self.is_found_used
        remove = is_empty and (self.has_ended or is_refused)
        try:
            if remove and config.own.confine_system:
                await lower_shield(record=Path(config.own.state_dir) / SHIELD)
        finally:
            if self.plugins is not None:
                await self.plugins.close()
            await self.driver.runtime.close()
            try:
                await self.driver.cgroups.close(remove=remove)
            finally:
                if store is not None:
                    await store.close(undo=remove and is_refused)
                if self.driver.claim is not None:
                    self.driver.claim.release()


async def _work(
    config: AgentConfig,
    planner: Planner,
    known: KnownMachine,
    parts: _Parts,
    listener: socket.socket,
) -> None:
    """Serve, on what is this agent's alone by now."""
    driver, state_dir = parts.driver, Path(config.own.state_dir)
    store = SQLiteStore.open(state_dir / DATABASE, history_limit=config.own.history_limit)
    parts.store = store
    loops = Loops(_tell)
    parts.plugins = await open_plugins(config, lambda problem: _report(None, problem), loops)
    ports = Ports(
        cgroups=driver.cgroups,
        runtime=driver.runtime,
        store=store,
        files=PodFileFolder(state_dir / PODS),
        plugins=parts.plugins,
        loops=loops,
    )
    if config.own.confine_system:
        await confine_system(config, planner)
    try:
        parts.agent = await build_agent(config, planner, ports, driver, known)
    except LostRecordError:
        parts.is_found_used = True
        raise
    remember_machine(state_dir, known.machine)
    await parts.agent.run(ports, listener, describe_cgroups=driver.describe_cgroups)
    parts.has_ended = True


async def build_agent(
    config: AgentConfig,
    planner: Planner,
    ports: Ports,
    driver: Driver | None = None,
    known: KnownMachine | None = None,
) -> Agent:
    """An agent on these ports that has taken over what its record says.

    Raises:
        MismatchError: the record does not fit.
        PortError: the record or the cgroups cannot be used.
    """
    offline = planner.view.topology.cpus - online_cpus()
    empty = planner.empty_with(offline)
    restored = restore(
        await ports.store.load(),
        planner.node,
        empty,
        parse=_parse,
        on_mismatch=OnMismatch(config.own.on_mismatch),
        runtime=config.own.runtime,
        cgroups=_tree(config, driver),
        unplaced=CPUSet() if known is None else known.unplaced,
        arrived=CPUSet() if known is None else known.arrived,
        living=await survivors(ports.runtime, ports.cgroups),
    )
    if config.own.runtime != "process":
        await remove_leftovers(config.own.cgroup_parent, config.own.cgroup_name)
    settings = ManagerSettings(
        reserved_system_cpus=config.node.reserved_system_cpus,
        machine_memory=planner.view.memory_bytes or 0,
        page_sizes=tuple(sorted(planner.machine.hugepages)),
        cpu_cfs_quota=config.node.cpu_cfs_quota,
        cpu_cfs_period=round(config.node.cpu_cfs_quota_period * 1_000_000),
        partition=Partition(config.own.partition),
        owner_offline=OwnerOffline(config.own.owner_offline),
        kept_pods=config.own.max_pods_remembered,
        runtime=config.own.runtime,
        cgroups=_tree(config, driver),
    )
    mirror = StateFiles(Path(config.own.state_dir))

    def document(decision: Decision, state: NodeState) -> str:
        explanation = explain_decision(planner, state, decision)
        return json.dumps(explain_document(planner, explanation))

    async def describe(decision: Decision, state: NodeState) -> str:
        if decision.admitted:
            return document(decision, state)
        # What would admit it is tried out, which takes up to half a second on a large machine.
        return await asyncio.to_thread(document, decision, state)

    driver = driver or ProcessDriver(ports.cgroups, ports.runtime, {})
    node = replace(planner.node, devices_managed=ports.plugins is not None)
    manager = Manager(
        node,
        restored.state,
        containers=driver.containers(ports, settings, _report),
        store=ports.store,
        announcements=Announcements(ports.files, mirror.write, _report),
        settings=settings,
        observers=Observers(time.time, describe, _report, driver.pool_changed, online_cpus),
        plugins=ports.plugins,
    )
    companions = await driver.begin(manager, restored, parse=_parse)
    ports.files.retain(manager.pods.active)
    if ports.plugins is not None:
        folder = device_plugin_dir(config.own)
        companions = (*companions, plugin_companion(manager, ports.plugins, folder))
    if (place := pod_resources_socket(config.own)) is not None:
        companions = (*companions, _pod_resources(config, manager, place))
    return Agent(config, planner, manager, companions, loops=ports.loops, claim=driver.claim)


def _check_pod_resources(config: AgentConfig) -> None:
    """See that nobody serves where this agent is to, which is done last of all.

    Raises:
        PortError: somebody does.
    """
    if (place := pod_resources_socket(config.own)) is None:
        return
    elsewhere = "give this agent another podResourcesSocket"
    try:
        is_stale(place, who="another process", elsewhere=elsewhere)
    except OSError as error:
        raise PortError(f"{place}: {error.strerror}", elsewhere) from None


def _pod_resources(config: AgentConfig, manager: Manager, place: Path) -> Companion:
    async def run(stop: asyncio.Event) -> None:
        from pinfold.adapters.podresources import serve_pod_resources  # noqa: PLC0415 - heavy

        await serve_pod_resources(
            ManagedPodResources(manager),
            place,
            stop=stop,
            group=config.own.pod_resources_group,
            report=lambda problem: _report(None, problem),
        )

    return Companion("podResources", run, about=lambda: {"socket": str(place)}, must_start=True)


def _tree(config: AgentConfig, driver: Driver | None) -> str:
    """The cgroup tree of the containers, for the record; "" where the agent has none."""
    if driver is None or config.own.runtime == "nri":
        return ""
    if config.own.runtime == "cri":
        return config.own.cgroup_name
    return str(driver.describe_cgroups.get("path", ""))


def _parse(manifest: str) -> Workload:
    return workload_from_api(json.loads(manifest), admitted=True)


def _report(pod: str | None, problem: str) -> None:
    log.warning("problem", pod=pod, problem=problem)


def _tell(work: str, problem: str) -> None:
    if problem:
        log.error("failed", work=work, problem=problem)
    else:
        log.info("works again", work=work)
