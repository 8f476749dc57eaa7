"""Containers of a real containerd get other CPUs while they run: as an agent's, and a kubelet's.

``make guest`` runs it: it takes CPUs that something can be moved to.  What happens is read back
from cgroup files and ``/proc`` by :mod:`tests.scenes.cpu_witness`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from subprocess import Popen
from typing import Any, Final

import pytest
from tests.scenes.agent_process import skip_unless_an_agent_can_run
from tests.scenes.assigned_container import told_in
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.cpu_witness import allowed, parse, witness
from tests.scenes.pod_worlds import (
    CriWorld,
    NriWorld,
    cpuset_folder,
    patient_containerd,
    started,
)
from tests.scenes.two_nodes import node_ids
from tests.scenes.waiting import eventually

from pinfold.cli.client import Client

GRACE: Final = 10
NODES: Final = {
    one: parse(Path(f"/sys/devices/system/node/node{one}/cpulist").read_text())
    for one in node_ids()
}
LASTING: Final = "trap 'exit 0' TERM; sleep 1000000 & wait $!"


@pytest.fixture(scope="module")
def node() -> Iterator[ContainerdNode]:
    skip_unless_an_agent_can_run()
    if len(node_ids()) < 2 or min(map(len, NODES.values())) < 8:
        pytest.skip("needs two NUMA nodes of eight CPUs (make guest has them)")
    with patient_containerd() as one:
        yield one


class Scene:
    """Two owners beside one that shares."""

    def __init__(self, world: CriWorld | NriWorld) -> None:
        self.world = world
        self.client = Client(str(world.agent.socket), timeout=300.0)
        self.pids = {
            name: world.run(world.dress(pod(name, cpus)))["main"].pid
            for name, cpus in (("web", 0), ("a", 2), ("b", 4))
        }

    def resize(self, name: str, cpus: int) -> None:
        """Ask for another number of CPUs, and do not wait."""
        if isinstance(self.world, NriWorld):
            kubelet = self.world.kubelet
            kubelet.resize(kubelet.running()[f"uid-{name}", "main"], cpus)
            return
        amount = {"requests": {"cpu": str(cpus)}, "limits": {"cpu": str(cpus)}}
        asked = {"spec": {"containers": [{"name": "main", "resources": amount}]}}
        answer = self.client.patch(f"/v1/pods/default/{name}", asked, wait="false")
        assert answer["feasible"], answer

    def allowed(self, name: str) -> frozenset[int]:
        """Where the kernel lets it run; its cgroup says the same."""
        pid = self.pids[name]
        (line,) = (
            line
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()
            if line.startswith("0::") or "cpuset" in line.split(":")[1].split(",")
        )
        folder = cpuset_folder(line.split(":", 2)[2])
        files = ("cpuset.cpus.effective", "cpuset.effective_cpus")
        (file,) = (folder / one for one in files if (folder / one).exists())
        return allowed(pid) & parse(file.read_text())

    def until_has(self, name: str, cpus: int) -> None:
        """Wait until it has so many CPUs in the kernel."""
        eventually(lambda: len(self.allowed(name)), cpus, 30)

    def settled(self) -> None:
        """Wait until nothing moves."""
        eventually(lambda: self.client.get("/v1/status").get("move"), None, 30)
        assert self.client.post("/v1/reconcile")["drifts"] == []

    def told(self, name: str) -> Mapping[str, Any]:
        """What the container is told."""
        found: Mapping[str, Any] = json.loads(
            (told_in(self.pids[name]) / "assignment.json").read_text()
        )
        return found

    def deadline(self, name: str, cpus: int) -> float:
        """When a shrink that is announced may be made."""
        eventually(lambda: len(parse(self.told(name)["coming"]["cpus"])), cpus)
        said = self.told(name)["deadline"]
        assert said is not None, "it is announced"
        return datetime.fromisoformat(said).timestamp()

    def replace_containerd(self) -> None:
        self.world.node.kill()
        self.world.node.start(300)
        if isinstance(self.world, NriWorld):
            self.world.connected()

    def replace_agent(self) -> None:
        self.world.agent.kill()
        self.world.start()


def pod(name: str, cpus: int) -> dict[str, Any]:
    limits = {"cpu": str(cpus), "memory": "64Mi"} if cpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "annotations": {"scale-down-grace-period.pinfold.dev/pod": str(GRACE)},
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "command": ["sh", "-c", LASTING],
                    "resources": {"limits": limits},
                }
            ]
        },
    }


@pytest.mark.parametrize("apart", [False, True])
def test_the_witness_sees_a_cpu_in_common(tmp_path: Path, *, apart: bool) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("needs two CPUs")
    with Popen(["sleep", "1000"]) as one, Popen(["sleep", "1000"]) as other:
        os.sched_setaffinity(one.pid, {first})
        os.sched_setaffinity(other.pid, {others[0] if apart else first})
        with witness(tmp_path / "seen.json", {"one": one.pid}, {"other": other.pid}) as seen:
            pass
        one.kill()
        other.kill()
    assert bool(seen["strangers"]) is not apart
    assert [cpus for _, cpus in seen["changes"]["one"]] == [[first]]


@pytest.mark.parametrize("kind", [NriWorld, CriWorld])
def test_containers_move_while_runtime_and_agent_come_and_go(
    node: ContainerdNode, tmp_path: Path, kind: type[CriWorld | NriWorld]
) -> None:
    world = kind(tmp_path, node)
    world.agent.config["cpuManagerPolicy"] = "dynamic"
    with started(world):
        scene = Scene(world)
        owners = {name: scene.pids[name] for name in ("a", "b")}
        with witness(tmp_path / "seen.json", owners, {"web": scene.pids["web"]}) as seen:
            deadlines = moves(scene)
    assert seen["strangers"] == []
    assert seen["rounds"] > 100
    for name, changes in seen["changes"].items():
        sets = [frozenset(cpus) for _, cpus in changes]
        if name in owners:
            assert len(sets) > 3, "it was seen to move"
            for before, after in pairwise(sets):
                assert before & after, "it always has some of what it had"
    for name, deadline in deadlines.items():
        at, _ = seen["changes"][name][-1]
        assert at >= deadline, "nothing is taken sooner"


def moves(scene: Scene) -> dict[str, float]:
    """Grow both over the NUMA nodes, bring each into one, and shrink them.

    Returns:
        Until when the last shrink of each was announced.
    """
    before = {name: scene.allowed(name) for name in ("a", "b")}
    for name, cpus in (("a", 4), ("b", 6)):
        scene.resize(name, cpus)
        scene.until_has(name, cpus)
        assert scene.allowed(name) > before[name], "it keeps what it had"
        scene.settled()
    assert any(len(nodes_of(scene.allowed(name))) == 2 for name in ("a", "b"))

    plan = scene.client.post("/v1/rebalance")
    assert len({one["pod"] for one in plan["owners"] if one["before"] != one["after"]}) == 2, plan
    for name, cpus in (("a", 4), ("b", 6)):
        assert len(scene.allowed(name)) == cpus
        assert len(nodes_of(scene.allowed(name))) == 1
    scene.settled()

    deadlines = {}
    for name, cpus, replace in (
        ("a", 2, scene.replace_containerd),
        ("b", 4, scene.replace_agent),
    ):
        whole = scene.allowed(name)
        scene.resize(name, cpus)
        deadlines[name] = scene.deadline(name, cpus)
        replace()
        scene.until_has(name, cpus)
        assert scene.allowed(name) < whole
        scene.settled()
    # CPU 0 is the system's, while there are others to share.
    free = frozenset().union(*NODES.values()) - scene.allowed("a") - scene.allowed("b") - {0}
    eventually(lambda: scene.allowed("web"), free)
    return deadlines


def nodes_of(cpus: frozenset[int]) -> set[int]:
    return {one for one, those in NODES.items() if cpus & those}
