"""The audit of pods that have CPUs and memory as a whole, from a kubelet's own two files.

Who should run where is worked out here from the files' text, not by what has written them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from pinfold.core.memory.memory import Block, MemoryState, NodeMemory
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint
from pinfold.state.layouts import Layout
from pinfold.state.ledger import Ledger
from pinfold.state.memory_manager_state import checkpoint_of
from pinfold.state.restore import to_checkpoint
from tests.scenes.audited import run
from tests.scenes.kernel_tree import ID_A, ID_B, ID_P, SLICE, UID, V2, KernelTree

GIB: Final = 1 << 30
ID_C: Final = "c" * 64
CONTAINERS: Final = {"own": ID_A, "log": ID_B, "beside": ID_C}
OWN, POOL, BUBBLE = (CPUSet.parse(text) for text in ("2-3", "4-5", "2-7"))
"""CPUs 6-7 of the bubble are of an init container that has ended."""
OUTSIDE: Final = "0-1"
STRANGER: Final = "kubepods.slice/kubepods-podffffffff_0000_0000_0000_000000000000.slice"
ID_S: Final = "e" * 64
TASKS: Final = "run/containerd/io.containerd.runtime.v2.task/k8s.io"
STATE: Final = "var/lib/kubelet/cpu_manager_state"
MEMORY: Final = "var/lib/kubelet/memory_manager_state"


class Node(KernelTree):
    """A kubelet's node with such a pod, and a container of another pod that shares."""

    def place(self, name: str, cpus: str, mems: str = "0") -> None:
        """Where a container is."""
        one = CONTAINERS[name]
        self.group(f"{SLICE}/cri-containerd-{one}.scope", cpus, cpus, mems=mems)
        first = min(CPUSet.parse(cpus))
        number = 600 + sorted(CONTAINERS).index(name)
        self.task(number, f"/{SLICE}/cri-containerd-{one}.scope", cpus, first, comm=name)

    def stranger(self, cpus: str) -> None:
        scope = f"{STRANGER}/cri-containerd-{ID_S}.scope"
        self.group(scope, cpus, cpus)
        self.task(700, f"/{scope}", cpus, min(CPUSet.parse(cpus)), comm="web")

    def call(self, container_id: str, name: str) -> None:
        """The runtime tells a container's name."""
        task = f"{TASKS}/{container_id}/config.json"
        annotations = {
            "io.kubernetes.cri.container-name": name,
            "io.kubernetes.cri.container-type": "container",
        }
        self.write(task, json.dumps({"annotations": annotations}))

    def audit(self, *slugs: str) -> list[dict[str, Any]]:
        """What is found, which is this."""
        told = run("--kubelet", "--root", self.root, "-o", "json", status=int(bool(slugs)))
        findings: list[dict[str, Any]] = json.loads(told.stdout)["findings"]
        assert sorted(one["slug"] for one in findings) == sorted(slugs)
        return findings

    def file(self, path: str) -> Any:
        return json.loads((self.root / path).read_text())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    tree = Node(tmp_path)
    tree.machine()
    tree.unified()
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    tree.group(f"{SLICE}/cri-containerd-{ID_P}.scope", "", "0-7")
    tree.place("own", "2-3")
    for name in ("log", "beside"):
        tree.place(name, "4-5")
    tree.stranger(OUTSIDE)
    for name, one in CONTAINERS.items():
        tree.call(one, name)
    tree.task(1, "/init.scope", OUTSIDE, 0, comm="systemd")
    tree.task(2, "/", OUTSIDE, 0, comm="kthreadd", flags=0x00200000)
    sets = {"own": OWN, "log": POOL, "beside": POOL}
    ledger = Ledger("static", CPUSet.parse("0-7")).with_bubble(UID, BUBBLE, sets)
    tree.write(STATE, to_checkpoint(ledger, Layout.V3).encode().decode())
    whole = (Block((0,), "memory", 4 * GIB),)
    shared = (Block((0,), "memory", 3 * GIB),)
    blocks = {"own": (Block((0,), "memory", GIB),), "log": shared, "beside": shared}
    memory = MemoryState.of(
        {number: NodeMemory(16 * GIB) for number in (0, 1)}, {UID: blocks}, {UID: whole}
    )
    tree.write(MEMORY, checkpoint_of("Static", memory, Layout.V2).encode().decode())
    return tree


def cgroup(name: str) -> str:
    return f"/{V2}/{SLICE}/cri-containerd-{CONTAINERS[name]}.scope"


def test_all_is_well_where_everybody_is_in_the_bubble(node: Node) -> None:
    # What the files say, read by nobody but this test.
    cpus, memory = node.file(STATE), node.file(MEMORY)
    said = {name: CPUSet.parse(text) for name, text in cpus["entries"][UID].items()}
    bubble = CPUSet.parse(cpus["podEntries"][UID]["cpuSet"])
    assert said["log"] == said["beside"] == bubble - said["own"] - CPUSet([6, 7])
    assert set(range(8)) == set(bubble) | set(CPUSet.parse(cpus["defaultCpuSet"]))
    (block,) = memory["podEntries"][UID]["memoryBlocks"]
    assert block["size"] == memory["machineState"]["0"]["memoryMap"]["memory"]["reserved"]
    node.audit()
    told = run("--kubelet", "--root", node.root)
    assert "exclusive    2-7" in told.stdout
    # The pod as a whole is told of once, under its own name.
    assert f"\n✓ {UID}\n    CPUs 2-7\n" in told.stdout
    assert f"✓ {UID}/log ({ID_B[:12]})\n    CPUs 4-5\n" in told.stdout


def test_the_pod_is_an_owner_without_a_name_of_a_container(node: Node) -> None:
    told = run("--kubelet", "--root", node.root, "-o", "json")
    owners = {one["container"]: one for one in json.loads(told.stdout)["owners"]}
    assert set(owners) == {None, "own", "log", "beside"}
    whole = owners[None]
    assert (whole["uid"], whole["id"], whole["cpus"]) == (UID, None, str(BUBBLE))
    assert whole["cgroups"] == [f"/{SLICE}"]


@pytest.mark.parametrize(
    ("name", "cpus"), [("own", "2-5"), ("own", "3"), ("log", OUTSIDE), ("beside", "4-7")]
)
def test_who_is_elsewhere_is_sent_back(node: Node, name: str, cpus: str) -> None:
    node.place(name, cpus)
    (one,) = node.audit("cpuset-differs")
    has = node.file(STATE)["entries"][UID][name]
    assert one["what"].endswith(f"recorded {has}, the kernel has {cpus}")
    assert one["fix"] == [f"echo {has} > {cgroup(name)}/cpuset.cpus"]


@pytest.mark.parametrize("stolen", [2, 5, 7])
def test_nobody_else_is_in_a_bubble_whoever_of_it_runs_there(node: Node, stolen: int) -> None:
    node.stranger(f"{OUTSIDE},{stolen}")
    (one,) = node.audit("shared-overlaps")
    assert one["cpus"] == str(stolen)
    assert STRANGER in one["where"]


def test_memory_of_those_who_share_is_that_of_their_pod(node: Node) -> None:
    for name in ("own", "log"):
        node.place(name, node.file(STATE)["entries"][UID][name], mems="0-1")
    found = node.audit("mems-differ", "mems-differ")
    assert {one["fix"][0] for one in found} == {
        f"echo 0 > {cgroup(name)}/cpuset.mems" for name in ("own", "log")
    }


def test_those_who_share_need_no_names_to_be_known(node: Node) -> None:
    """They have the same CPUs, so that nothing is said of one that does not hold of the others."""
    for one in CONTAINERS.values():
        (node.root / f"{TASKS}/{one}/config.json").unlink()
    node.audit()
    node.place("beside", OUTSIDE)
    # Which of them that is can be told of neither.
    found = node.audit("cgroup-missing", "cgroup-missing")
    assert all("cannot be told from the others of its pod" in one["why"] for one in found)


def test_a_pod_that_is_gone_leaves_its_bubble_on_record(node: Node) -> None:
    for number in (600, 601, 602):
        shutil.rmtree(node.root / "proc" / str(number))
    shutil.rmtree(node.root / V2 / SLICE)
    found = node.audit(*["cgroup-missing"] * 4)
    (whole,) = (one for one in found if one["what"].startswith(f"{UID}: "))
    assert "CPUs 2-7 are recorded" in whole["what"]
    (fix,) = whole["fix"]
    assert fix.endswith(f"--drop-missing-pods {UID}")


@pytest.mark.parametrize(
    ("bubble", "words"),
    [("2-3,6-7", "4-5"), ("0,2-7", "0")],
    ids=["smaller than its containers", "of the shared pool"],
)
def test_a_damaged_bubble_makes_the_record_doubtful(node: Node, bubble: str, words: str) -> None:
    damaged = CPUManagerCheckpoint.parse((node.root / STATE).read_bytes(), Layout.V3)
    damaged = replace(damaged, pod_entries={UID: bubble}).sealed()
    node.write(STATE, damaged.encode().decode())
    told = run("--kubelet", "--root", node.root, "-o", "json", status=1)
    doubts = [f for f in json.loads(told.stdout)["findings"] if f["slug"] == "record-doubtful"]
    assert any(words in one["what"] for one in doubts), doubts
