"""The memory manager beside the others: hints, the merge, the file, the node's configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.admission.memory_manager import MemoryManager
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import HugepagePool
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.memory.memory import Block, MemoryState, NodeMemory, NUMANodeState
from pinfold.core.memory.policy import (
    MemoryTransaction,
    StaticMemoryPolicy,
    create_memory_policy,
)
from pinfold.core.memory.reservation import MemoryPolicyError, node_memory
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import NUMAInfo, TopologyHint
from pinfold.core.topology_manager.manager import TopologyManager
from pinfold.core.values.quantity import Quantity
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.layouts import Layout
from pinfold.state.memory_manager_state import (
    MemoryManagerCheckpoint,
    checkpoint_of,
    state_of,
)
from pinfold.state.memory_restore import restore_memory
from pinfold.state.memory_startup import start_memory_policy
from tests.scenes.state_vectors import VECTORS, sample
from tests.vectors.runner import read_vector_file

GIB = 1 << 30
NODES = {node: NodeMemory(5 * GIB, {2048: 512}) for node in range(2)}
POLICY = StaticMemoryPolicy(NODES)


def pod(uid: str, memory: str, **more: str) -> Pod:
    amounts = {"cpu": "1", "memory": memory} | {
        f"hugepages-{size}": amount for size, amount in more.items()
    }
    both = {name: Quantity.parse(amount) for name, amount in amounts.items()}
    return Pod(uid=uid, name=uid, containers=(Container("c", both, both),))


def admit(policy: str, scope: str, what: Pod, state: MemoryState) -> tuple[bool, str, MemoryState]:
    manager = MemoryManager(POLICY, MemoryTransaction(what.uid, state))
    topology = TopologyManager.create(NUMAInfo((0, 1)), policy, scope, {})
    admission = topology.admit(what, what.all_containers, [manager])
    blocks = manager.allocations.get("c", ())
    assert bool(blocks) == admission.admitted
    return admission.admitted, admission.message or "", manager.transaction.state


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_under_every_topology_manager(policy: str, scope: str) -> None:
    admitted, _, state = admit(policy, scope, pod("p", "3Gi"), POLICY.empty_state)
    assert admitted
    assert state.nodes_of("p", "c") == (0,)
    admitted, _, state = admit(policy, scope, pod("q", "3Gi"), state)
    assert admitted
    assert state.nodes_of("q", "c") == (1,)
    admitted, message, after = admit(policy, scope, pod("r", "3Gi"), state)
    assert not admitted
    assert "no NUMA nodes with enough" in message or "NUMA nodes to extend" in message
    assert after is state


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("none", "c asks for hugepages-1Gi, but no NUMA node"),
        ("best-effort", "c asks for hugepages-1Gi, but no NUMA node"),
        ("restricted", "cannot be allocated with Topology locality"),
        ("single-numa-node", "cannot be allocated with Topology locality"),
    ],
)
def test_a_page_size_that_the_machine_has_not(policy: str, words: str) -> None:
    for scope in ("container", "pod"):
        want = pod("p", "1Gi", **{"1Gi": "1Gi"})
        admitted, message, state = admit(policy, scope, want, POLICY.empty_state)
        assert not admitted
        assert words in message
        assert state == POLICY.empty_state


def test_the_answers_are_the_policys() -> None:
    what = pod("p", "1Gi", **{"2Mi": "2Mi"})
    manager = MemoryManager(POLICY, MemoryTransaction("p", POLICY.empty_state))
    hints = manager.get_topology_hints(what, what.containers[0])
    assert hints is not None
    assert hints == manager.get_pod_topology_hints(what)
    assert hints.keys() == {"memory", "hugepages-2Mi"}
    manager.allocate(what, what.containers[0], TopologyHint(0b10, preferred=True))
    assert manager.allocations == {
        "c": (Block((1,), "hugepages-2Mi", 2 << 20), Block((1,), "memory", GIB))
    }


class TestFile:
    def test_there_and_back(self) -> None:
        _, _, state = admit("none", "container", pod("p", "6Gi"), POLICY.empty_state)
        file = checkpoint_of("Static", state).encode()
        restored = restore_memory(file, "Static")
        assert start_memory_policy(restored, NODES) == restored
        assert state_of(restored) == state == MemoryState.of(NODES, state.assignments)

    def test_policy_none(self) -> None:
        file = checkpoint_of("None", MemoryState()).encode()
        restored = restore_memory(file, "None")
        assert start_memory_policy(restored, NODES) == restored
        assert state_of(restored) == MemoryState()

    @pytest.mark.parametrize(
        "path",
        [
            sample("memory_state"),
            pytest.param(
                VECTORS / "memorymanager.jsonl.gz",
                marks=pytest.mark.skipif(
                    not VECTORS.exists(), reason="the whole recording is not at hand"
                ),
            ),
        ],
        ids=["sample", "whole"],
    )
    def test_recorded_files(self, path: Path) -> None:
        files = [
            case["file"].encode()
            for _, case in read_vector_file(path).cases
            if case["kind"] == "state_file"
        ]
        assert len(files) > 1
        for file in files:
            checkpoint = MemoryManagerCheckpoint.parse(file)
            state = state_of(checkpoint)
            assert checkpoint_of(checkpoint.policy_name, state).encode() == file

    def test_what_no_state_can_hold(self) -> None:
        null = MemoryManagerCheckpoint("Static", {0: None}, {})
        with pytest.raises(CheckpointError, match="NUMA node 0 is null"):
            state_of(null)

    def test_a_pod_keeps_its_bubble(self) -> None:
        bubble = (Block((0,), "memory", 5),)
        newer = MemoryManagerCheckpoint(
            "Static", {}, {"p": {"c": bubble}}, {"p": bubble}, Layout.V2
        ).sealed()
        state = state_of(newer)
        assert state.bubbles == {"p": bubble}
        assert checkpoint_of("Static", state, Layout.V2) == newer

    def test_a_container_with_null_has_no_assignment(self) -> None:
        machine: dict[int, NUMANodeState | None] = {0: NUMANodeState(0, {}, (0,))}
        odd = MemoryManagerCheckpoint("Static", machine, {"p": {"c": None}, "q": None})
        assert state_of(odd).blocks_of("p", "c") is None


class TestConfiguration:
    GIB_OF_NODE_0 = ({"numaNode": 0, "limits": {"memory": Quantity(GIB)}},)

    def test_what_the_kubelet_sees(self) -> None:
        machine = parse_short_form("2c")
        node = machine.numa_nodes[0]
        pools = {2 << 20: HugepagePool(512, 500), 1 << 30: HugepagePool(0, 0)}
        sized = replace(machine, numa_nodes=(replace(node, memory_bytes=GIB * 8, hugepages=pools),))
        view = kubelet_view(sized)
        assert node_memory(view) == {0: NodeMemory(8 * GIB, {2048: 512, 1 << 20: 0})}
        config = NodeConfig(memory_manager_policy="Static", reserved_memory=self.GIB_OF_NODE_0)
        made = create_memory_policy(config, view, {"memory": Quantity(GIB)})
        assert made is not None
        assert made.allocatable == (
            Block((0,), "hugepages-2Mi", GIB),
            Block((0,), "memory", 6 * GIB),
        )

    def test_policy_none_checks_nothing(self) -> None:
        config = NodeConfig(reserved_memory=self.GIB_OF_NODE_0)
        view = kubelet_view(parse_short_form("2c"))
        assert create_memory_policy(config, view, {}) is None

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("static", 'unknown policy: "static"'),
            ("BestEffort", 'policy "BestEffort" is not available for platform "linux"'),
        ],
    )
    def test_unknown_policies(self, name: str, words: str) -> None:
        view = kubelet_view(parse_short_form("2c"))
        with pytest.raises(MemoryPolicyError, match=words):
            create_memory_policy(NodeConfig(memory_manager_policy=name), view, {})
