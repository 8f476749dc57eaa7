"""A kubelet's node on which CPUs move, on fakes: its owners, and who sees strangers among them."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_nri import FakeContainer
from pinfold.ports.nri import PodSandbox, RefusedError
from tests.scenes.lifecycle_harness import BEST_EFFORT, LifecycleHarness, guaranteed

LOOSE = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
STRICT = NodeConfig(
    cpu_manager_policy="static",
    topology_manager_policy="single-numa-node",
    reserved_system_cpus=CPUSet([0, 8]),
)
ROOM = DynamicOptions(make_room=True)
SPREAD = "6-11"


def watch(h: LifecycleHarness) -> list[str]:
    """Look at all cpusets after each write to one; who shares CPUs of whom."""
    found: list[str] = []

    def look() -> None:
        running = [one for one in h.node.containers.values() if one.runs and one.kernel]
        for one in running:
            owned = h.books.view.in_the_end(one.key.pod_uid, one.key.name) is not None
            for other in running:
                shared = (one.kernel or CPUSet()) & (other.kernel or CPUSet())
                if owned and other is not one and shared:
                    found.append(f"{one.key} and {other.key} have {shared}")

    h.node.wrote = look
    return found


class Node(LifecycleHarness):
    """A node whose owners have wishes; each write to a cpuset is followed by a look."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.strangers = watch(self)

    async def owner(self, name: str, cpus: int, **annotations: str) -> FakeContainer:
        return await self.run(await self.sandbox(name, **annotations), "main", guaranteed(cpus))

    async def sandbox(self, name: str, **annotations: str) -> PodSandbox:
        told = {f"{k.replace('_', '-')}.pinfold.dev/pod": text for k, text in annotations.items()}
        pod = replace(await self.pod(name), annotations=told)
        self.node.pods[pod.id] = pod
        return pod

    def has(self) -> dict[str, str]:
        """What everybody owns on record."""
        return {
            uid.removeprefix("uid-"): str(containers["main"])
            for uid, containers in self.books.view.state.ledger.assignments.items()
        }

    async def refused(self, pod: PodSandbox, cpus: int) -> str:
        """What the runtime is told, and at once."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(RefusedError) as told:
            await self.node.create(pod, "main", guaranteed(cpus))
        assert loop.time() == began
        return str(told.value)


async def spread(node: Node, **annotations: str) -> FakeContainer:
    """``c`` sits in both NUMA nodes, although there is room for it in one."""
    await node.run(await node.pod("web", "burstable"), "main", BEST_EFFORT)
    await node.owner("a", 5)
    return await node.owner("c", 6, **annotations)


async def crowd(node: Node, **annotations: str) -> FakeContainer:
    """Four CPUs are free, two in each NUMA node, where ``c`` could go aside."""
    await node.run(await node.pod("web", "burstable"), "main", BEST_EFFORT)
    await node.owner("a", 3)
    await node.owner("b", 5)
    c = await node.owner("c", 2, **annotations)
    assert node.has() == {"a": "1-3", "b": "9-13", "c": "4-5"}
    return c
