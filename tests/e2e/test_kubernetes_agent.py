"""An agent between a real containerd and an API server: what users and kubelets see of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from pinfold.cli.client import RefusedError
from pinfold.state.cpu_manager_state import CPUManagerCheckpoint
from pinfold.state.layouts import Layout
from tests.scenes.agent_process import (
    AgentProcess,
    skip_unless_an_agent_can_run,
)
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.kube_api_peer import KubeApiPeer, make_certificates, serving
from tests.scenes.kubelet_stand_in import KubeletStandIn
from tests.scenes.waiting import eventually


class Scene:
    """A kubelet's containerd, its state file, an API server, and the agent."""

    def __init__(self, node: ContainerdNode, folder: Path, peer: KubeApiPeer) -> None:
        self.kubelet = KubeletStandIn(node)
        self.peer = peer
        self.state_file = folder / "cpu_manager_state"
        self.agent = AgentProcess(folder)
        del self.agent.config["staticPodPath"]
        self.agent.config["pinfold"] |= {
            "runtime": "nri",
            "nriSocket": str(node.nri),
            "kubeletStateFile": str(self.state_file),
            "kubeconfig": str(peer.kubeconfig(folder / "kubeconfig")),
            "nodeName": "n1",
            "nodeLabels": True,
        }

    def says(self, policy: str) -> None:
        """The kubelet writes its state file, as kubelets do."""
        new = self.state_file.with_suffix(".new")
        new.write_bytes(CPUManagerCheckpoint(Layout.V2, policy, "", {}).sealed().encode())
        new.rename(self.state_file)

    def connected(self) -> bool:
        return bool(self.agent.client.get("/v1/status")["agent"]["nri"]["connected"])

    def problem(self) -> str:
        """Why it is not ready."""
        try:
            self.agent.client.get("/readyz")
        except RefusedError as error:
            return str(error)
        return ""

    def reasons(self) -> dict[str, int]:
        """How often each event has happened, by reason and object."""
        return {
            f"{event['reason']} {event['involvedObject']['name']}": event["count"]
            for event in self.peer.events()
        }


@pytest.fixture
def scene(containerd: ContainerdNode, tmp_path: Path) -> Iterator[Scene]:
    skip_unless_an_agent_can_run()
    certificates = tmp_path / "tls"
    certificates.mkdir()
    with serving(make_certificates(certificates)) as peer:
        peer.put_node("n1")
        scene = Scene(containerd, tmp_path, peer)
        scene.says("none")
        try:
            scene.agent.start()
            yield scene
        finally:
            scene.kubelet.close()
            scene.agent.stop()


def pod_of_the_api(name: str, cpu: int) -> dict[str, object]:
    limits = {"cpu": str(cpu), "memory": "64Mi"}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


def test_a_refusal_is_seen_where_users_look(scene: Scene) -> None:
    eventually(scene.connected, expected=True)
    big = scene.kubelet.pod("big")
    for _ in range(3):
        with pytest.raises(grpc.RpcError, match="UnexpectedAdmissionError: Allocate failed"):
            scene.kubelet.create(big, "main", 2)
    eventually(lambda: len(scene.reasons()), 1)
    (event,) = scene.peer.events()
    assert event["involvedObject"]["uid"] == "uid-big"
    assert event["reason"] == "UnexpectedAdmissionError"
    assert event["message"].startswith("Allocate failed due to not enough cpus available")
    metrics = scene.agent.client.get("/metrics")
    line = 'pinfold_admission_rejections_total{reason="UnexpectedAdmissionError"} 3.0'
    assert line in metrics
    labels = scene.peer.objects["/api/v1/nodes/n1"]["metadata"]["labels"]
    assert labels["pinfold.dev/cpu-manager-policy"] == "static"


def test_a_server_that_is_away_delays_no_container(scene: Scene) -> None:
    eventually(scene.connected, expected=True)
    scene.peer.failing = lambda _: (503, {})
    pod = scene.kubelet.pod("db")
    assert scene.kubelet.allowed(scene.kubelet.run(pod, "main", 1)) == "1"
    assert scene.problem() == ""


def test_the_api_servers_pod_says_something_else(scene: Scene) -> None:
    eventually(scene.connected, expected=True)
    scene.peer.put_pod(pod_of_the_api("db", 1))
    scene.peer.put_pod(pod_of_the_api("other", 1))
    scene.kubelet.run(scene.kubelet.pod("db"), "main", 1)
    scene.kubelet.run(scene.kubelet.pod("other", "burstable"), "main", 1)
    eventually(scene.reasons, {"CPUDecisionDiffers other": 1}, seconds=40)
    (event,) = scene.peer.events()
    assert "its QoS class is Guaranteed, its cgroup is one of Burstable pods" in event["message"]
    cluster = scene.agent.client.get("/v1/status")["agent"]["kubernetes"]
    assert (cluster["podsDiffering"], cluster["problems"]) == (1, {})


def test_a_kubelet_that_pins_is_not_fought(scene: Scene) -> None:
    kubelet = scene.kubelet
    eventually(scene.connected, expected=True)
    db = kubelet.run(kubelet.pod("db"), "main", 1)
    web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
    assert (kubelet.allowed(db), kubelet.allowed(web)) == ("1", "0")
    scene.says("static")
    eventually(scene.connected, expected=False, seconds=20)
    assert "CPU manager policy is static, so pinfold only audits" in scene.problem()
    status = scene.agent.run("status").stdout
    assert "audits only · the kubelet's CPU manager static" in status
    assert "run on" not in status
    probe = scene.agent.run("status", "--ready")
    assert (probe.returncode, probe.stdout, probe.stderr.count("\n")) == (1, "", 1)
    late = kubelet.run(kubelet.pod("late", "besteffort"), "main")
    assert [kubelet.allowed(one) for one in (db, web, late)] == ["1", "0", "0-1"]
    scene.agent.client.post("/v1/reconcile")
    assert [kubelet.allowed(one) for one in (db, web, late)] == ["1", "0", "0-1"]
    eventually(lambda: scene.reasons().get("NotPinningCPUs n1"), 1)
    scene.says("none")
    eventually(scene.connected, expected=True, seconds=20)
    eventually(lambda: [kubelet.allowed(one) for one in (db, web, late)], ["1", "0", "0"])
    assert scene.problem() == ""
    assert scene.agent.run("status", "--ready").stdout == "ready\n"
