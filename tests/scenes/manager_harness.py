"""A manager on fakes, and what has to hold at every moment."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.admission.capacity import amounts
from pinfold.admission.decision import Decision
from pinfold.admission.model import build_node, empty_state
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import Machine
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.pod import guaranteed_cpus
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.announcements import Announcements
from pinfold.node.books import Books
from pinfold.node.observers import Observers
from pinfold.node.pods.containers import PodContainers
from pinfold.node.pods.device_health import DeviceHealth
from pinfold.node.pods.manager import Manager
from pinfold.node.pods.resumption import take_over
from pinfold.node.recovery.recovery import OnMismatch, restore
from pinfold.node.recovery.survivors import survivors
from pinfold.node.settings import NodeSettings
from pinfold.node.tellings import Tellings
from pinfold.planning.fake_cgroups import FakeCgroups
from pinfold.planning.fake_guardian import FakeGuardian
from pinfold.planning.fake_plugins import FakeDevicePlugins
from pinfold.planning.fakes import FakeRuntime, MemoryPodFiles, MemoryStore, MemoryTeller
from pinfold.ports.guardian import Guardian
from pinfold.ports.runtime import ContainerState
from pinfold.state.ledger import Ledger


class _Impatient(selectors.DefaultSelector):
    """Waits for nothing: the time that it should have waited has passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            self.passed += timeout or 0.0
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in which pauses take no time; nothing in it may use threads or sockets."""

    def __init__(self) -> None:
        self._impatient = _Impatient()
        super().__init__(self._impatient)

    def time(self) -> float:
        return self._impatient.passed


_T = TypeVar("_T")


def run_virtually(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end, without waiting."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


STATIC = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))


ALL_MANAGERS = NodeConfig(
    cpu_manager_policy="static",
    reserved_system_cpus=CPUSet([0]),
    memory_manager_policy="Static",
    kube_reserved={"memory": Quantity.parse("924Mi")},
    reserved_memory=({"numaNode": 0, "limits": {"memory": Quantity.parse("1Gi")}},),
    topology_manager_policy="restricted",
)
"""CPUs, memory and devices are aligned; the eviction threshold makes the reserved Gi whole."""


def manifest(
    name: str,
    *cpus: str,
    init: Iterable[str] = (),
    more: Mapping[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod whose containers have these CPU limits ("" for none: BestEffort), and ``more``."""

    def container(container_name: str, amount: str) -> dict[str, Any]:
        limits = {"cpu": amount, "memory": "64Mi"} if amount else {}
        limits |= more or {}
        return {
            "name": container_name,
            "command": ["run"],
            "resources": {"limits": limits, "requests": limits},
        }

    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "initContainers": [container(f"i{n}", c) for n, c in enumerate(init)],
            "containers": [container(f"c{n}", c) for n, c in enumerate(cpus)],
            **spec,
        },
    }


def mixed(pod: dict[str, Any], said: str = "true") -> dict[str, Any]:
    """The same pod, whose containers are mixed."""
    annotations = {"mixed-cpus.pinfold.dev/pod": said}
    return {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}


def parse(text: str) -> Workload:
    return workload_from_api(json.loads(text))


def isolating(machine: Machine, isolated: CPUSet) -> Machine:
    """A machine that was booted with ``isolcpus=``."""
    cpus = tuple(replace(cpu, isolated=cpu.cpu in isolated) for cpu in machine.cpus)
    return replace(machine, cpus=cpus)


async def no_document(_decision: object, _state: object) -> str:
    """What would be written of a decision."""
    return "{}"


@dataclass
class Harness:
    """A node on fakes whose agent can be killed and started again."""

    machine: str = "1s4c2t"
    isolated: CPUSet = field(default_factory=CPUSet)
    config: NodeConfig = STATIC
    settings: NodeSettings = field(default_factory=lambda: NodeSettings(backoff=0.01))
    describe: Callable[[Decision, NodeState], Awaitable[str]] = no_document
    dynamic: DynamicOptions | None = None
    problems: list[str] = field(default_factory=list)
    mirrored: list[Ledger] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.view = kubelet_view(parse_short_form(self.machine))
        self.cgroups = FakeCgroups(self.view.topology.cpus)
        self.runtime = FakeRuntime(self.cgroups)
        self.store = MemoryStore()
        self.files = MemoryPodFiles()
        self.teller = MemoryTeller()
        self.plugins = FakeDevicePlugins()
        self.lease_clock = 0.0
        self.guardian: Guardian | None = None
        if self.settings.idle_side:
            self.guardian = FakeGuardian(self.cgroups.take_back, lambda: self.lease_clock)
        self.now = 0.0
        self.running: tuple[Manager, asyncio.Task[None]] | None = None

    async def start(self, on_mismatch: OnMismatch = OnMismatch.REFUSE) -> Manager:
        """Start an agent on what is there."""
        machine = isolating(parse_short_form(self.machine), self.isolated)
        node = build_node(machine, self.config, view=self.view, rules=SOUND)
        offline = self.cgroups.machine - self.cgroups.online
        empty = replace(empty_state(node, self.view.topology.cpus), offline=offline)
        restored = restore(
            await self.store.load(),
            node,
            empty,
            parse=parse,
            on_mismatch=on_mismatch,
            runtime=self.settings.runtime,
            living=await survivors(self.runtime, self.cgroups),
        )
        report = lambda pod, text: self.problems.append(f"{pod}: {text}")  # noqa: E731 - one use
        settings = replace(self.settings, reserved_system_cpus=self.config.reserved_system_cpus)
        containers = PodContainers(self.cgroups, self.runtime, settings)
        observers = Observers(self.clock, self.describe, report)
        books = Books(
            node,
            restored,
            containers=containers,
            store=self.store,
            announcements=Announcements(
                self.files,
                self.mirror,
                report,
                Tellings(self.teller, observers, restored.active, restored.above),
            ),
            settings=settings,
            observers=observers,
            guardian=self.guardian,
        )
        manager = Manager(books, containers, self.plugins, self.dynamic)
        follower = asyncio.create_task(containers.exits.follow(self.runtime.exits()))
        self.running = manager, follower
        self.health = DeviceHealth(manager)
        await take_over(manager, restored)
        await self.health.take(self.plugins.inventory())
        return manager

    def mirror(self, state: NodeState, _pods: object) -> None:
        self.mirrored.append(state.ledger)

    @property
    def manager(self) -> Manager:
        """The manager of the agent that runs."""
        assert self.running is not None
        return self.running[0]

    @property
    def books(self) -> Books:
        """What that manager has."""
        return self.manager.books

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    async def kill(self) -> None:
        """End the agent as SIGKILL would: nothing is tidied up."""
        if self.running is not None:
            manager, follower = self.running
            follower.cancel()
            await manager.close()
            await asyncio.gather(follower, return_exceptions=True)
            self.running = None
        self.runtime = self.runtime.reconnect()

    async def admit(self, pod: dict[str, Any], *, wait: bool = True) -> Any:
        text = json.dumps(pod)
        record = await self.manager.admit(parse(text), manifest=text)
        life = self.manager.lives.get(record.uid)
        if wait and life is not None:
            await asyncio.wait_for(life.started.wait(), 5)
        return record

    async def settle(self) -> None:
        """Let every task go on until none can, also one that lets a change go first."""
        for pause in (*[0.0] * 50, 0.01, *[0.0] * 50):
            await asyncio.sleep(pause)

    def cpus(self, pod: str) -> dict[str, str]:
        """Where the kernel lets a pod's containers run."""
        return {
            status.key.name: str(self.cgroups.allowed(status.pid))
            for status in self.runtime.known()
            if status.key.pod_uid == f"uid-{pod}" and status.pid is not None
        }

    def check(self) -> None:
        """What must hold whenever no call is under way."""
        ledger = self.books.view.state.ledger
        assert ledger.violations() == []
        owners: dict[int, str] = {}
        for status in self.runtime.known():
            if status.pid is None or status.state is not ContainerState.RUNNING:
                continue
            cpus = self.cgroups.allowed(status.pid)
            own = ledger.cpus_of(status.key.pod_uid, status.key.name)
            if own is not None:
                pod = self.books.view.pods.active[status.key.pod_uid]
                if status.key.name in pod.workload.pod.mixed:
                    own |= self.books.view.pool
                assert cpus == own & self.cgroups.online, f"{status.key} runs on {cpus}, owns {own}"
                continue
            strangers = ledger.exclusive - ledger.cpus_of_pod(status.key.pod_uid)
            if self.cgroups.groups[status.key].placement.borrows:
                strangers -= self.books.view.lent
            assert cpus.isdisjoint(strangers), f"{status.key} shares {cpus & strangers}"
        state, pods = self.books.view.state, self.books.view.pods.active
        for pod in pods.values():
            devices = {n: {r: g.ids for r, g in gs.items()} for n, gs in pod.record.devices.items()}
            assert state.devices.allocations.of_pod(pod.uid) == devices
            if state.memory is not None:
                assert state.memory.assignments.get(pod.uid, {}) == pod.record.memory
                assert state.memory.bubbles.get(pod.uid, ()) == pod.record.bubble_memory
            assert ledger.bubbles.get(pod.uid, CPUSet()) == pod.record.bubble
            self._check_asks(pod)
        asked: Counter[str] = Counter()
        for pod in pods.values():
            asked.update(amounts(pod.workload.pod))
        assert +Counter(state.requested) == +asked, f"requested {dict(state.requested)}"
        assert min(state.requested.values(), default=0) >= 0
        assert state.devices.allocations.pods.keys() <= pods.keys()
        if state.memory is not None:
            assert state.memory.assignments.keys() | state.memory.bubbles.keys() <= pods.keys()
        assert ledger.bubbles.keys() <= pods.keys()
        for uid, containers in ledger.assignments.items():
            assert uid in self.books.view.pods.active, f"leaked: {uid} {dict(containers)}"
            for cpus in containers.values():
                for cpu in cpus:
                    assert owners.setdefault(cpu, uid) == uid
        recorded = {
            uid: dict(pod.assignments) for uid, pod in self.store.pods.items() if pod.assignments
        }
        assert recorded == {uid: dict(c) for uid, c in ledger.assignments.items()}
        bubbles = {uid: pod.bubble for uid, pod in self.store.pods.items() if pod.bubble}
        assert bubbles == ledger.bubbles
        assert self.store.node is None or self.store.node.default == ledger.default

    def _check_asks(self, pod: AdmittedPod) -> None:
        """A pod asks for what it has, and its containers are limited to that."""
        spec, view = pod.workload.pod, self.books.view
        assert parse(pod.record.manifest).pod == spec, f"{pod.name} asks for something else"
        moving = set() if view.move is None else view.move.plan.start.placed.keys()
        busy = self.books.containers.seen.busy
        for container in spec.all_containers:
            name, key = container.name, pod.key(container)
            claim = pod.record.assignments.get(name)
            if claim is not None and not (pod.record.bubble or Owner(pod.uid, name) in moving):
                asks = guaranteed_cpus(spec, container)
                own = claim - pod.record.idle.get(name, CPUSet())
                assert len(own) == asks, f"{key} has {own}, and asks for {asks}"
            group, status = self.cgroups.groups.get(key), self.books.statuses.get(key)
            runs = status is not None and status.state is ContainerState.RUNNING
            if group is not None and runs and key not in busy:
                limits = self.books.placement(key).limits
                assert group.placement.limits == limits, f"{key} is limited to another number"


class Copy:
    """What a record held at a moment, to put it back."""

    def __init__(self, node: Harness) -> None:
        store = node.store
        self.state = (store.node, dict(store.pods), list(store.entries), store.generation)
        self.move = store.move

    def put_back(self, node: Harness, *, promised: bool) -> None:
        """Roll the record back; the promise beside it may be lost as well."""
        store = node.store
        store.node, pods, entries, store.generation = self.state
        store.pods, store.entries, store.move = dict(pods), list(entries), self.move
        if not promised:
            store.promised = 0


def run(scenario: Callable[[Harness], Awaitable[None]], **harness: Any) -> None:
    """Run a scenario on a fresh node, and check the invariants at its end."""

    async def whole() -> None:
        node = Harness(**harness)
        await node.start()
        await scenario(node)
        await node.settle()
        node.check()
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 600))
