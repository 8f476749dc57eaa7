"""A pod that asks for CPUs as a whole, between a real containerd and an API server.

Where everybody runs is read from the kernel here, and what they are to have is worked out here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import AgentProcess, allowed, skip_unless_an_agent_can_run
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.kube_api_peer import KubeApiPeer, make_certificates, serving
from tests.scenes.kubelet_stand_in import KubeletStandIn
from tests.scenes.waiting import eventually

ONLINE = CPUSet(os.sched_getaffinity(0))


class Scene:
    """A kubelet's containerd, its API server, and the agent that gives pods CPUs as a whole."""

    def __init__(self, node: ContainerdNode, folder: Path, peer: KubeApiPeer) -> None:
        self.kubelet = KubeletStandIn(node)
        self.peer = peer
        self.agent = AgentProcess(
            folder,
            featureGates={"PodLevelResourceManagers": True},
            topologyManagerPolicy="best-effort",
            topologyManagerScope="pod",
        )
        del self.agent.config["staticPodPath"]
        self.agent.config["pinfold"] |= {
            "runtime": "nri",
            "nriSocket": str(node.nri),
            "kubeletStateFile": "",
            "kubeconfig": str(peer.kubeconfig(folder / "kubeconfig")),
            "nodeName": "n1",
        }

    def start(self) -> None:
        self.agent.start()
        eventually(lambda: self.nri()["connected"], expected=True)

    def nri(self) -> Any:
        return self.agent.client.get("/v1/status")["agent"]["nri"]

    def cpus(self, container: str) -> CPUSet:
        """Where the kernel lets it run."""
        return allowed(self.kubelet.pid(container))


@pytest.fixture
def scene(containerd: ContainerdNode, tmp_path: Path) -> Iterator[Scene]:
    skip_unless_an_agent_can_run()
    certificates = tmp_path / "tls"
    certificates.mkdir()
    with serving(make_certificates(certificates)) as peer:
        peer.put_node("n1")
        scene = Scene(containerd, tmp_path, peer)
        try:
            scene.start()
            yield scene
        finally:
            scene.kubelet.close()
            scene.agent.clean_up()


def whole(name: str, budget: int, own: int) -> dict[str, Any]:
    """A pod of ``budget`` CPUs as a whole: an owner of ``own`` (if any), one that shares, more."""

    def container(label: str, cpus: int, **more: Any) -> dict[str, Any]:
        limits = {"cpu": str(cpus), "memory": "64Mi"}
        asks = {"resources": {"limits": limits, "requests": limits}} if cpus else {}
        return {"name": label, "image": "i", **asks, **more}

    limits = {"cpu": str(budget), "memory": "256Mi"}
    owners = [container("own", own)] if own else []
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "resources": {"limits": limits, "requests": limits},
            "initContainers": [
                container("first", 1),
                container("beside", 0, restartPolicy="Always"),
            ],
            "containers": [*owners, container("shared", 0)],
        },
    }


def test_a_pod_has_its_cpus_as_a_whole_from_its_first_container_on(scene: Scene) -> None:
    kubelet = scene.kubelet
    web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
    free = ONLINE - CPUSet([0])
    assert scene.cpus(web) == free
    budget = min(len(free), 3)
    own = 1 if budget > 1 else 0
    scene.peer.put_pod(whole("app", budget, own))
    pod = kubelet.pod("app")

    first = kubelet.run(pod, "first", 1)
    # It has one CPU, and others have left all that its pod is to have.
    assert len(scene.cpus(first)) == 1
    assert scene.cpus(first) <= free
    left = scene.cpus(web)
    bubble = CPUSet.parse(scene.agent.pod("app")["bubble"]["cpus"])
    assert len(bubble) == budget
    assert scene.cpus(first) <= bubble
    assert left == (free - bubble or CPUSet([0]))
    kubelet.stop(first)
    kubelet.remove(first)
    assert scene.cpus(web) == left

    beside = kubelet.run(pod, "beside", budget)
    owners = [kubelet.run(pod, "own", own)] if own else []
    shared = kubelet.run(pod, "shared", budget)
    theirs = CPUSet.union_of(map(scene.cpus, owners))
    assert len(theirs) == own
    assert scene.cpus(shared) == scene.cpus(beside) == bubble - theirs
    assert [kubelet.quota(one) for one in owners] == [-1] * own
    assert kubelet.quota(shared) == budget * 100_000
    eventually(lambda: kubelet.recorded(shared), str(bubble - theirs))
    assert scene.nri()["podSpecifications"]["asked"] == 1

    everybody = [web, beside, *owners, shared]
    before = [scene.cpus(one) for one in everybody]
    scene.agent.kill()
    scene.start()
    assert [scene.cpus(one) for one in everybody] == before
    explained = scene.agent.run("explain", "pod/app")
    assert explained.returncode == 0, explained
    assert str(bubble) in explained.stdout

    kubelet.end(pod)
    eventually(lambda: scene.cpus(web), free)


def test_a_pod_that_cannot_be_read_shares_and_says_so(scene: Scene) -> None:
    kubelet = scene.kubelet
    web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
    scene.peer.put_pod(whole("app", 1, 0))
    scene.peer.failing = lambda request: (503, {}) if "/pods/app" in request.path else None
    one = kubelet.run(kubelet.pod("app"), "first", 1)
    assert scene.cpus(one) == scene.cpus(web) == ONLINE - CPUSet([0])
    told = scene.nri()["podSpecifications"]
    assert told["asked"] in {1, 2}, "for the sandbox, and for the container if that was in vain"
    assert told["unread"] == 1
    assert "503" in told["problem"]
    assert "it shares its CPUs, as its specification could not be read" in scene.agent.log()
    assert "pinfold_pod_specifications_unread_total 1.0" in scene.agent.client.get("/metrics")
    explained = " ".join(scene.agent.run("explain", "pod/app").stdout.split())
    assert "decided by shared pool" in explained
    assert "exclusive CPU" not in explained
    assert told["problem"] in explained
