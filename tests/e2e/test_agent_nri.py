"""An agent as NRI plugin of a real containerd, which a stand-in for a kubelet drives."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pinfold.adapters.cgroup.hierarchy import find_hierarchies
from tests.scenes.agent_process import (
    AgentProcess,
    skip_unless_an_agent_can_run,
)
from tests.scenes.assigned_container import check_assignment, told_in
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.kubelet_stand_in import KubeletStandIn
from tests.scenes.waiting import PATIENCE, eventually


class Scene:
    """A kubelet's containerd, and the agent that is its plugin."""

    def __init__(self, node: ContainerdNode, folder: Path, *, over_cri: bool = False) -> None:
        self.node = node
        self.kubelet = KubeletStandIn(node)
        self.agent = AgentProcess(folder)
        del self.agent.config["staticPodPath"]
        self.agent.config["pinfold"] |= {"runtime": "nri", "nriSocket": str(node.nri)}
        if over_cri:
            self.agent.config["pinfold"]["runtimeEndpoint"] = f"unix://{node.address}"

    def start(self) -> None:
        self.agent.start()
        self.connected()

    def connected(self) -> None:
        """Wait until the runtime has taken the plugin."""
        eventually(self.is_connected, expected=True)

    def is_connected(self) -> bool:
        return bool(self.agent.client.get("/v1/status")["agent"]["nri"]["connected"])

    def behind(self) -> int:
        """The containers whose CPUs the runtime does not have on record yet."""
        return int(self.agent.client.get("/v1/status")["agent"]["nri"]["behind"])


@pytest.fixture(params=["record over NRI", "record over the CRI"])
def scene(
    request: pytest.FixtureRequest, containerd: ContainerdNode, tmp_path: Path
) -> Iterator[Scene]:
    skip_unless_an_agent_can_run()
    scene = Scene(containerd, tmp_path, over_cri="CRI" in request.param)
    try:
        scene.start()
        yield scene
    finally:
        scene.kubelet.close()
        scene.agent.stop()


def test_an_owner_beside_the_others(scene: Scene) -> None:
    kubelet = scene.kubelet
    web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
    assert kubelet.allowed(web) == "1"
    pod = kubelet.pod("db")
    db = kubelet.run(pod, "main", 1)
    assert (kubelet.allowed(db), kubelet.allowed(web)) == ("1", "0")
    eventually(lambda: kubelet.recorded(web), "0")
    assert kubelet.recorded(db) == "1"
    kubelet.end(pod)
    eventually(lambda: kubelet.allowed(web), "1")
    eventually(lambda: kubelet.recorded(web), "1")


def test_a_refusal_is_the_error_of_the_creation(scene: Scene) -> None:
    kubelet = scene.kubelet
    with pytest.raises(grpc.RpcError) as refused:
        kubelet.create(kubelet.pod("big"), "main", 2)
    assert (
        "UnexpectedAdmissionError: Allocate failed due to not enough cpus available to satisfy "
        "request: requested=2, available=1, which is unexpected" in str(refused.value)
    )
    explained = scene.agent.run("explain", "pod/big")
    assert "not enough cpus" in explained.stdout, explained


def test_the_agent_is_killed_and_comes_back(scene: Scene) -> None:
    kubelet = scene.kubelet
    web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
    pod = kubelet.pod("db")
    db = kubelet.run(pod, "main", 1)
    scene.agent.kill()
    late = kubelet.run(kubelet.pod("late", "besteffort"), "main")
    # With cgroup v2 what is above it holds it, as the agent that was killed has left that.
    assert kubelet.allowed(late) == ("0" if find_hierarchies().version == 2 else "0-1")
    scene.start()
    assert [kubelet.allowed(one) for one in (db, web, late)] == ["1", "0", "0"]
    scene.agent.kill()
    kubelet.end(pod)
    scene.start()
    assert [kubelet.allowed(one) for one in (web, late)] == ["1", "1"]


def test_an_owner_that_was_created_while_no_agent_ran(scene: Scene) -> None:
    kubelet = scene.kubelet
    scene.agent.kill()
    pod = kubelet.pod("db")
    db = kubelet.run(pod, "main", 1)
    assert (kubelet.allowed(db), kubelet.quota(db)) == ("0-1", 100_000)
    scene.start()
    assert kubelet.allowed(db) == "1"
    eventually(lambda: kubelet.quota(db), -1)
    eventually(lambda: (kubelet.recorded(db), scene.behind()), ("1", 0))
    assert "adopted container main: it was created while no agent answered" in scene.agent.log()
    status = scene.agent.run("status").stdout
    assert "at first" in status, status
    found = scene.agent.run("audit", "--runtime-endpoint", f"unix://{scene.node.address}")
    assert "default/db main: ran shared for" in found.stdout, found
    # One that is created while the agent is there has nothing of that.
    kubelet.end(pod)
    fresh = kubelet.run(kubelet.pod("fresh"), "main", 1)
    assert (kubelet.allowed(fresh), kubelet.quota(fresh)) == ("1", -1)
    assert "at first" not in scene.agent.run("status").stdout


def test_a_resize_that_is_infeasible_changes_nothing(scene: Scene) -> None:
    kubelet = scene.kubelet
    db = kubelet.run(kubelet.pod("db"), "main", 1)
    # Of a creation containerd reports what was asked for; of a change, what it has written.
    assert (kubelet.allowed(db), kubelet.quota(db)) == ("1", -1)
    assert kubelet.reported_quota(db) == 100_000
    for _ in range(3):
        with pytest.raises(grpc.RpcError, match="inconsistentCPUAllocationError"):
            kubelet.resize(db, 0.5)
    with pytest.raises(grpc.RpcError, match=r"resizeAllocateCPUsError.*not enough cpus"):
        kubelet.resize(db, 2)
    assert (kubelet.allowed(db), kubelet.quota(db)) == ("1", -1)
    assert kubelet.reported_quota(db) == 100_000
    history = scene.agent.client.get("/v1/history")["entries"]
    infeasible = [one for one in history if one["kind"] == "infeasible"]
    assert len(infeasible) == 2, infeasible
    # What is not of CPUs goes through, and leaves them alone.
    kubelet.resize(db, 1)
    assert (kubelet.allowed(db), kubelet.quota(db)) == ("1", -1)


def test_containerd_is_killed_and_comes_back(
    fresh_containerd: ContainerdNode, tmp_path: Path
) -> None:
    skip_unless_an_agent_can_run()
    scene = Scene(fresh_containerd, tmp_path)
    kubelet = scene.kubelet
    try:
        scene.start()
        web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
        db = kubelet.run(kubelet.pod("db"), "main", 1)
        fresh_containerd.kill()
        eventually(scene.is_connected, expected=False)
        fresh_containerd.start()
        scene.connected()
        assert [kubelet.allowed(one) for one in (db, web)] == ["1", "0"]
        told = [line for line in scene.agent.log().splitlines() if "nri.sock: " in line]
        back = [line for line in scene.agent.log().splitlines() if "registered" in line]
        assert told, "that the runtime was gone"
        assert len(back) == 2, "at the start, and when it was back"
        kubelet.stop(db)
        db = kubelet.run(kubelet.pod("other", "burstable"), "main", 1)
        fresh_containerd.kill()
        scene.agent.kill()
        fresh_containerd.start()
        scene.start()
        assert kubelet.allowed(web) == kubelet.allowed(db)
    finally:
        kubelet.close()
        scene.agent.stop()


def test_a_kubelet_that_waits_for_the_agent_has_no_owner_that_ran_shared(
    fresh_containerd: ContainerdNode, tmp_path: Path
) -> None:
    """As after a boot with the systemd unit: the runtime, the agent, then the kubelet."""
    skip_unless_an_agent_can_run()
    scene = Scene(fresh_containerd, tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        scene.agent.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        fresh_containerd.kill()
        try:
            # An agent that serves, and is nobody's plugin yet, is no reason to go on.
            scene.agent.start()
            manager.settimeout(0.5)
            with pytest.raises(TimeoutError):
                ready(manager)
            fresh_containerd.start()
            manager.settimeout(15 * PATIENCE)
            assert ready(manager) == "STATUS=0 pods"
            assert scene.is_connected()
            kubelet = scene.kubelet
            db = kubelet.run(kubelet.pod("db"), "main", 1)
            assert (kubelet.allowed(db), kubelet.quota(db)) == ("1", -1)
            (pod,) = scene.agent.client.get("/v1/pods")["pods"]
            assert pod["containers"][0]["ran_shared_seconds"] is None
            assert "adopted" not in scene.agent.log()
        finally:
            scene.kubelet.close()
            scene.agent.stop()


def ready(manager: socket.socket) -> str:
    """Wait until a service manager is told so; what it is told with that."""
    while True:
        first, *more = manager.recv(4096).decode().splitlines()
        if first == "READY=1":
            return " ".join(more)


def test_status_explain_and_audit_know_the_pods(scene: Scene) -> None:
    kubelet = scene.kubelet
    kubelet.run(kubelet.pod("web", "besteffort"), "main")
    kubelet.run(kubelet.pod("db"), "main", 1)
    status = scene.agent.run("status")
    assert status.returncode == 0, status
    assert "default/db" in status.stdout
    explained = scene.agent.run("explain", "pod/db")
    assert explained.returncode == 0, explained
    assert "CPUs        1" in explained.stdout
    assert scene.agent.run("explain", "default/db").stdout == explained.stdout
    refused = scene.agent.run("delete", "pod/db")
    assert refused.returncode == 1
    assert "through Kubernetes" in refused.stderr


def test_an_owner_is_told_its_cpus(scene: Scene) -> None:
    kubelet = scene.kubelet
    web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
    assert not told_in(kubelet.pid(web)).exists()
    pod = kubelet.pod("db")
    db = kubelet.run(pod, "main", 1)
    check_assignment(kubelet.pid(db), "1")
    told = scene.agent.state / "assignments"
    (folder,) = told.glob("*/main")
    assert (folder / "ack" / "generation").read_text() == "1"
    kubelet.end(pod)
    eventually(lambda: list(told.iterdir()), [])
