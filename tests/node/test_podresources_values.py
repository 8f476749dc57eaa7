"""What a manager's pods come to in podresources: the kubelet's choice of pods, containers, CPUs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.memory.memory import Block, MemoryState
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.observation.pod_resources import ManagedPodResources, pod_resources, resources_of
from pinfold.node.pod_table import PodTable
from pinfold.ports.podresources import ContainerResources, PodResources
from pinfold.ports.records import PodPhase, PodRecord
from pinfold.state.ledger import Ledger
from tests.scenes.manager_harness import STATIC, Harness, manifest, parse, run_virtually
from tests.scenes.pod_level_pods import container, whole_pod


async def admit(harness: Harness, document: dict[str, Any]) -> PodRecord:
    text = json.dumps(document)
    return await harness.manager.admit(parse(text), manifest=text)


def cpus(pod: PodResources | None) -> dict[str, str]:
    assert pod is not None
    return {container.name: str(container.cpus) for container in pod.containers}


def test_only_exclusive_cpus_are_told() -> None:
    async def scenario() -> None:
        harness = Harness()
        source = ManagedPodResources((await harness.start()).books)
        assert source.pods() == ()
        await admit(harness, manifest("own", "2", "500m"))
        await admit(harness, manifest("shared", ""))
        own, shared = source.pods()
        assert (own.namespace, own.name) == ("default", "own")
        assert cpus(own) == {"c0": "2-3", "c1": ""}
        assert cpus(shared) == {"c0": ""}
        assert source.pod("default", "own") == own
        assert source.pod("default", "nobody") is None
        assert source.pod("prod", "own") is None

    run_virtually(scenario())


def test_sidecars_come_first_and_other_init_containers_not_at_all() -> None:
    async def scenario() -> None:
        harness = Harness()
        source = ManagedPodResources((await harness.start()).books)
        document = manifest("pod", "1", init=("2", "1"))
        document["spec"]["initContainers"][1]["restartPolicy"] = "Always"
        await admit(harness, document)
        (pod,) = source.pods()
        side, main = pod.containers
        assert (side.name, side.restartable_init) == ("i1", True)
        assert (main.name, main.restartable_init) == ("c0", False)
        ledger = harness.books.view.state.ledger
        assert (side.cpus, main.cpus) == (
            ledger.cpus_of("uid-pod", "i1"),
            ledger.cpus_of("uid-pod", "c0"),
        )
        assert side.cpus
        assert main.cpus

    run_virtually(scenario())


def test_the_policy_of_an_ordinary_container_makes_no_sidecar_of_it() -> None:
    container = Container("c", restart_policy="Always")
    workload = Workload(Pod("u", "p", containers=(container,)), {})
    record = PodRecord("u", "default", "p", "{}", PodPhase.RUNNING)
    table = PodTable(active={"u": AdmittedPod(workload, record)})
    (pod,) = pod_resources(NodeState(Ledger("none", CPUSet([0]))), table)
    assert pod.containers == (ContainerResources("c"),)


def test_a_pod_that_is_rejected_or_has_ended_is_found_by_name_only() -> None:
    async def scenario() -> None:
        harness = Harness()
        source = ManagedPodResources((await harness.start()).books)
        record = await admit(harness, manifest("large", "100", restartPolicy="Never"))
        assert record.phase is PodPhase.REJECTED
        assert source.pods() == ()
        assert source.pod("default", "large") == PodResources(
            "default", "large", (ContainerResources("c0"),)
        )
        await harness.manager.release("default/large")
        assert source.pod("default", "large") is None

    run_virtually(scenario())


def test_the_admitted_pod_of_a_name_wins_and_then_the_newest() -> None:
    async def scenario() -> None:
        harness = Harness()
        manager = await harness.start()
        source = ManagedPodResources(manager.books)
        for uid, count in (("old", 1), ("new", 2)):
            document = manifest("web", *["1"] * count)
            document["metadata"]["uid"] = uid
            record = PodRecord(uid, "default", "web", json.dumps(document), PodPhase.FAILED)
            async with manager.books.change() as draft:
                draft.remember(record)
        assert len(cpus(source.pod("default", "web"))) == 2
        for unreadable in ("[]", "{"):
            async with manager.books.change() as draft:
                draft.remember(replace(record, manifest=unreadable))
            assert source.pod("default", "web") == PodResources("default", "web")
        await admit(harness, manifest("web", "1"))
        assert cpus(source.pod("default", "web")) == {"c0": "1"}

    run_virtually(scenario())


def test_a_pod_that_is_being_ended_still_has_its_cpus() -> None:
    async def scenario() -> None:
        harness = Harness()
        manager = await harness.start()
        source = ManagedPodResources(manager.books)
        await admit(harness, manifest("web", "2"))
        for _ in range(50):
            await asyncio.sleep(0.01)
        held = manager.lives["uid-web"].lock
        async with held:
            ending = asyncio.create_task(manager.release("default/web"))
            await asyncio.sleep(0.01)
            assert manager.books.view.pods.active["uid-web"].is_ending
            assert [cpus(pod) for pod in source.pods()] == [{"c0": "2-3"}]
        await ending
        assert source.pods() == ()

    run_virtually(scenario())


def test_what_may_be_owned() -> None:
    async def scenario() -> None:
        harness = Harness()
        manager = await harness.start()
        source = ManagedPodResources(manager.books)
        assert source.allocatable().cpus == CPUSet(range(1, 8))
        # What is owned already counts, what is offline does not.
        await admit(harness, manifest("web", "2"))
        assert source.allocatable().cpus == CPUSet(range(1, 8))
        await manager.books.set_offline(CPUSet([7]))
        assert source.allocatable().cpus == CPUSet(range(1, 7))

    run_virtually(scenario())


def test_under_policy_none_nothing_may_be_owned() -> None:
    async def scenario() -> None:
        harness = Harness(config=NodeConfig(reserved_system_cpus=CPUSet([0])))
        source = ManagedPodResources((await harness.start()).books)
        await admit(harness, manifest("web", "2"))
        assert [cpus(pod) for pod in source.pods()] == [{"c0": ""}]
        assert source.allocatable().cpus == CPUSet()

    run_virtually(scenario())


def test_strict_reservation_changes_the_pool_and_not_what_may_be_owned() -> None:
    async def scenario() -> None:
        strict = replace(STATIC, cpu_manager_policy_options={"strict-cpu-reservation": "true"})
        source = ManagedPodResources((await Harness(config=strict).start()).books)
        assert source.allocatable().cpus == CPUSet(range(1, 8))

    run_virtually(scenario())


@pytest.mark.parametrize(("pools_once", "pool"), [(False, "4-7"), (True, "")])
def test_a_pod_that_has_cpus_and_memory_as_a_whole(*, pools_once: bool, pool: str) -> None:
    """Kubelet 1.36 lists the pod's pool with each container on it, 1.37 with the pod alone."""
    pod = whole_pod(
        "8",
        "8Gi",
        container("own", "2", "1Gi"),
        container("part", "1500m", "2Gi"),
        container("shared"),
        init=(container("setup"), container("side", sidecar=True)),
        uid="u",
    )
    parts = {"own": "2-3", "part": "4-7", "shared": "4-7", "setup": "0-7", "side": "4-7"}
    gib = 1 << 30
    sizes = {"own": 1, "part": 2, "shared": 5, "setup": 8, "side": 5}
    ledger = replace(
        Ledger("static", CPUSet.parse("8-9")),
        assignments={"u": {name: CPUSet.parse(cpus) for name, cpus in parts.items()}},
        bubbles={"u": CPUSet.parse("0-7")},
    )
    memory = MemoryState(
        {},
        {"u": {name: (Block((0,), "memory", size * gib),) for name, size in sizes.items()}},
        {"u": (Block((0,), "memory", 8 * gib),)},
    )
    found = resources_of(pod, NodeState(ledger, memory=memory), pools_once=pools_once)
    assert cpus(found) == {"side": pool, "own": "2-3", "part": pool, "shared": pool}
    assert found.cpus == CPUSet.parse("0-7")
    assert [(one.memory_type, one.size, one.numa_nodes) for one in found.memory] == [
        ("memory", 8 * gib, (0,))
    ]
    # A fraction of a CPU is shared, and its memory is the container's own.
    shared_size = [] if pools_once else [5 * gib]
    assert {one.name: [block.size for block in one.memory] for one in found.containers} == {
        "side": shared_size,
        "own": [gib],
        "part": [2 * gib],
        "shared": shared_size,
    }
    other = resources_of(replace(pod, uid="v"), NodeState(ledger, memory=memory))
    assert (other.cpus, other.memory, cpus(other)["own"]) == (CPUSet(), (), "")
