"""A node whose containers a runtime starts, on fakes: agent, runtime, kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.admission.decision import Decision
from pinfold.admission.model import build_node, empty_state
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.feature_gates import DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.memory.memory import MemoryState
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.announcements import Announcements
from pinfold.node.books import Books
from pinfold.node.loading import load
from pinfold.node.moves.mover import Mover
from pinfold.node.moves.rebalancing import Rebalancing
from pinfold.node.nri.events import PluginEvents
from pinfold.node.nri.inquiries import Inquiries
from pinfold.node.nri.kubelet_containers import KubeletContainers
from pinfold.node.nri.kubelet_devices import KubeletDevices
from pinfold.node.nri.kubelet_pods import KubeletPods
from pinfold.node.nri.kubelet_room import KubeletRoom
from pinfold.node.nri.kubelet_specs import KubeletSpecs, PodSource
from pinfold.node.nri.lifecycle import ContainerLifecycle
from pinfold.node.nri.lost_removals import LostRemovals
from pinfold.node.nri.resizes import KubeletResizes
from pinfold.node.observers import Observers
from pinfold.node.recorded_cpusets import SETTLED, RecordedCpusets
from pinfold.node.recovery.recovery import OnMismatch, restore
from pinfold.node.settings import NodeSettings
from pinfold.node.tellings import Tellings
from pinfold.planning.fake_nri import FakeContainer, FakeNode
from pinfold.planning.fake_plugins import FakeKubeletDevices, FakePodSource
from pinfold.planning.fake_runtime_cgroups import FakeRuntimeCgroups, MemoryGateRecord
from pinfold.planning.fakes import MemoryPodFiles, MemoryStore, MemoryTeller
from pinfold.ports.nri import Container, ContainerUpdate, PodSandbox, Resources, RuntimeRecord
from pinfold.web.documents import Documents
from tests.scenes.manager_harness import STATIC, no_document, parse, run_virtually

GIB = 1 << 30


def guaranteed(cpus: float) -> Resources:
    """What a kubelet asks for a container of a Guaranteed pod."""
    return Resources(
        cpu_shares=int(cpus * 1024), cpu_quota=int(cpus * 100_000), cpu_period=100_000, memory=GIB
    )


BEST_EFFORT = Resources(cpu_shares=2)
PARENTS = {
    "guaranteed": "/kubepods",
    "burstable": "/kubepods/burstable",
    "besteffort": "/kubepods/besteffort",
}


class OverCri:
    """The record of a runtime that is told over the CRI."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node

    async def update(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        return await self._node.update_over_cri(updates)


@dataclass
class LifecycleHarness:
    """``node`` is runtime and kernel, which outlive every agent."""

    machine: str = "1s4c2t"
    config: NodeConfig = STATIC
    over_cri: bool = False
    listed: bool = True
    busy: bool = False
    version: int = 2
    has_server: bool = True
    server: PodSource | None = None
    """An API server in place of the one in memory."""
    dynamic: DynamicOptions | None = None
    describe: Callable[[Decision, NodeState], Awaitable[str]] = no_document
    problems: list[str] = field(default_factory=list)
    settled: float = SETTLED
    front: Callable[[Any], Any] = lambda port: port
    """What stands before the ports of an agent that starts."""

    def __post_init__(self) -> None:
        self.view = kubelet_view(parse_short_form(self.machine))
        self.node = FakeNode(self.view.topology.cpus, self.version)
        self.gates = MemoryGateRecord()
        self.store = MemoryStore()
        self.files = MemoryPodFiles()
        self.teller = MemoryTeller()
        self.kubelet = FakeKubeletDevices()
        self.api = FakePodSource()
        self.now = 0.0
        self._follower: asyncio.Task[None] | None = None
        self._resizing: asyncio.Task[None] | None = None
        self.told: list[str] = []

    async def start(self, on_mismatch: OnMismatch = OnMismatch.REFUSE) -> Books:
        """Start an agent, which registers with the runtime."""
        machine = parse_short_form(self.machine)
        node = build_node(machine, self.config, view=self.view, rules=SOUND)
        empty = empty_state(node, self.view.topology.cpus)
        restored = restore(
            await self.store.load(), node, empty, parse=parse, on_mismatch=on_mismatch
        )
        settings = replace(
            NodeSettings(),
            reserved_system_cpus=self.config.reserved_system_cpus,
            uncap_owners=self.config.gate(DISABLE_CPU_QUOTA_WITH_EXCLUSIVE_CPUS),
        )
        self.cgroups: FakeRuntimeCgroups = self.front(FakeRuntimeCgroups(self.node, self.gates))
        self.ledger = RecordedCpusets(
            self.cgroups,
            self.report,
            batch=4,
            settled=self.settled,
            uncaps=settings.uncap_owners,
        )
        table = KubeletContainers(self.cgroups, self.ledger)
        observers = Observers(self.clock, self.describe, self.report, self.ledger.follow)
        self.books = Books(
            node,
            restored,
            containers=table,
            store=self.front(self.store),
            announcements=Announcements(
                self.front(self.files),
                lambda _state, _pods: None,
                self.report,
                Tellings(self.teller, observers),
            ),
            settings=settings,
            observers=observers,
        )
        await load(self.books, restored)
        await self.cgroups.open(self.books.view.pool)
        self.mover = Mover(self.books)
        self.rebalancing = Rebalancing(self.books, self.mover, self.dynamic)
        pods = KubeletPods(self.books, self.rebalancing.rooms, parse)
        self._follower = asyncio.create_task(self.ledger.run(self.record()))
        self.pods = pods
        self.devices = KubeletDevices(self.kubelet, self.report)
        api = self.server or self.api
        self.specs = KubeletSpecs(api if self.has_server else None, self.report)
        inquiries = Inquiries(pods, self.devices, self.specs)
        containers = ContainerLifecycle(self.books, pods, table, self.ledger, inquiries)
        self.resizes = KubeletResizes(containers, self.mover, self.tell)
        room = KubeletRoom(self.books, pods, self.rebalancing)
        events = PluginEvents(containers, self.resizes, room)
        self._resizing = asyncio.create_task(self.resizes.run())
        self.asked_again: list[str] = []
        self.lost = LostRemovals(
            events,
            containers,
            listing=self.node if self.listed else None,
            register_again=self.register_again,
        )
        await self.connect(events)
        return self.books

    def record(self) -> RuntimeRecord:
        """Where the runtime's record is changed."""
        return OverCri(self.node) if self.over_cri else self.node

    async def connect(self, events: PluginEvents) -> None:
        """Register with the runtime, and be shown everything."""
        await self.node.connect(events)

    @contextmanager
    def unheard(self) -> Iterator[None]:
        """The agent is told nothing, and does not know."""
        plugin, self.node.plugin = self.node.plugin, None
        try:
            yield
        finally:
            self.node.plugin = plugin

    async def look_twice(self) -> None:
        """Look for what is gone."""
        await self.lost.look()
        await self.lost.look()

    async def kill(self) -> None:
        """End the agent; the runtime goes on without it."""
        self.node.plugin = None
        if self._follower is not None and self._resizing is not None:
            for task in (self._follower, self._resizing):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            await self.books.close()

    def register_again(self, why: str) -> bool:
        self.asked_again.append(why)
        return not self.busy

    def report(self, pod: str | None, text: str) -> None:
        self.problems.append(f"{pod}: {text}")

    def tell(self, pod: PodSandbox, container: Container, text: str) -> None:
        self.told.append(f"{pod.name}/{container.name}: {text}")

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    async def pod(self, name: str, kind: str = "guaranteed", *, mixed: bool = False) -> PodSandbox:
        """A sandbox, where a kubelet puts pods of this QoS class."""
        annotations = {"mixed-cpus.pinfold.dev/pod": "true"} if mixed else {}
        parent = f"{PARENTS[kind]}/poduid-{name}"
        return await self.node.run_pod(f"uid-{name}", name, parent, annotations)

    def pool_of(self, uid: str, name: str) -> CPUSet:
        """What of the shared pool a container uses that owns CPUs."""
        pod = self.books.view.pods.active[uid].workload.pod
        return self.books.view.pool if name in pod.mixed else CPUSet()

    async def run(self, pod: PodSandbox, name: str, resources: Resources) -> FakeContainer:
        """Create and start a container."""
        container = await self.node.create(pod, name, resources)
        await self.node.start(container)
        return container

    async def settle(self) -> None:
        """Let the runtime's record follow."""
        for _ in range(100):
            await asyncio.sleep(0.1)

    def ran_shared(self) -> dict[str, float]:
        """How long owners ran before they had their CPUs, as the status tells it."""
        return {
            f"{pod.namespace}/{pod.name} {container.name}": seconds
            for pod in Documents(self.books).pods()
            for container in pod.containers
            if (seconds := container.ran_shared_seconds) is not None
        }

    def kernel(self) -> dict[str, str]:
        """The cpusets of all containers that run, by ``pod/container``."""
        return {
            f"{one.pod.name}/{one.seen.name}": str(one.kernel)
            for one in self.node.containers.values()
            if one.runs
        }

    def recorded(self) -> dict[str, str]:
        """The same as the runtime has it on record."""
        return {
            f"{one.pod.name}/{one.seen.name}": one.seen.resources.cpus
            for one in self.node.containers.values()
            if one.runs
        }

    def mems(self) -> dict[str, str]:
        """The NUMA nodes in the cpusets of all containers that run; "" is all of them."""
        return {
            f"{one.pod.name}/{one.seen.name}": str(one.mems)
            for one in self.node.containers.values()
            if one.runs
        }

    async def until_moved(self) -> None:
        """Let moves that are in flight come to their end."""
        while (move := self.books.view.move) is not None:
            await self.books.until_replanned(move)

    def check(self) -> None:
        """What must hold whenever no call is under way, and no move."""
        ledger = self.books.view.state.ledger
        assert ledger.violations() == []
        self.check_memory()
        for one in self.node.containers.values():
            if one.kernel is None or not one.runs:
                continue
            own = ledger.cpus_of(one.pod.uid, one.seen.name)
            if own is None:
                strangers = one.kernel & ledger.exclusive
                assert not strangers, f"{one.key} shares {strangers}"
            else:
                own |= self.pool_of(one.pod.uid, one.seen.name)
                assert one.kernel == own, f"{one.key} runs on {one.kernel}, owns {own}"
        shown = {one.pod.uid for one in self.node.containers.values()}
        assert ledger.assignments.keys() - ledger.bubbles.keys() <= shown, "CPUs are leaked"
        sandboxes = {pod.uid for pod in self.node.pods.values()}
        assert ledger.bubbles.keys() <= sandboxes, "a bubble is leaked"
        bubbles = {uid: pod.bubble for uid, pod in self.store.pods.items() if pod.bubble}
        assert bubbles == ledger.bubbles
        recorded = {
            uid: dict(pod.assignments) for uid, pod in self.store.pods.items() if pod.assignments
        }
        assert recorded == {uid: dict(c) for uid, c in ledger.assignments.items()}
        assert self.store.node is None or self.store.node.default == ledger.default

    def check_memory(self) -> None:
        """Books, record and kernel agree about memory, and no more is given than there is."""
        memory, policy = self.books.view.state.memory, self.books.view.node.memory_policy
        if memory is None or policy is None:
            return
        for one in self.node.containers.values():
            if one.runs:
                wanted = CPUSet(memory.nodes_of(one.pod.uid, one.seen.name))
                assert not wanted or one.mems == wanted, f"{one.key} has memory of {one.mems}"
        recorded = {uid: dict(pod.memory) for uid, pod in self.store.pods.items() if pod.memory}
        assert recorded == {uid: dict(pod) for uid, pod in memory.assignments.items()}
        anew = MemoryState.of(policy.nodes, memory.assignments, memory.bubbles)
        assert anew.assignments == memory.assignments
        alone = {uid: pod for uid, pod in recorded.items() if uid not in memory.bubbles}
        given = sum(b.size for pod in alone.values() for bs in pod.values() for b in bs)
        given += sum(block.size for blocks in memory.bubbles.values() for block in blocks)
        tables = [t for n in memory.machine.values() for t in (n.memory_map or {}).values()]
        assert sum(table.reserved for table in tables if table is not None) == given

    def check_first_instructions(self) -> None:
        """Nobody ever began on CPUs of somebody else."""
        for key, cpus in self.node.starts:
            own = self.books.view.state.ledger.cpus_of(key.pod_uid, key.name)
            if own is not None:
                own |= self.pool_of(key.pod_uid, key.name)
            assert own is None or cpus == own, f"{key} began on {cpus}, owns {own}"
        self.node.starts.clear()


Story = Callable[[LifecycleHarness], Coroutine[Any, Any, None]]


def story(test: Story) -> Callable[[], None]:
    """A test that is told as a story of a node, and ends with a look at all of it."""

    @wraps(test)
    def runs() -> None:
        async def with_node() -> None:
            harness = LifecycleHarness()
            await harness.start()
            await test(harness)
            await harness.settle()
            harness.check()
            await harness.kill()

        run_virtually(with_node())

    del runs.__wrapped__  # pytest would look for a fixture
    return runs
