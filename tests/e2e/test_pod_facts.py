"""What holds of containers over their lives: restarts, resizes, sequences, cgroups of their own.

A kubelet's stand-in drives a real containerd, and the agent is its NRI plugin.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    allowed,
    skip_unless_an_agent_can_run,
)
from tests.scenes.churn import check, pod
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.pod_worlds import (
    ManifestKubelet,
    NriWorld,
    patient_containerd,
    planned,
    started,
)
from tests.scenes.waiting import eventually


@pytest.fixture(scope="module")
def node() -> Iterator[ContainerdNode]:
    with patient_containerd() as one:
        yield one


@pytest.fixture(scope="module")
def running(node: ContainerdNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NriWorld]:
    skip_unless_an_agent_can_run()
    world = NriWorld(tmp_path_factory.mktemp("facts"), node)
    with started(world):
        yield world


@pytest.fixture
def world(running: NriWorld) -> Iterator[NriWorld]:
    """A world without pods, which has to be without pods and whole afterwards."""
    whole = running.agent.client.get("/v1/status")["shared"]
    yield running
    for name in list(running.sandboxes):
        running.end(name)
    for sandbox in list(running.extra):
        running.kubelet.end(sandbox)
        running.extra.remove(sandbox)
    eventually(lambda: running.agent.client.get("/v1/status")["shared"], whole)


def _sandbox(world: NriWorld, name: str, qos: str = "") -> str:
    sandbox = world.kubelet.pod(name, qos)
    world.extra.append(sandbox)
    return sandbox


def _plan(world: NriWorld, cpus: int) -> CPUSet:
    """Where ``pinfold plan`` puts a container on the empty node."""
    config = world.agent.folder / "config.yaml"
    document = planned(config, world.agent.folder, [pod("asked", "sleep 1", cpus)])
    return CPUSet.parse(document["pods"][0]["containers"][0]["cpus"])


def _allowed(kubelet: ManifestKubelet, container: str) -> CPUSet:
    return CPUSet.parse(kubelet.allowed(container))


def _recorded(kubelet: ManifestKubelet, container: str) -> CPUSet:
    return CPUSet.parse(kubelet.recorded(container))


def _most(world: NriWorld) -> int:
    return len(CPUSet.parse(world.agent.client.get("/v1/status")["allocatable"]))


def test_a_container_that_is_started_again_has_the_same_cpus(world: NriWorld) -> None:
    kubelet = world.kubelet
    sandbox = _sandbox(world, "db")
    first = kubelet.run(sandbox, "main", 1)
    own = _allowed(kubelet, first)
    assert own == _plan(world, 1)
    other = kubelet.run(_sandbox(world, "other", "besteffort"), "main")
    kubelet.stop(first)
    amounts = {"cpu": "1", "memory": "64Mi"}
    again = {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
    second = kubelet.create_as(sandbox, again, attempt=1)
    kubelet.start(second)
    kubelet.remove(first)
    assert _allowed(kubelet, second) == own
    assert own.isdisjoint(_allowed(kubelet, other))
    check(world)


def test_containers_one_after_the_other_hand_their_cpus_on(world: NriWorld) -> None:
    """As the init containers of a pod do."""
    kubelet = world.kubelet
    sandbox = _sandbox(world, "sequence")
    cpus = _most(world)
    for name in ("prepare", "restore"):
        one = kubelet.run(sandbox, name, cpus)
        assert len(_allowed(kubelet, one)) == cpus
        kubelet.stop(one)
    main = kubelet.run(sandbox, "main", 1)
    assert _allowed(kubelet, main) <= _plan(world, cpus)
    assert len(_allowed(kubelet, main)) == 1
    status = world.agent.client.get("/v1/status")
    everything = CPUSet.parse(status["reserved"]) | CPUSet.parse(status["allocatable"])
    assert CPUSet.parse(status["shared"]) == everything - _allowed(kubelet, main)


def test_a_resize_to_a_fraction_is_infeasible(world: NriWorld) -> None:
    kubelet = world.kubelet
    one = kubelet.run(_sandbox(world, "db"), "main", 1)
    half = kubelet.run(_sandbox(world, "half"), "main", 0.5)
    own, shared = _allowed(kubelet, one), _allowed(kubelet, half)
    assert own.isdisjoint(shared)
    for container, cpus in ((one, 0.5), (half, 1)):
        with pytest.raises(grpc.RpcError, match="inconsistentCPUAllocationError"):
            kubelet.resize(container, cpus)
    assert (_allowed(kubelet, one), _allowed(kubelet, half)) == (own, shared)
    check(world)


def test_a_resize_up_and_down(world: NriWorld) -> None:
    """Every CPU that can be given, and one again; what is more is refused and changes nothing."""
    kubelet, most = world.kubelet, _most(world)
    one = kubelet.run(_sandbox(world, "db"), "main", 1)
    other = kubelet.run(_sandbox(world, "other", "besteffort"), "main")
    kubelet.resize(one, most)
    eventually(lambda: len(_allowed(kubelet, one)), most)
    assert _allowed(kubelet, one) == _plan(world, most)
    assert _allowed(kubelet, one).isdisjoint(_allowed(kubelet, other))
    with pytest.raises(grpc.RpcError, match=r"UnexpectedAdmissionError.*not enough cpus available"):
        kubelet.resize(one, most + 1)
    assert _allowed(kubelet, one) == _plan(world, most)
    check(world)
    kubelet.resize(one, 1)
    eventually(lambda: len(_allowed(kubelet, one)), 1)
    eventually(lambda: _recorded(kubelet, one) == _allowed(kubelet, one), expected=True)
    check(world)


def test_cgroups_that_a_container_makes_follow_the_pool(world: NriWorld) -> None:
    """As an init system or a runtime in a container makes them."""
    kubelet = world.kubelet
    other = kubelet.run(_sandbox(world, "other", "besteffort"), "main")
    whole = _allowed(kubelet, other)
    folder = _group_of(world, kubelet.pid(other))
    inside = folder / "inside"
    if (folder / "cgroup.controllers").exists():
        # No process may be in a group that has controllers for groups below it.
        leaf = folder / "leaf"
        leaf.mkdir()
        (leaf / "cgroup.procs").write_text(str(kubelet.pid(other)))
        (folder / "cgroup.subtree_control").write_text("+cpuset")
    inside.mkdir()
    if not (folder / "cgroup.controllers").exists():
        (inside / "cpuset.mems").write_text((folder / "cpuset.mems").read_text())
    (inside / "cpuset.cpus").write_text(str(whole))
    (inside / "cgroup.procs").write_text(str(kubelet.pid(other)))
    sandbox = _sandbox(world, "db")
    owner = kubelet.run(sandbox, "main", 1)
    own = _allowed(kubelet, owner)
    left = whole - own or CPUSet.parse(world.agent.client.get("/v1/status")["pool"])
    assert allowed(kubelet.pid(other)) == left
    assert own.isdisjoint(left)
    kubelet.end(sandbox)
    world.extra.remove(sandbox)
    eventually(lambda: allowed(kubelet.pid(other)), whole)


def _group_of(world: NriWorld, pid: int) -> Path:
    return next(
        file.parent
        for file in world.root.rglob("cgroup.procs")
        if str(pid) in file.read_text().split()
    )
