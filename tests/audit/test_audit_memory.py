"""The audit of memory: NUMA nodes as they are recorded, and as the kernel has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.audit.audit import audit
from pinfold.audit.findings import AuditSeverity, Finding
from pinfold.audit.record import AuditRecord, Owner
from pinfold.audit.snapshot import KernelSnapshot
from pinfold.core.memory.memory import Block, MemoryState, NodeMemory
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.memory_manager_state import checkpoint_of
from pinfold.state.restore import to_checkpoint
from tests.scenes.audited import CLEAN, DB, LEDGER, RECORD, found, group, run
from tests.scenes.kernel_tree import ID_A, ID_B, SLICE, UID, V2, KernelTree, kubelet_node

GIB = 1 << 30
SCOPE = f"/{V2}/{SLICE}/cri-containerd"


def findings(record: AuditRecord, mems: str, nodes: Mapping[int, CPUSet] | None = None) -> Finding:
    cpusets = {**CLEAN.cpusets, "/own/db": group("/own/db", "2-3", mems=mems)}
    snapshot: KernelSnapshot = replace(CLEAN, cpusets=cpusets, nodes=nodes or {})
    (one,) = audit(snapshot, record).findings
    return one


def test_recorded_nodes_are_compared_whatever_the_cpus_are_near_to() -> None:
    nodes = {0: CPUSet(range(4)), 1: CPUSet(range(4, 8))}
    far = replace(RECORD, owners=(replace(DB, mems=CPUSet([1])), *RECORD.owners[1:]))
    one = findings(far, "0", nodes)
    assert (one.kind.slug, one.severity) == ("mems-differ", AuditSeverity.ERROR)
    assert one.what == ("db/main: its memory is recorded on NUMA node 1, the kernel lets it use 0")
    assert one.fix == ("echo 1 > /sys/fs/cgroup/own/db/cpuset.mems",)
    # As recorded, it is nobody's business that the CPUs are elsewhere: the policy wanted it so.
    cpusets = {**CLEAN.cpusets, "/own/db": group("/own/db", "2-3", mems="1")}
    assert audit(replace(CLEAN, cpusets=cpusets, nodes=nodes), far).findings == ()


@pytest.mark.parametrize(("mems", "told"), [("0-1", "0-1"), ("1", "1")])
def test_wider_and_other_nodes_are_the_same_error(mems: str, told: str) -> None:
    record = replace(RECORD, owners=(replace(DB, mems=CPUSet([0])), *RECORD.owners[1:]))
    assert findings(record, mems).what.endswith(f"NUMA node 0, the kernel lets it use {told}")


def test_a_container_without_cpus_of_its_own() -> None:
    sharer = Owner("db", "log", CPUSet(), ("/own/db",), mems=CPUSet([0, 1]))
    record = replace(RECORD, sharers=(sharer,))
    one = findings(record, "0")
    assert one.what == "db/log: its memory is recorded on NUMA nodes 0-1, the kernel lets it use 0"
    assert not one.cpus


# --------------------------------------------------------------------------- as it is typed


@pytest.fixture
def node(tmp_path: Path) -> KernelTree:
    tree = kubelet_node(tmp_path)
    tree.write("var/lib/kubelet/cpu_manager_state", to_checkpoint(LEDGER).encode().decode())
    return tree


def put_memory(node: KernelTree, **containers: tuple[int, ...]) -> None:
    assignments = {
        UID: {name: (Block(nodes, "memory", GIB),) for name, nodes in containers.items()}
    }
    machine = {n: NodeMemory(16 * GIB) for n in (0, 1)}
    state = MemoryState.of(machine, assignments)
    node.write(
        "var/lib/kubelet/memory_manager_state", checkpoint_of("Static", state).encode().decode()
    )


def name(node: KernelTree, container_id: str, name: str) -> None:
    task = f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{container_id}/config.json"
    annotations = {
        "io.kubernetes.cri.container-name": name,
        "io.kubernetes.cri.container-type": "container",
    }
    node.write(task, json.dumps({"annotations": annotations}))


def set_mems(node: KernelTree, container_id: str, mems: str) -> None:
    folder = f"{V2}/{SLICE}/cri-containerd-{container_id}.scope"
    node.write(f"{folder}/cpuset.mems", f"{mems}\n")
    node.write(f"{folder}/cpuset.mems.effective", f"{mems}\n")


def test_a_kubelet_with_both_managers(node: KernelTree) -> None:
    put_memory(node, app=(0,), log=(1,))
    name(node, ID_B, "log")
    set_mems(node, ID_A, "0")
    set_mems(node, ID_B, "1")
    assert found(run("--kubelet", "--root", node.root, "-o", "json")) == {}
    # The one that shares CPUs is still a container of the shared pool, and no owner.
    document = json.loads(run("--kubelet", "--root", node.root, "-o", "json").stdout)
    assert [owner["container"] for owner in document["owners"]] == ["app"]
    set_mems(node, ID_A, "0-1")
    set_mems(node, ID_B, "0")
    result = run("--kubelet", "--root", node.root, "-o", "json", status=1)
    both = [f for f in json.loads(result.stdout)["findings"] if f["slug"] == "mems-differ"]
    assert [one["fix"] for one in both] == [
        [f"echo 0 > {SCOPE}-{ID_A}.scope/cpuset.mems"],
        [f"echo 1 > {SCOPE}-{ID_B}.scope/cpuset.mems"],
    ]


def test_shared_cpus_are_still_audited_for_those_with_memory(node: KernelTree) -> None:
    put_memory(node, app=(0,), log=(0,))
    name(node, ID_B, "log")
    for container in (ID_A, ID_B):
        set_mems(node, container, "0")
    folder = f"{V2}/{SLICE}/cri-containerd-{ID_B}.scope"
    node.write(f"{folder}/cpuset.cpus", "0-7\n")
    node.write(f"{folder}/cpuset.cpus.effective", "0-7\n")
    slugs = found(run("--kubelet", "--root", node.root, "-o", "json", status=1))
    assert "shared-overlaps" in slugs


def test_memory_of_a_container_that_has_no_cgroup_is_nobodys_fault(node: KernelTree) -> None:
    put_memory(node, app=(0,), init=(0,))
    set_mems(node, ID_A, "0")
    assert found(run("--kubelet", "--root", node.root, "-o", "json")) == {}


@pytest.mark.parametrize("content", ["{", '{"policyName":"Static","machineState":{},"checksum":1}'])
def test_a_broken_record_of_memory_is_a_finding(node: KernelTree, content: str) -> None:
    node.write("var/lib/kubelet/memory_manager_state", content)
    slugs = found(run("--kubelet", "--root", node.root, "-o", "json", status=1))
    assert list(slugs) == ["record-broken"]
    assert slugs["record-broken"]["where"].endswith("memory_manager_state")


def test_policy_none_records_nothing(node: KernelTree) -> None:
    node.write(
        "var/lib/kubelet/memory_manager_state",
        checkpoint_of("None", MemoryState()).encode().decode(),
    )
    assert found(run("--kubelet", "--root", node.root, "-o", "json")) == {}
