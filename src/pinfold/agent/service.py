"""An agent at work: what the API asks of it, and its life."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import structlog
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from pinfold import __version__
from pinfold.adapters.systemd.notify import Notifier
from pinfold.admission.node_status import node_status, node_status_document
from pinfold.agent.loops.background import Background
from pinfold.agent.node_name import node_name
from pinfold.agent.pods import Pods
from pinfold.config.agent import AgentConfig
from pinfold.core.kubelet.versions import DEFAULT_VERSION
from pinfold.documents import status as documents
from pinfold.documents.cache import CacheClasses
from pinfold.documents.control import Control
from pinfold.documents.following import Interrupts, SchedulingDomains
from pinfold.documents.machine import Machine
from pinfold.documents.node import Node
from pinfold.documents.records import DecidesAs
from pinfold.node.books import Books
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.observation.observer import Observation
from pinfold.node.reconciler import Drift
from pinfold.planning.compare import differences
from pinfold.planning.machine_document import machine_document
from pinfold.planning.plan_document import kubelet_record
from pinfold.planning.planner import Planner
from pinfold.ports.cgroups import Limiting
from pinfold.ports.figures import Figure
from pinfold.web.app import make_app
from pinfold.web.server import serve_on

PATIENCE: Final = 10.0
"""Seconds after which something that is wrong is no reason to wait any longer."""

_LOOK: Final = 0.02

_P = TypeVar("_P", bound=documents.Part)

log = structlog.get_logger("pinfold")


class Agent:
    """A node that is looked after; fulfils :class:`pinfold.web.backend.Backend`.

    ``background`` is what goes on unasked, ``pods`` runs pods for the API (None: a kubelet does),
    ``observation`` is what containers do (None: it is not watched);
    ``listener`` is the API's socket, which listens, and ``cgroups`` is for ``/v1/status``.  The
    agent ends when ``stop`` is set.
    """

    def __init__(  # noqa: PLR0913 - the parts, one each
        self,
        config: AgentConfig,
        planner: Planner,
        books: Books,
        background: Background,
        *,
        pods: Pods | None,
        rebalancing: Rebalancing,
        observation: Observation | None,
        listener: socket.socket,
        stop: asyncio.Event,
        cgroups: documents.CgroupTree,
    ) -> None:
        self.config = config
        self.planner = planner
        self.books = books
        self.pods = pods
        self.rebalancing = rebalancing
        self.observation = observation
        self.started_at = time.time()
        self._node_name = node_name(config.own)
        self._background = background
        self._listener = listener
        self._stop = stop
        self._cgroups = cgroups
        self._ready = False

    # ------------------------------------------------------------------- what the API asks for

    @property
    def has_served(self) -> bool:
        """Whether :meth:`run` came so far that anybody was answered."""
        return self._ready

    async def reconcile(self) -> list[Drift]:
        """Look at the kernel now."""
        return await self._background.reconcile()

    def problems(self) -> Sequence[str]:
        """Why the agent is not ready."""
        if not self._ready:
            return ("the agent is starting",)
        problems = self._background.problems()
        problems += self.books.problems()
        return [problem for problem in problems if problem]

    def machine(self) -> Machine:
        """The machine, as ``pinfold topology -o json`` prints it."""
        return machine_document(self.planner.machine, self.planner.view)

    def node(self) -> Node:
        """Capacity, allocatable and what is requested, as the kubelet's arithmetic has it."""
        planner, view = self.planner, self.books.view
        return node_status_document(
            node_status(planner.machine, planner.view, planner.config, view.node, view.state)
        )

    def figures(self) -> Iterable[Figure]:
        """What is counted of the work in the background."""
        return self._background.figures()

    def about(self) -> documents.Agent:
        """What this agent is."""
        config, background = self.config, self._background
        parts = background.parts()

        def part(kind: type[_P]) -> _P | UnsetType:
            return next((one for one in parts if isinstance(one, kind)), UNSET)

        return documents.Agent(
            version=__version__,
            node=self._node_name,
            pid=os.getpid(),
            started_at=self.started_at,
            state_dir=config.own.record.state_dir,
            config_file=None if config.file is None else str(config.file),
            runtime=config.own.containers.runtime,
            kubelet=self._decides_as(),
            problems=[p for p in (self.books.store.problem, *background.failing()) if p],
            cgroups=self._tree(),
            hugepages=_problem(background.pages.problem),
            cpus=_problem(background.cpus.problem),
            container_runtime=part(documents.ContainerRuntime),
            nri=part(documents.NRI),
            kubernetes=part(documents.Kubernetes),
            device_plugins=part(documents.DevicePlugins),
            pod_resources=part(documents.PodResources),
            interrupts=part(Interrupts),
            control=part(Control),
            cache=part(CacheClasses),
            scheduling_domains=part(SchedulingDomains),
        )

    def _decides_as(self) -> DecidesAs:
        """The kubelet as which is decided, and what the newest that is recorded does otherwise."""
        config = self.config.node
        now = kubelet_record(config)
        newest = replace(config, kubelet_version=DEFAULT_VERSION)
        return DecidesAs(
            version=now.version,
            source=now.source,
            recorded=now.recorded,
            remark=now.remark,
            newest=DEFAULT_VERSION.full,
            differences=list(differences(config, newest)),
        )

    def _tree(self) -> documents.CgroupTree:
        """The cgroups, with what is limited now."""
        cgroups = self.books.containers.cgroups
        if not isinstance(cgroups, Limiting):
            return self._cgroups
        return replace(self._cgroups, limits=list(cgroups.limits.written()))

    def settings(self) -> documents.AgentConfig:
        """The settings in force."""
        config = self.config.node
        return documents.AgentConfig(
            cpu_manager_policy=config.cpu_manager_policy,
            cpu_manager_policy_options=dict(config.cpu_manager_policy_options),
            topology_manager_policy=config.topology_manager_policy,
            topology_manager_scope=config.topology_manager_scope,
            topology_manager_policy_options=dict(config.topology_manager_policy_options),
            reserved_system_cpus=str(config.reserved_system_cpus),
            pinfold=UNSET if config.own is None else config.own.by_group,
        )

    # --------------------------------------------------------------------- from start to end

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT; all containers run on; raises PortError."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._background.unforeseen)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        notifier, app = Notifier(), make_app(self)
        api = asyncio.create_task(serve_on(app, self._listener, stop=self._stop), name="api")
        tasks = {api, *self._background.begin(notifier)}
        # Who has connected since the socket was had is answered now.
        self._ready = True
        pods = len(self.books.view.pods.active)
        pool = str(self.books.view.pool)
        log.info("serving", socket=self.config.own.api.socket, pool=pool, pods=pods)
        tasks.add(asyncio.create_task(self._say_ready(notifier), name="ready"))
        failure = await self._until_the_end(api, tasks)
        self._stop.set()
        notifier.stopping()
        await asyncio.wait({api}, timeout=3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._background.close()
        await self.books.close()
        log.info("stopped", containers="run on" if self.books.view.pods.active else "none")
        if failure is not None:
            raise failure

    async def _say_ready(self, notifier: Notifier) -> None:
        await at_work(self.problems)
        notifier.ready("; ".join(self.problems()) or f"{len(self.books.view.pods.active)} pods")

    async def _until_the_end(
        self, api: asyncio.Task[None], tasks: set[asyncio.Task[None]]
    ) -> BaseException | None:
        """Return when the agent is told to stop, or cannot serve; then what is in the way.

        Only the socket, and what the configuration asks for and cannot be had, are worth an end:
        whatever else fails is tried again.
        """
        stopped = asyncio.create_task(self._stop.wait(), name="stop")
        going: set[asyncio.Task[Any]] = {stopped, *tasks}
        try:
            while True:
                done, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
                failures = [t.exception() for t in done if not t.cancelled() and t.exception()]
                if failures or not going.issuperset({stopped, api}):
                    return failures[0] if failures else None
        finally:
            stopped.cancel()


def _problem(text: str) -> documents.Problem | UnsetType:
    return documents.Problem(problem=text) if text else UNSET


async def at_work(problems: Callable[[], Sequence[str]], *, patience: float = PATIENCE) -> None:
    """Return when nothing keeps the agent from its work any more, or that took too long.

    Then a service manager may go on with what it starts after the agent: a kubelet, say.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        if not problems() or loop.time() > deadline:
            return
        await asyncio.sleep(_LOOK)
