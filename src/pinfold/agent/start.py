"""The steps that every start of an agent takes, whatever runs the containers.

:mod:`pinfold.agent.process`, :mod:`pinfold.agent.cri` and :mod:`pinfold.agent.nri` are the three
ways of an agent, each one function that is read from top to bottom.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import structlog
from msgspec.structs import replace

from pinfold.adapters.machines.online import hotplug_events, online_cpus
from pinfold.adapters.machines.source import open_machine
from pinfold.adapters.podfiles import AssignmentFolders, PodFileFolder
from pinfold.adapters.shield import lower_shield, raise_shield
from pinfold.adapters.store import DATABASE, SQLiteStore
from pinfold.admission.admission import Node, NodeState
from pinfold.admission.decision import Decision
from pinfold.agent.claims import Claim, ClaimKeeper
from pinfold.agent.front import Front, nothing_in_front
from pinfold.agent.loops.background import RECONCILE_PERIOD, Background
from pinfold.agent.loops.controlling import controlled, controls_node
from pinfold.agent.loops.cpu_follower import CPUFollower, stay_off_exclusive_cpus
from pinfold.agent.loops.following import followers
from pinfold.agent.loops.hugepages import HugepageFollower
from pinfold.agent.loops.observing import observation, observes
from pinfold.agent.loops.runnables import Runnable, check_pod_resources, pod_resources
from pinfold.agent.machine_file import remember_machine, remembered_machine
from pinfold.agent.pods import Pods
from pinfold.agent.reports import report, report_of_node, report_of_work
from pinfold.agent.service import Agent
from pinfold.agent.state_files import StateFiles
from pinfold.agent.workloads import recorded_workload
from pinfold.config.agent import AgentConfig, device_plugin_dir, pod_resources_socket
from pinfold.config.node_settings import node_settings
from pinfold.core.devices.classes import DeviceClasses
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.machine.known import known_machine
from pinfold.core.pod.pod import MEMORY
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.status import CgroupTree
from pinfold.linux.descriptors import raise_file_limit
from pinfold.linux.processes import boot_id
from pinfold.node.announcements import Announcements
from pinfold.node.books import Books
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.node_containers import NodeContainers
from pinfold.node.observers import Observers
from pinfold.node.recovery.recovery import LostRecordError, OnMismatch, Restored, restore
from pinfold.node.recovery.survivors import Survivor
from pinfold.node.settings import NodeSettings
from pinfold.node.tellings import Tellings
from pinfold.planning.explaining.decision import explain_decision
from pinfold.planning.explaining.document import explain_document
from pinfold.planning.planner import Planner
from pinfold.ports.cgroups import Cgroups
from pinfold.ports.errors import PortError
from pinfold.ports.guardian import Guardian
from pinfold.retry.loops import Loops
from pinfold.web.listening import listening

if TYPE_CHECKING:
    from pinfold.adapters.deviceplugin import DevicePluginServer, PluginLimits

SHIELD: Final = "shield.json"
PODS: Final = "pods"
"""The folder in the state directory with what pods are told of their CPUs, and their volumes."""

LOGS: Final = "logs"
"""The folder in the state directory with what containers write."""

CRI_BATCH: Final = 16
"""Containers that a runtime is told of at once: the shared pool holds still meanwhile."""

log = structlog.get_logger("pinfold")


class Closable(Protocol):
    """Whatever is closed at the end."""

    async def close(self) -> None:
        """Let go of it."""


class Start:
    """One start of an agent: what it has come to have, and what becomes of that at the end.

    What another agent may have is had before anything is changed; an agent that is refused leaves
    nothing behind.

    Args:
        config: the configuration.
        front: what stands in front of each port.
        plugin_limits: how long device plugins may take; None: as long as with the kubelet.

    Raises:
        NodeError: a configuration that does not fit the machine.
        MachineError: the machine cannot be read.
    """

    def __init__(
        self,
        config: AgentConfig,
        front: Front = nothing_in_front,
        plugin_limits: PluginLimits | None = None,
    ) -> None:
        raise_file_limit()
        self.config = config
        self.front = front
        self.state_dir = Path(config.own.record.state_dir)
        self.known = known_machine(open_machine(None), remembered_machine(self.state_dir))
        machine, found = self.known.machine, config.classes
        classes = DeviceClasses.on_node(found.classes, found.described, machine.name)
        self.planner = Planner(machine, config.node, rules=SOUND, classes=classes)
        # Before there is any other thread, such as those that talk to a runtime.
        if (policy := self.planner.node.cpu_policy) is not None:
            stay_off_exclusive_cpus(policy.reserved, CPUSet())
        self.loops = Loops(report_of_work)
        self.stop = asyncio.Event()
        self._limits = plugin_limits
        self._kept = AsyncExitStack()
        self._used = AsyncExitStack()
        self._agent: Agent | None = None
        self._has_ended = False
        self._is_empty: Callable[[], bool] = lambda: False

    # ------------------------------------------------------------------- what is had, and let go

    @asynccontextmanager
    async def alone(
        self, claim: Claim | None, cgroups: Cgroups, *others: Closable
    ) -> AsyncIterator[socket.socket]:
        """Have what another agent may have, and the API's socket, which listens.

        At the end all is closed, whatever fails of that: what is used first, then the record and
        the claim.  Without a pod, or after a start that was refused, nothing is left.

        Raises:
            PortError: it is another agent's.
        """
        async with self._kept, self._used:
            self._used.push_async_callback(self._close_cgroups, cgroups)
            for one in others:
                self._used.push_async_callback(one.close)
            if claim is not None:
                self._kept.callback(claim.release)
                claim.take()
            async with listening(Path(self.config.own.api.socket)) as listener:
                check_pod_resources(self.config.own)
                yield listener
                self._has_ended = True

    @property
    def _is_refused(self) -> bool:
        return self._agent is None or not self._agent.has_served

    @property
    def _leaves_nothing(self) -> bool:
        return self._is_empty() and (self._has_ended or self._is_refused)

    async def _close_cgroups(self, cgroups: Cgroups) -> None:
        await cgroups.close(remove=self._leaves_nothing)

    async def _close_record(self, store: SQLiteStore) -> None:
        await store.close(undo=self._leaves_nothing and self._is_refused)

    async def _lower_shield(self) -> None:
        if self._leaves_nothing:
            await lower_shield(record=self.state_dir / SHIELD)

    # -------------------------------------------------------------------------- what is prepared

    def open_record(self) -> SQLiteStore:
        """The durable record; raises StoreError."""
        limit = self.config.own.record.history_limit
        store = SQLiteStore.open(self.state_dir / DATABASE, history_limit=limit)
        self._is_empty = lambda: store.is_new
        self._kept.push_async_callback(self._close_record, store)
        return self.front(store)

    async def open_plugins(self) -> DevicePluginServer | None:
        """Let device plugins register; None where nobody does; raises PortError."""
        own = self.config.own
        if (folder := device_plugin_dir(own)) is None:
            return None
        from pinfold.adapters.deviceplugin import DevicePluginServer  # noqa: PLC0415 - 46 ms

        place = own.devices.plugin_registry_dir
        registry = None if place is None else Path(place)
        server = DevicePluginServer(
            folder,
            registry=registry,
            limits=self._limits,
            report=report_of_node,
            loops=self.loops,
        )
        try:
            await server.start()
        except PortError as error:
            if own.devices.device_plugin_dir is not None:
                raise
            # The folder was only found; whoever has it may keep it.
            report_of_node(f"no device plugins: {error}")
            return None
        self._used.push_async_callback(server.close)
        return self.front(server)

    async def confine_system(self) -> None:
        """Move everything else on this machine to the reserved CPUs, where that is asked for.

        Raises:
            ShieldError: it cannot be done; as far as it was, ``pinfold shield --off`` undoes it.
        """
        config, planner = self.config, self.planner
        if not config.own.cgroups.confine_system:
            return
        self._used.push_async_callback(self._lower_shield)
        policy = planner.node.cpu_policy
        reserved = config.node.reserved_system_cpus if policy is None else policy.reserved
        cpus = online_cpus() & planner.view.topology.cpus - reserved
        if not reserved or not cpus:
            log.warning("unconfined", problem="no CPUs are reserved for the system, or all are")
            return
        parent = config.own.cgroups.cgroup_parent or "/"
        keep = (f"{parent.rstrip('/')}/{config.own.cgroups.cgroup_name}",)
        report = await raise_shield(cpus, keep=keep, record=self.state_dir / SHIELD)
        log.info("confined", system=str(reserved), moved=report.moved, left=list(report.left))

    async def restore(
        self, store: SQLiteStore, tree: str, living: Sequence[Survivor] = ()
    ) -> Restored:
        """What the record says, as far as it fits this machine and configuration.

        Args:
            store: the record.
            tree: the cgroup tree of the containers; "" where the agent has none.
            living: what runs, whether the record knows it or not.

        Raises:
            MismatchError: it does not fit.
            StoreError: it cannot be read.
        """
        planner, own = self.planner, self.config.own
        try:
            return restore(
                await store.load(),
                planner.node,
                planner.empty_with(planner.view.topology.cpus - online_cpus()),
                parse=recorded_workload(planner.node),
                on_mismatch=OnMismatch(own.record.on_mismatch),
                runtime=own.containers.runtime,
                cgroups=tree,
                kubelet_version=self.config.node.kubelet_version.full,
                unplaced=self.known.unplaced,
                arrived=self.known.arrived,
                living=living,
            )
        except LostRecordError:
            self._is_empty = lambda: False  # containers run that nobody knows
            raise

    # --------------------------------------------------------------------------------- the parts

    def settings(self, tree: str) -> NodeSettings:
        """How the node is looked after; ``tree`` is the cgroup tree of the containers."""
        planner = self.planner
        return node_settings(
            self.config,
            memory=planner.view.memory_bytes or 0,
            allocatable_memory=planner.node.allocatable.get(MEMORY),
            page_sizes=tuple(sorted(planner.machine.hugepages)),
            tree=tree,
        )

    def books(  # noqa: PLR0913 - the parts, one each
        self,
        restored: Restored,
        containers: NodeContainers,
        store: SQLiteStore,
        files: PodFileFolder,
        settings: NodeSettings,
        *,
        plugins: DevicePluginServer | None = None,
        pool_changed: Callable[[CPUSet], None] = lambda _: None,
        guardian: Guardian | None = None,
    ) -> Books:
        """The node's books."""
        node: Node = replace(self.planner.node, devices_managed=plugins is not None)
        observers = Observers(
            time.time,
            self._describe,
            report,
            pool_changed,
            online_cpus,
            uptime=lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
            boot=boot_id(),
        )
        teller = AssignmentFolders(self.state_dir / "assignments", report)
        tellings = Tellings(self.front(teller), observers, restored.active, restored.above)
        told = tellings if self.config.own.moves.assignment_folders else None
        mirror = StateFiles(self.state_dir, self.config.node).write
        books = Books(
            node,
            restored,
            containers=containers,
            store=store,
            announcements=Announcements(files, mirror, report, told, containers.volumes),
            settings=settings,
            observers=observers,
            guardian=guardian,
        )
        self._used.push_async_callback(self._return_lent, books)
        return books

    async def _return_lent(self, books: Books) -> None:
        try:
            await books.lease.close()
        except PortError as error:
            # The guardian is there, and goes on when this process has ended.
            report(None, f"what is lent stays so for a moment: {error}")

    async def _describe(self, decision: Decision, state: NodeState) -> str:
        def document() -> str:
            agent = self._agent
            pods = [p.workload.pod for p in agent.books.view.pods.active.values()] if agent else []
            explanation = explain_decision(self.planner, state, decision, pods=pods)
            return msgspec.json.encode(explain_document(self.planner, explanation)).decode()

        if decision.admitted:
            return document()
        # What would admit it is tried out, which takes up to half a second on a large machine.
        return await asyncio.to_thread(document)

    def served(self, books: Books) -> list[Runnable]:
        """What goes on beside with every runtime, as far as it is asked for."""
        own = self.config.own
        if (place := pod_resources_socket(own)) is None:
            return []
        group, version = own.api.pod_resources_group, self.config.node.kubelet_version
        return [pod_resources(books, place, group, version, self.stop)]

    def agent(  # noqa: PLR0913 - the parts, one each
        self,
        books: Books,
        listener: socket.socket,
        claim: ClaimKeeper,
        pages: HugepageFollower,
        *,
        pods: Pods | None,
        rebalancing: Rebalancing,
        runnables: Sequence[Runnable],
        cgroups: CgroupTree,
    ) -> Agent:
        """All of it together, see :class:`Agent`; the machine is known from now on."""
        planner = self.planner
        cpus = CPUFollower(books, planner.view.unseen, online_cpus, hotplug_events)
        watched = observation(books, self.config, cgroups)
        control = controlled(books, rebalancing, watched, self.config.node)
        period = self.config.node.cpu_manager_reconcile_period or RECONCILE_PERIOD
        following = followers(books, self.config.node.own, self.state_dir, self.front, period)
        going = [
            *runnables,
            *observes(watched, books),
            *controls_node(control, books, self.config.own.priority.agent_nice),
            *following,
        ]
        loops = self.loops
        background = Background(loops, planner, books, going, claim=claim, cpus=cpus, pages=pages)
        self._agent = Agent(
            self.config,
            planner,
            books,
            background,
            pods=pods,
            rebalancing=rebalancing,
            observation=watched,
            listener=listener,
            stop=self.stop,
            cgroups=cgroups,
        )
        self._is_empty = lambda: not books.view.pods.active
        remember_machine(self.state_dir, self.known.machine)
        return self._agent
