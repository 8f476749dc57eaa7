"""The local API of a manager on fakes, served on a real socket; answers checked by its OpenAPI."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pinfold.adapters.cgroup.runtime.runtime_cgroups import gate_figures
from pinfold.adapters.nri import PluginCounters
from pinfold.admission.node_status import node_status, node_status_document
from pinfold.agent.loops.controlling import controlled
from pinfold.agent.loops.controlling import figures as control_figures
from pinfold.agent.loops.observing import figures
from pinfold.agent.objects import Objects
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.manifest.workload_fields import PROCESS, check_fields
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.live.event import Whole
from pinfold.documents.machine import Machine
from pinfold.documents.node import Node
from pinfold.documents.status import Agent, AgentConfig, Gates, Status
from pinfold.formats.event_stream import MEDIA_TYPE as EVENTS
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.moves.resizing import Answered
from pinfold.node.nri.kubelet_devices import KubeletDevices
from pinfold.node.nri.kubelet_specs import KubeletSpecs
from pinfold.node.observation.observer import Observation
from pinfold.node.pods.caller import NOBODY, Caller
from pinfold.node.pods.manager import Manager
from pinfold.node.pods.pod_life import PodLife
from pinfold.node.pods.unchanged import unchanged
from pinfold.node.reconciler import Drift, reconcile
from pinfold.planning.fake_meters import FakeContainerMeters, FakeCPUMeter
from pinfold.planning.machine_document import machine_document
from pinfold.planning.planner import Planner
from pinfold.ports.errors import ContainerKey
from pinfold.ports.figures import Figure
from pinfold.ports.held_process import HeldProcess, Peer
from pinfold.ports.logs import PodLogs
from pinfold.ports.records import AppliedObject, ObjectKey, PodRecord
from pinfold.retry.loops import Loops
from pinfold.web.app import make_app
from pinfold.web.changes import Patience
from pinfold.web.connection import Connection
from pinfold.web.handlers import Handlers
from pinfold.web.limited_connection import Limits
from pinfold.web.server import serve
from pinfold.web.snapshots import Snapshots
from tests.scenes.dynamic_config import dynamic_config
from tests.scenes.manager_harness import Harness, parse
from tests.scenes.published_schemas import APIContract
from tests.scenes.told_node import explained

_T = TypeVar("_T")


class AgentOnFakes:
    """An agent without an agent: its manager is on fakes."""

    def __init__(self, manager: Manager, node: Harness) -> None:
        self.manager, self.books, self.plugins = manager, manager.books, manager.plugins
        self.node_machine, self.config = node.machine, node.config
        self.told_problems: list[str] = []
        self.node_name = ""
        self.is_kubelets = False
        self.applied: list[tuple[str, int | None]] = []
        self.fault: Exception | None = None
        self.counted = PluginCounters()
        self.kubelet = KubeletDevices(None, lambda _pod, _problem: None)
        self.specs = KubeletSpecs(None, lambda _pod, _problem: None)
        self.loops = Loops()
        self.observation: Observation | None = None
        self.meters, self.cpu_meter = FakeContainerMeters(), FakeCPUMeter(CPUSet([0, 1]))
        self.clock = 0.0
        often = DynamicOptions(rebalance_period="5m")
        self.controlling = controlled(self.books, self.rebalancing, None, dynamic_config(often))

    def watch(self) -> None:
        """Read what containers do, on fakes; their clock is ``clock``."""
        self.observation = Observation(
            self.books,
            self.meters,
            self.cpu_meter,
            now=lambda: self.clock,
            spent=lambda: self.clock / 1000,
            period=1.0,
        )

    @property
    def rebalancing(self) -> Rebalancing:
        return self.manager.rebalancing

    async def apply(
        self,
        manifest: Mapping[str, Any],
        *,
        source: str,
        held: HeldProcess | None = None,
        caller: Caller = NOBODY,
    ) -> PodRecord:
        if self.fault is not None:
            raise self.fault
        self.notes(manifest)
        text = json.dumps(manifest)
        self.applied.append((source, None if held is None else held.pid))
        workload = parse(text)
        return await self.manager.admit(
            workload, manifest=text, source=source, held=held, caller=caller
        )

    def unchanged(self, manifest: Mapping[str, Any]) -> PodRecord | None:
        return unchanged(self.books.view.pods, manifest)

    def process_of(self, peer: Peer, pid: int) -> HeldProcess:
        assert (peer.pid, peer.uid) == (os.getpid(), os.geteuid())
        return HeldProcess(pid, 7)

    def notes(self, manifest: Mapping[str, Any]) -> Sequence[str]:
        return check_fields(manifest, PROCESS)

    async def delete(self, name: str, *, grace: float | None, caller: Caller = NOBODY) -> None:
        await self.manager.release(name, grace=grace, caller=caller)

    async def resize(
        self, name: str, container: str | None, cpus: float, *, caller: Caller = NOBODY
    ) -> Answered:
        return await self.manager.resizing.resize(name, container, cpus, begun=caller.begin)

    async def apply_object(self, manifest: Mapping[str, Any], caller: Caller) -> AppliedObject:
        return await Objects(self.books).apply(manifest, caller=caller)

    async def delete_object(self, key: ObjectKey, caller: Caller) -> None:
        await Objects(self.books).delete(key, caller=caller)

    async def reconcile(self) -> list[Drift]:
        return await reconcile(self.books)

    def life(self, uid: str) -> PodLife | None:
        return self.manager.lives.get(uid)

    @property
    def logs(self) -> PodLogs | None:
        return self.books.containers.logs

    @property
    def pods(self) -> AgentOnFakes | None:
        return None if self.is_kubelets else self

    def problems(self) -> Sequence[str]:
        return self.told_problems

    def machine(self) -> Machine:
        return machine_document(parse_short_form(self.node_machine))

    def node(self) -> Node:
        machine = parse_short_form(self.node_machine)
        status = node_status(
            *(machine, kubelet_view(machine), self.config),
            *(self.books.view.node, self.books.view.state),
        )
        return node_status_document(status)

    def figures(self) -> Iterable[Figure]:
        kubelet = (*self.kubelet.figures(), *self.specs.figures(), *gate_figures(Gates()))
        watched = () if self.observation is None else figures(self.observation, self.books)
        decided = [] if self.controlling is None else control_figures(self.controlling.loop)
        return (*self.counted.figures(), *kubelet, *watched, *decided, *self.loops.figures())

    def about(self) -> Agent:
        return Agent(
            version="0",
            node=self.node_name,
            pid=os.getpid(),
            started_at=0.0,
            state_dir="/nowhere",
            config_file=None,
            runtime=PROCESS,
            problems=list(self.told_problems),
        )

    def settings(self) -> AgentConfig:
        config = self.config
        return AgentConfig(
            cpu_manager_policy=config.cpu_manager_policy,
            cpu_manager_policy_options=dict(config.cpu_manager_policy_options),
            topology_manager_policy=config.topology_manager_policy,
            topology_manager_scope=config.topology_manager_scope,
            topology_manager_policy_options=dict(config.topology_manager_policy_options),
            reserved_system_cpus=str(config.reserved_system_cpus),
        )


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("pinfold", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = plain(self._path)


def plain(path: Path) -> socket.socket:
    """A connection on which anything can be sent.

    Where so many wait to be let in that no more can, it waits, which a socket with a time limit of
    Python's own does not.
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 20, 0))
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    sock.settimeout(20)
    return sock


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, str]:
        found: dict[str, str] = self.json["error"]
        return found


class Served:
    """A server that runs in a thread."""

    def __init__(
        self, path: Path, node: Harness, limits: Limits, patience: Patience, *, observes: bool
    ) -> None:
        self.path, self.node, self._limits, self._patience = path, node, limits, patience
        self._observes = observes
        self.stop = asyncio.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.backend = AgentOnFakes(await self.node.start(), self.node)
        if self._observes:
            self.backend.watch()
        self.app = make_app(self.backend, self._patience)
        await serve(self.app, self.path, stop=self.stop, limits=self._limits)
        await self.node.kill()

    def connections(self) -> list[Connection]:
        """Those that are open; to be asked in the server's loop."""
        found = [one for one in gc.get_objects() if isinstance(one, Connection)]
        return [one for one in found if one.loop is self.loop and one in one.connections]

    def snapshots(self) -> Snapshots:
        """What has made the answers that are shared."""
        handlers: Handlers = self.app.state.handlers
        return handlers.snapshots

    def start(self) -> None:
        """Return when it answers."""
        self.thread.start()
        deadline = time.monotonic() + 20
        while True:
            assert self.thread.is_alive()
            assert time.monotonic() < deadline
            try:
                plain(self.path).close()
            except OSError:
                time.sleep(0.002)
            else:
                return

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def do(self, work: Callable[[], _T]) -> _T:
        """The same, for what does not wait."""

        async def wrapped() -> _T:
            return work()

        return self.call(wrapped())

    def ask(self, method: str, target: str, document: object = None, *, body: Any = None) -> Answer:
        """One request on a connection of its own; the answer is what the OpenAPI document says."""
        if document is not None:
            body = json.dumps(document).encode()
        connection = UnixConnection(self.path)
        try:
            connection.request(method, target, body)
            response = connection.getresponse()
            # What goes on for ever is read as far as it has come.
            endless = response.headers.get_content_type() == EVENTS
            text = response.read1(1 << 16) if endless else response.read()
            answer = Answer(response.status, dict(response.headers), text.decode())
        finally:
            connection.close()
        if method != "HEAD":
            self._check(method, target, answer)
        return answer

    def _check(self, method: str, target: str, answer: Answer) -> None:
        media_type = answer.headers.get("content-type", "").split(";")[0]
        self.contract.check_answer(
            method,
            target.partition("?")[0],
            status=answer.status,
            media_type=media_type,
            text=answer.text,
            value=answer.json if media_type == "application/json" else None,
        )

    def fetch_contract(self) -> None:
        """Take the OpenAPI document that this server serves; answers are held against it."""
        connection = UnixConnection(self.path)
        try:
            connection.request("GET", "/openapi.json")
            self.contract = APIContract(json.loads(connection.getresponse().read()))
        finally:
            connection.close()

    def end(self) -> None:
        """Stop, as the agent would."""
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(20)
        assert not self.thread.is_alive()


@contextmanager
def served(
    path: Path,
    *,
    limits: Limits | None = None,
    patience: Patience | None = None,
    adopts: bool = False,
    explains: bool = True,
    observes: bool = False,
    **harness: Any,
) -> Iterator[Served]:
    """A server on a fresh node."""
    node = Harness(**harness)
    if explains:
        node.describe = partial(explained, Planner(parse_short_form(node.machine), node.config))
    server = Served(path, node, limits or Limits(), patience or Patience(), observes=observes)
    server.start()
    server.fetch_contract()
    if adopts:
        node.manager.containers.adopter = node.runtime
    try:
        yield server
    finally:
        server.end()


def phase(api: Served, name: str) -> str:
    return str(api.ask("GET", f"/v1/pods/default/{name}").json["phase"])


def container_id(api: Served, pod: str, container: str = "c0") -> str:
    return next(
        s.id for s in api.node.runtime.known() if s.key == ContainerKey(f"uid-{pod}", container)
    )


def container(api: Served, pod: str) -> dict[str, Any]:
    found: dict[str, Any] = api.ask("GET", f"/v1/pods/default/{pod}").json["containers"][0]
    return found


def read_all(sock: Any) -> bytes:
    """What comes until the server hangs up."""
    text = b""
    try:
        while part := sock.recv(65536):
            text += part
    except ConnectionResetError:
        pass
    return text


def whole_of(api: Served) -> Whole:
    """What an agent tells first in its stream of events, put together of its documents."""
    return Whole(
        status=msgspec.convert(api.ask("GET", "/v1/status").json, Status),
        machine=msgspec.convert(api.ask("GET", "/v1/machine").json, Machine),
        node=msgspec.convert(api.ask("GET", "/v1/node").json, Node),
    )
