"""An agent at work: what the API asks of it, and its loops."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import socket
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import structlog

from pinfold import __version__
from pinfold.adapters.hugetlb import KeptPages
from pinfold.adapters.machines.online import hotplug_events, online_cpus
from pinfold.adapters.systemd.notify import Notifier
from pinfold.admission.node_status import node_status, node_status_document
from pinfold.agent.background import NOT_NEEDED, Background
from pinfold.agent.claim_keeper import ClaimKeeper
from pinfold.agent.cpu_follower import CPUFollower
from pinfold.agent.hugepages import HugepageFollower
from pinfold.agent.manifest_checks import check_rights
from pinfold.agent.parts import Claim, Companion, Ports
from pinfold.agent.readiness import at_work
from pinfold.agent.static_pods import StaticPods
from pinfold.config.agent import AgentConfig
from pinfold.core.machine.document import machine_document
from pinfold.core.pod.workload_api import workload_from_api
from pinfold.core.pod.workload_fields import PROCESS, check_fields
from pinfold.core.values.names import LONGEST_LABEL
from pinfold.node.pods.caller import NOBODY, Caller
from pinfold.node.pods.manager import Manager
from pinfold.node.reconciler import Drift, reconcile
from pinfold.planning.planner import Planner
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.figures import Figure
from pinfold.ports.held_process import HeldProcess, Peer
from pinfold.ports.records import PodRecord
from pinfold.retry.loops import Loops
from pinfold.web.app import make_app
from pinfold.web.server import serve_on

_LARGE: Final = 64 << 10
"""Characters of a manifest from which it is read in a thread, so that the loop goes on."""

_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_ENDING: Final = 5
"""Letters that end a generated name; upstream ``apiserver/pkg/storage/names`` makes no words."""

log = structlog.get_logger("pinfold")


class Agent:
    """A node that is looked after; also what the local API serves."""

    def __init__(  # noqa: PLR0913 - the parts, one each
        self,
        config: AgentConfig,
        planner: Planner,
        manager: Manager,
        companions: Sequence[Companion] = (),
        *,
        loops: Loops | None = None,
        claim: Claim | None = None,
    ) -> None:
        self.config = config
        self.companions = companions
        self.planner = planner
        self.manager = manager
        self.loops = loops or Loops()
        self.started_at = time.time()
        self._stop = asyncio.Event()
        self._ready = False
        self._cpus = CPUFollower(manager, planner.view.unseen, online_cpus, hotplug_events)
        self._pages = HugepageFollower(planner, manager, KeptPages().read)
        self._claim = ClaimKeeper(manager, claim)
        static_pods = (
            None
            # On a kubelet's node this is where the kubelet's own static pods are.
            if config.static_pod_path is None or config.own.runtime == "nri"
            else StaticPods(config.static_pod_path, manager, self.apply)
        )
        self._background = Background(
            self.loops,
            planner,
            manager,
            companions,
            claim=self._claim,
            cpus=self._cpus,
            pages=self._pages,
            static_pods=static_pods,
        )
        self._about: dict[str, Any] = {}

    # ------------------------------------------------------------------- what the API asks for

    async def apply(
        self,
        manifest: Mapping[str, Any],
        *,
        source: str,
        held: HeldProcess | None = None,
        caller: Caller = NOBODY,
    ) -> PodRecord:
        """Admit the pod of a manifest.

        Raises:
            PodError: it is no pod, or not a valid one.
            NameTakenError: there is a pod of that name.
            PortError: it could not be written down, or no room could be made.
        """
        await self._check_may_change()
        named = _as_created(manifest)
        text = json.dumps(named)
        notes = self.notes(named)
        if len(text) < _LARGE:
            workload = workload_from_api(named)
        else:
            workload = await asyncio.to_thread(workload_from_api, named)
        if self.config.own.runtime == PROCESS:
            check_rights(workload, attached=held is not None)
        if notes:
            pod = f"{workload.pod.namespace}/{workload.pod.name}"
            log.warning("manifest", pod=pod, notes="; ".join(notes))
        await self._pages.look()
        return await self.manager.admit(
            workload, manifest=text, source=source, held=held, caller=caller
        )

    def process_of(self, peer: Peer, pid: int) -> HeldProcess:
        """See :meth:`pinfold.web.desk.Desk.process_of`."""
        from pinfold.adapters.process.peers import process_of  # noqa: PLC0415 - for `pinfold run`

        return process_of(peer, pid, agent=os.getpid())

    def notes(self, manifest: Mapping[str, Any]) -> Sequence[str]:
        """What of a manifest is not in force here; raises PodError where that cannot be."""
        return check_fields(manifest, self.config.own.runtime)

    async def delete(self, name: str, *, grace: float | None, caller: Caller = NOBODY) -> None:
        """End a pod; see :meth:`pinfold.node.pods.manager.Manager.release`."""
        await self._check_may_change()
        await self.manager.release(name, grace=grace, caller=caller)

    async def _check_may_change(self) -> None:
        await self._claim.look()
        if self.config.own.runtime == "nri":
            raise RuntimeFailedError(
                "this agent looks after the containers of a kubelet",
                "create and delete pods through Kubernetes",
            )

    @property
    def has_served(self) -> bool:
        """Whether :meth:`run` came so far that anybody was answered."""
        return self._ready

    async def reconcile(self) -> list[Drift]:
        """Look at the kernel now."""
        await self._claim.look()
        return await reconcile(self.manager)

    def problems(self) -> Sequence[str]:
        """Why the agent is not ready."""
        if not self._ready:
            return ("the agent is starting",)
        problems = [self.manager.store.problem, *(one.problem() for one in self.companions)]
        problems += self.loops.problems(besides=NOT_NEEDED)
        problems += self.manager.offline_owners.problems()
        return [problem for problem in problems if problem]

    def machine(self) -> Mapping[str, Any]:
        """The machine, as ``pinfold topology -o json`` prints it."""
        return machine_document(self.planner.machine, self.planner.view)

    def node(self) -> Mapping[str, Any]:
        """Capacity, allocatable and what is requested, as the kubelet's arithmetic has it."""
        planner, manager = self.planner, self.manager
        return node_status_document(
            node_status(planner.machine, planner.view, planner.config, manager.node, manager.state)
        )

    def figures(self) -> Iterable[Figure]:
        """What the companions count."""
        return [*(f for one in self.companions for f in one.figures()), *self.loops.figures()]

    def about(self) -> Mapping[str, Any]:
        """What this agent is."""
        config = self.config.node
        return {
            "agent": {
                "version": __version__,
                "pid": os.getpid(),
                "started_at": self.started_at,
                "state_dir": self.config.own.state_dir,
                "config_file": None if self.config.file is None else str(self.config.file),
                "runtime": self.config.own.runtime,
                "problems": [p for p in (self.manager.store.problem, *self.loops.problems()) if p],
                **self._about,
                **({"hugepages": {"problem": problem}} if (problem := self._pages.problem) else {}),
                **({"cpus": {"problem": problem}} if (problem := self._cpus.problem) else {}),
                **{one.name: dict(about) for one in self.companions if (about := one.about())},
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

    async def run(
        self, ports: Ports, listener: socket.socket, *, describe_cgroups: Mapping[str, Any]
    ) -> None:
        """Serve until SIGTERM or SIGINT; all containers run on.

        Args:
            ports: what is served.
            listener: the socket of the API, which listens.
            describe_cgroups: what ``/v1/status`` says of the cgroups.

        Raises:
            PortError: a companion cannot go on.
        """
        self._about["cgroups"] = dict(describe_cgroups)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._unforeseen)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        notifier = Notifier()
        api = asyncio.create_task(serve_on(make_app(self), listener, stop=self._stop), name="api")
        tasks = {api, *self._background.begin(ports, notifier, self._stop)}
        # Who has connected since the socket was had is answered now.
        self._ready = True
        pods = len(self.manager.pods.active)
        log.info("serving", socket=self.config.own.socket, pool=str(self.manager.pool), pods=pods)
        tasks.add(asyncio.create_task(self._say_ready(notifier), name="ready"))
        failure = await self._until_the_end(api, tasks)
        self._stop.set()
        notifier.stopping()
        await asyncio.wait({api}, timeout=3)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in self.companions:
            await self.loops.attempt(f"the end of {one.name}", one.close)
        await self.manager.close()
        log.info("stopped", containers="run on" if self.manager.pods.active else "none")
        if failure is not None:
            raise failure

    async def _say_ready(self, notifier: Notifier) -> None:
        await at_work(self.problems)
        notifier.ready("; ".join(self.problems()) or f"{len(self.manager.pods.active)} pods")

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

    def _unforeseen(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Something failed that nobody waits for, such as a connection that cannot be accepted."""
        error = context.get("exception") or RuntimeError("no exception is known")
        self.loops.note("event loop", error, doing=context["message"])


def _as_created(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """The manifest with a uid, and with a name where it has only its beginning (as upstream)."""
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping):
        return manifest
    given = {} if metadata.get("uid") else {"uid": str(uuid.uuid4())}
    prefix = metadata.get("generateName")
    if isinstance(prefix, str) and prefix and not metadata.get("name"):
        ending = "".join(secrets.choice(_LETTERS) for _ in range(_ENDING))
        given["name"] = prefix[: LONGEST_LABEL - _ENDING] + ending
    return {**manifest, "metadata": {**metadata, **given}}
