"""The composition root: wires a machine, a configuration, the ports and the manager to an agent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import structlog

from pinfold.adapters.kubernetes.manifest_folder import ManifestFolder, StaticPod
from pinfold.adapters.podfiles import PodFileFolder
from pinfold.adapters.process import ProcessRuntime
from pinfold.adapters.shield import lower_shield, raise_shield
from pinfold.adapters.statefile.files import StateFileError, write_state_file
from pinfold.adapters.store import SQLiteStore
from pinfold.adapters.sysfs.online import online_cpus
from pinfold.adapters.sysfs.source import open_machine
from pinfold.adapters.systemd.notify import Notifier
from pinfold.config.agent import AgentConfig
from pinfold.core.cpuset import CPUSet
from pinfold.core.kubelet_faults import SOUND
from pinfold.core.machine_document import machine_document
from pinfold.core.pod_api import PodError
from pinfold.core.workload import Workload
from pinfold.core.workload_api import workload_from_api
from pinfold.node.admission import Decision, NodeState
from pinfold.node.announcements import Announcements
from pinfold.node.containers import Containers
from pinfold.node.manager import Manager, Observers
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.ports import Cgroups, Partition, PortError, Watchful
from pinfold.node.reconciler import Drift, reconcile
from pinfold.node.records import PodRecord
from pinfold.node.recovery import OnMismatch, restore, take_over
from pinfold.node.settings import ManagerSettings
from pinfold.planning.explain import explain_decision, explain_document
from pinfold.planning.planner import Planner
from pinfold.state.ledger import Ledger
from pinfold.state.restore import to_checkpoint
from pinfold.web.app import make_app
from pinfold.web.server import serve

LOOK_PERIOD: Final = 0.25
"""Seconds between looks at the manifests and the online CPUs; a look takes some 50 us."""

DATABASE: Final = "pinfold.db"
MIRROR: Final = "cpu_manager_state"
CONTAINERS: Final = "containers"
POD_FILES: Final = "pods"
SHIELD: Final = "shield.json"

log = structlog.get_logger("pinfold")


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside world of an agent; a test may put something in front of any of them."""

    cgroups: Cgroups
    runtime: ProcessRuntime
    store: SQLiteStore
    files: PodFileFolder


class Agent:
    """A node that is looked after; also what the local API serves."""

    def __init__(self, config: AgentConfig, planner: Planner, manager: Manager) -> None:
        self.config = config
        self.planner = planner
        self.manager = manager
        self.started_at = time.time()
        self._stop = asyncio.Event()
        self._look_now = asyncio.Event()
        self._ready = False
        self._folder = (
            None if config.static_pod_path is None else ManifestFolder(config.static_pod_path)
        )
        self._about: dict[str, Any] = {}

    # ------------------------------------------------------------------- what the API asks for

    async def apply(
        self, manifest: Mapping[str, Any], *, source: str, pid: int | None = None
    ) -> PodRecord:
        """Admit the pod of a manifest.

        Raises:
            PodError: it is no pod, or not a valid one.
            NameTakenError: there is a pod of that name.
            PortError: it could not be written down, or no room could be made.
        """
        named = _with_uid(manifest)
        workload = workload_from_api(named)
        return await self.manager.admit(
            workload, manifest=json.dumps(named), source=source, pid=pid
        )

    async def delete(self, name: str, *, grace: float | None) -> None:
        """End a pod; see :meth:`pinfold.node.manager.Manager.release`."""
        await self.manager.release(name, grace=grace)

    async def reconcile(self) -> list[Drift]:
        """Look at the kernel now."""
        return await reconcile(self.manager)

    def problems(self) -> Sequence[str]:
        """Why the agent is not ready."""
        return () if self._ready else ("the agent is starting",)

    def machine(self) -> Mapping[str, Any]:
        """The machine, as ``pinfold topology -o json`` prints it."""
        return machine_document(self.planner.machine, self.planner.view)

    def about(self) -> Mapping[str, Any]:
        """What this agent is."""
        config = self.config.node
        return {
            "agent": {
                "version": version("pinfold"),
                "pid": os.getpid(),
                "started_at": self.started_at,
                "state_dir": self.config.own.state_dir,
                "config_file": None if self.config.file is None else str(self.config.file),
                **self._about,
            },
            "config": {
                "cpuManagerPolicy": config.cpu_manager_policy,
                "cpuManagerPolicyOptions": dict(config.cpu_manager_policy_options),
                "topologyManagerPolicy": config.topology_manager_policy,
                "topologyManagerScope": config.topology_manager_scope,
                "topologyManagerPolicyOptions": dict(config.topology_manager_policy_options),
                "reservedSystemCPUs": str(config.reserved_system_cpus),
            },
        }

    # ------------------------------------------------------------------------------- the loops

    async def run(self, ports: Ports, *, describe_cgroups: Mapping[str, Any]) -> None:
        """Serve until SIGTERM or SIGINT; all containers run on.

        Raises:
            PortError: the socket cannot be had.
        """
        self._about["cgroups"] = dict(describe_cgroups)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        notifier = Notifier()
        tasks = [
            asyncio.create_task(self.manager.exits.follow(ports.runtime.exits()), name="exits"),
            asyncio.create_task(self._reconcile_for_ever(), name="reconcile"),
            asyncio.create_task(self._look_for_ever(), name="look"),
            asyncio.create_task(self._watch_for_ever(ports.cgroups), name="watch"),
            asyncio.create_task(self._sign_of_life(notifier), name="watchdog"),
            asyncio.create_task(
                serve(make_app(self), Path(self.config.own.socket), stop=self._stop), name="api"
            ),
        ]
        self._ready = True
        notifier.ready(f"{len(self.manager.pods.active)} pods")
        log.info(
            "serving",
            socket=self.config.own.socket,
            pool=str(self.manager.pool),
            pods=len(self.manager.pods.active),
        )
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        lasting = {task for task in tasks if task.get_name() != "watch"}
        done, _ = await asyncio.wait({stopped, *lasting}, return_when=asyncio.FIRST_COMPLETED)
        self._stop.set()
        notifier.stopping()
        failures = [t.exception() for t in done if not t.cancelled() and t.exception()]
        await asyncio.wait({tasks[-1]}, timeout=3)
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.gather(*tasks, stopped, return_exceptions=True)
        await self.manager.close()
        log.info("stopped", containers="run on" if self.manager.pods.active else "none")
        for failure in failures:
            if failure is not None:
                raise failure

    async def _reconcile_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._period)
            await self._guarded(self._reconcile_once)

    async def _reconcile_once(self) -> None:
        await reconcile(self.manager)

    async def _watch_for_ever(self, cgroups: Cgroups) -> None:
        """Repair at once what somebody else changes; the period does what is not noticed."""
        if not isinstance(cgroups, Watchful):
            return
        try:
            async for _ in cgroups.changes():
                await self._guarded(self._reconcile_once)
                # Somebody who writes all the time is answered ten times a second.
                await asyncio.sleep(0.1)
        except PortError as error:
            log.warning("unwatched", problem=str(error), period=self._period)

    @property
    def _period(self) -> float:
        return self.config.node.cpu_manager_reconcile_period or 10.0

    async def _look_for_ever(self) -> None:
        online = CPUSet()
        while True:
            now = online_cpus()
            if now != online:
                online = now
                await self._guarded(self._cpus_changed, now)
            if self._folder is not None:
                changed, problems = self._folder.look()
                for file, problem in problems.items():
                    log.error("manifest", file=str(file), problem=problem)
                if changed:
                    await self._guarded(self._follow_manifests)
            await asyncio.sleep(LOOK_PERIOD)

    async def _cpus_changed(self, online: CPUSet) -> None:
        offline = self.planner.view.topology.cpus - online
        if offline == self.manager.state.offline:
            return
        log.warning("cpus", offline=str(offline) or "none")
        await self.manager.set_offline(offline)
        await reconcile(self.manager)

    async def _follow_manifests(self) -> None:
        """Make the pods of the folder those that run, and end those that left it."""
        folder = self._folder
        if folder is None:
            return
        wanted = folder.pods
        source = str(folder.path)
        ours = {r.uid for r in self.manager.pods.records() if r.source == source}
        for uid in ours - wanted.keys():
            await self.manager.release(uid)
        for uid, pod in wanted.items():
            if uid not in ours:
                await self._guarded(self._admit_static, pod, source)

    async def _admit_static(self, pod: StaticPod, source: str) -> None:
        try:
            record = await self.apply(pod.manifest, source=source)
        except (PodError, NameTakenError) as error:
            log.error("manifest", file=str(pod.file), problem=str(error))
            return
        if record.message:
            log.warning("rejected", pod=record.name, reason=record.reason, message=record.message)

    async def _sign_of_life(self, notifier: Notifier) -> None:
        while True:
            notifier.alive()
            await asyncio.sleep(notifier.watchdog or 3600.0)

    async def _guarded(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:  # noqa: ANN401
        """The outside world may fail; the loop goes on and says so."""
        try:
            await work(*args)
        except (PortError, UnknownPodError) as error:
            log.error("failed", problem=str(error))


async def start_agent(config: AgentConfig) -> None:
    """Put an agent together, take over what runs, and serve.

    Raises:
        NodeError: a configuration that does not fit the machine.
        MachineError: the machine cannot be read.
        MismatchError: the record does not fit.
        PortError: the state directory, the cgroups or the socket cannot be used.
    """
    machine = open_machine(None)
    planner = Planner(machine, config.node, rules=SOUND)
    _stay_off_exclusive_cpus(planner)
    state_dir = Path(config.own.state_dir)
    store = SQLiteStore.open(state_dir / DATABASE, history_limit=config.own.history_limit)
    cgroups, description = choose_cgroups(config)
    ports = Ports(
        cgroups=cgroups,
        runtime=ProcessRuntime(state_dir / CONTAINERS),
        store=store,
        files=PodFileFolder(state_dir / POD_FILES),
    )
    empty = False
    try:
        if config.own.confine_system:
            await _confine_system(config, planner)
        agent = await build_agent(config, planner, ports)
        await agent.run(ports, describe_cgroups=description)
        empty = not agent.manager.pods.active
        if config.own.confine_system and empty:
            await lower_shield(record=state_dir / SHIELD)
    finally:
        await ports.runtime.close()
        await ports.cgroups.close(remove=empty)
        await store.close()


async def build_agent(config: AgentConfig, planner: Planner, ports: Ports) -> Agent:
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
    )
    settings = ManagerSettings(
        reserved_system_cpus=config.node.reserved_system_cpus,
        machine_memory=planner.view.memory_bytes or 0,
        cpu_cfs_quota=config.node.cpu_cfs_quota,
        cpu_cfs_period=round(config.node.cpu_cfs_quota_period * 1_000_000),
        partition=Partition(config.own.partition),
        kept_pods=config.own.max_pods_remembered,
    )
    mirror = Path(config.own.state_dir) / MIRROR

    def describe(decision: Decision, state: NodeState) -> str:
        explanation = explain_decision(planner, state, decision)
        return json.dumps(explain_document(planner, explanation))

    manager = Manager(
        planner.node,
        restored.state,
        containers=Containers(ports.cgroups, ports.runtime, settings, ports.runtime),
        store=ports.store,
        announcements=Announcements(ports.files, lambda ledger: _mirror(mirror, ledger), _report),
        settings=settings,
        observers=Observers(time.time, describe, _report),
    )
    await take_over(manager, restored)
    return Agent(config, planner, manager)


def choose_cgroups(config: AgentConfig) -> tuple[Cgroups, Mapping[str, Any]]:
    """The cgroups of this machine; where none can be written, affinities of our own processes.

    Raises:
        CgroupError: a cgroup parent was asked for and cannot be used.
    """
    from pinfold.adapters.affinity import Affinity  # noqa: PLC0415 - one of the two
    from pinfold.adapters.cgroup import CgroupError, open_cgroups  # noqa: PLC0415

    try:
        cgroups = open_cgroups(config.own.cgroup_parent, config.own.cgroup_name)
    except CgroupError as error:
        if config.own.cgroup_parent is not None:
            raise
        affinity = Affinity()
        log.warning("weaker", problem=str(error), limitations=affinity.limitations())
        return affinity, {"kind": "affinity", "limitations": list(affinity.limitations())}
    return cgroups, cgroups.describe()


async def _confine_system(config: AgentConfig, planner: Planner) -> None:
    """Move everything else on this machine to the reserved CPUs.

    Raises:
        ShieldError: it cannot be done; as far as it was, ``pinfold shield --off`` undoes it.
    """
    policy = planner.node.cpu_policy
    reserved = config.node.reserved_system_cpus if policy is None else policy.reserved
    cpus = online_cpus() & planner.view.topology.cpus - reserved
    if not reserved or not cpus:
        log.warning("unconfined", problem="no CPUs are reserved for the system, or all are")
        return
    parent = config.own.cgroup_parent or "/"
    keep = (f"{parent.rstrip('/')}/{config.own.cgroup_name}",)
    record = Path(config.own.state_dir) / SHIELD
    report = await raise_shield(cpus, keep=keep, record=record)
    log.info("confined", system=str(reserved), moved=report.moved, left=list(report.left))


def _stay_off_exclusive_cpus(planner: Planner) -> None:
    """Pin this process, and so every supervisor that it starts, to CPUs that nobody will own."""
    policy = planner.node.cpu_policy
    if policy is None:
        return
    allowed = CPUSet(os.sched_getaffinity(0))
    if mine := policy.reserved & allowed:
        os.sched_setaffinity(0, mine)


def _parse(manifest: str) -> Workload:
    return workload_from_api(json.loads(manifest))


def _with_uid(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The manifest with a uid, as the API server gives one."""
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping) or metadata.get("uid"):
        return manifest
    return {**manifest, "metadata": {**metadata, "uid": str(uuid.uuid4())}}


def _mirror(path: Path, ledger: Ledger) -> None:
    try:
        write_state_file(path, to_checkpoint(ledger).encode())
    except StateFileError as error:
        raise PortError(str(error)) from None


def _report(pod: str | None, problem: str) -> None:
    log.warning("problem", pod=pod, problem=problem)
