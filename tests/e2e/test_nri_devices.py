"""Containers that a kubelet starts on a real containerd, and the devices that it has given them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest

from pinfold.adapters.cri import cri_pb2 as cri
from pinfold.adapters.podresources import podresources_pb2 as v1
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.agent_process import (
    AgentProcess,
    skip_unless_an_agent_can_run,
)
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.kubelet_stand_in import KubeletStandIn
from tests.scenes.waiting import PATIENCE, eventually

NODES = Path("/sys/devices/system/node")
NIC = "example.com/nic"
MEMORY: dict[str, Any] = {
    "memoryManagerPolicy": "Static",
    # Beside the 100Mi of the eviction threshold.
    "kubeReserved": {"memory": "28Mi"},
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "128Mi"}}],
}


class PodResourcesStandIn:
    """A kubelet's podresources; ``given`` is (pod, container) -> the nodes of its devices.

    ``delay`` is how long it takes for an answer, in seconds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.given: dict[tuple[str, str], list[int]] = {}
        self.delay = 0.0
        self._closed = threading.Event()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Get": grpc.unary_unary_rpc_method_handler(self._get),
            "List": grpc.unary_unary_rpc_method_handler(self._list),
        }
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("v1.PodResourcesLister", methods)]
        )
        self._server.add_insecure_port(f"unix:{quote(str(self.path))}")
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._closed.set()
            self._server.stop(None).wait()
            self._server = None
            self._closed = threading.Event()

    def _get(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        del context
        request = v1.GetPodResourcesRequest.FromString(raw)
        self._closed.wait(self.delay)
        pod = self._pod(request.pod_namespace, request.pod_name)
        return v1.GetPodResourcesResponse(pod_resources=pod).SerializeToString()

    def _list(self, raw: bytes, context: grpc.ServicerContext) -> bytes:
        del raw, context
        self._closed.wait(self.delay)
        pods = [self._pod("default", name) for name in sorted({pod for pod, _ in self.given})]
        return v1.ListPodResourcesResponse(pod_resources=pods).SerializeToString()

    def _pod(self, namespace: str, name: str) -> v1.PodResources:
        containers = [
            v1.ContainerResources(
                name=container,
                devices=[
                    v1.ContainerDevices(
                        resource_name=NIC,
                        device_ids=[f"n{number}"],
                        topology=v1.TopologyInfo(nodes=[v1.NUMANode(ID=node)]),
                    )
                    for number, node in enumerate(nodes)
                ],
            )
            for (pod, container), nodes in self.given.items()
            if pod == name
        ]
        return v1.PodResources(name=name, namespace=namespace, containers=containers)


class Scene:
    """A kubelet's containerd and podresources, and the agent beside it."""

    def __init__(self, node: ContainerdNode, folder: Path, **config: Any) -> None:
        self.kubelet = KubeletStandIn(node)
        self.resources = PodResourcesStandIn(node.folder / "podresources.sock")
        self.agent = AgentProcess(folder, **config)
        del self.agent.config["staticPodPath"]
        self.agent.config["pinfold"] |= {
            "runtime": "nri",
            "nriSocket": str(node.nri),
            "runtimeEndpoint": f"unix://{node.address}",
            "kubeletPodResources": str(self.resources.path),
        }

    def start(self) -> None:
        self.agent.start()
        eventually(lambda: self.nri()["connected"], expected=True)

    def nri(self) -> Any:
        """What the status says of the plugin."""
        return self.agent.client.get("/v1/status")["agent"]["nri"]

    def close(self) -> None:
        self.kubelet.close()
        self.agent.stop()
        self.resources.stop()


def far_node() -> int:
    """The last NUMA node that has a CPU beside the reserved one."""
    found = [
        number
        for folder in NODES.glob("node[0-9]*")
        if cpus_of_node(number := int(folder.name.removeprefix("node"))) - CPUSet([0])
    ]
    return max(found, default=0)


def cpus_of_node(node: int) -> CPUSet:
    return CPUSet.parse((NODES / f"node{node}" / "cpulist").read_text().strip())


def mems(kubelet: KubeletStandIn, container: str) -> str:
    """The NUMA nodes from which the kernel gives memory to the main process."""
    status = Path(f"/proc/{kubelet.pid(container)}/status").read_text()
    return status.split("Mems_allowed_list:")[1].split()[0]


def recorded_mems(kubelet: KubeletStandIn, container: str) -> str:
    """The NUMA nodes that the runtime has on record."""
    request = cri.ContainerStatusRequest(container_id=container, verbose=True)
    status = kubelet.call("ContainerStatus", request, cri.ContainerStatusResponse)
    cpu = json.loads(status.info["info"])["runtimeSpec"]["linux"]["resources"]["cpu"]
    return str(cpu.get("mems", ""))


@pytest.fixture
def scene(containerd: ContainerdNode, tmp_path: Path) -> Iterator[Scene]:
    skip_unless_an_agent_can_run()
    scene = Scene(containerd, tmp_path, **MEMORY)
    try:
        scene.resources.start()
        scene.start()
        yield scene
    finally:
        scene.close()


def test_cpus_and_memory_are_those_of_the_device(scene: Scene) -> None:
    kubelet, node = scene.kubelet, far_node()
    scene.resources.given["near", "main"] = [node]
    near = kubelet.run(kubelet.pod("near"), "main", 1)
    web = kubelet.run(kubelet.pod("web", "besteffort"), "main")
    assert CPUSet.parse(kubelet.allowed(near)) <= cpus_of_node(node)
    assert mems(kubelet, near) == str(node)
    assert recorded_mems(kubelet, near) == str(node), "the runtime has it on record, too"
    assert recorded_mems(kubelet, web) == ""
    said = scene.nri()["kubeletPodResources"]
    assert said == {
        "socket": str(scene.resources.path),
        "asked": 1,
        "unanswered": 0,
        "problem": "",
    }
    scene.agent.kill()
    scene.start()
    assert (mems(kubelet, near), recorded_mems(kubelet, near)) == (str(node), str(node))
    with pytest.raises(grpc.RpcError, match="inconsistentCPUAllocationError"):
        kubelet.resize(near, 0.5)
    assert mems(kubelet, near) == str(node)
    assert "memory" in scene.agent.run("explain", "pod/near").stdout


def test_what_ran_before_the_agent_comes_near_its_device(scene: Scene) -> None:
    kubelet, node = scene.kubelet, far_node()
    scene.agent.stop()
    scene.resources.given["early", "main"] = [node]
    early = kubelet.run(kubelet.pod("early"), "main", 1)
    assert recorded_mems(kubelet, early) == ""
    scene.start()
    said = scene.nri()["kubeletPodResources"]
    assert (said["asked"], said["unanswered"]) == (1, 0), said
    assert CPUSet.parse(kubelet.allowed(early)) <= cpus_of_node(node)
    assert mems(kubelet, early) == str(node)
    eventually(lambda: recorded_mems(kubelet, early), str(node))


def test_a_strict_policy_refuses_devices_of_two_nodes(
    containerd: ContainerdNode, tmp_path: Path
) -> None:
    skip_unless_an_agent_can_run()
    if far_node() == 0:
        pytest.skip("needs two NUMA nodes with CPUs")
    scene = Scene(containerd, tmp_path, **MEMORY, topologyManagerPolicy="restricted")
    try:
        scene.resources.start()
        scene.start()
        scene.resources.given["far", "main"] = [0, far_node()]
        with pytest.raises(grpc.RpcError) as refused:
            scene.kubelet.create(scene.kubelet.pod("far"), "main", 1)
        assert "TopologyAffinityError" in str(refused.value)
        assert NIC in scene.agent.run("explain", "pod/far").stdout
        near = scene.kubelet.run(scene.kubelet.pod("near"), "main", 1)
        assert mems(scene.kubelet, near) == "0"
    finally:
        scene.close()


def test_a_kubelet_that_is_slow_or_gone_delays_no_container(scene: Scene) -> None:
    kubelet, resources = scene.kubelet, scene.resources
    pod = kubelet.pod("slow")
    resources.delay = 30.0
    began = time.monotonic()
    main = kubelet.run(pod, "main", 1)
    assert time.monotonic() - began < 5 * PATIENCE
    assert len(CPUSet.parse(kubelet.allowed(main))) == 1
    kubelet.end(pod)
    resources.stop()
    gone = kubelet.pod("gone")
    kubelet.run(gone, "main", 1)
    said = scene.nri()["kubeletPodResources"]
    assert (said["asked"], said["unanswered"]) == (2, 2)
    assert scene.agent.log().count("CPUs are not aligned with devices") == 2
    resources.delay = 0.0
    resources.start()
    kubelet.end(gone)
    kubelet.run(kubelet.pod("back"), "main", 1)
    assert scene.nri()["kubeletPodResources"]["problem"] == ""
