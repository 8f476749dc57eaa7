"""One agent, three ways to run pods: as processes, through CRI, and for a kubelet through NRI."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import grpc
import yaml
from click.testing import CliRunner

from pinfold.adapters.cri import cri_pb2 as cri
from pinfold.cli import main
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.cgroup_values import milli_cpu_to_quota, milli_cpu_to_shares
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from tests.scenes.agent_process import (
    AgentProcess,
    allowed,
)
from tests.scenes.containerd_node import ContainerdNode, containerd_node
from tests.scenes.kubelet_stand_in import KubeletStandIn
from tests.scenes.waiting import PATIENCE, eventually

START_SECONDS: Final = 30 * PATIENCE
LASTING: Final = ("sleep", "1000000")
QOS_FOLDERS: Final = {
    QOSClass.GUARANTEED: "",
    QOSClass.BURSTABLE: "burstable",
    QOSClass.BEST_EFFORT: "besteffort",
}

Manifest = Mapping[str, Any]


def cpuset_folder(group: str) -> Path:
    """Where a cgroup is in the hierarchy that has cpusets."""
    v1 = Path("/sys/fs/cgroup/cpuset")
    return (v1 if v1.is_dir() else v1.parent) / group.lstrip("/")


def remove_groups(group: str) -> None:
    """Remove what is empty of a cgroup in every hierarchy: a peer that was killed leaves some."""
    top = Path("/sys/fs/cgroup")
    for mount in [top, *(entry for entry in top.iterdir() if entry.is_dir())]:
        root = mount / group.lstrip("/")
        for folder in [*sorted(root.glob("**/"), reverse=True)] if root.is_dir() else []:
            with suppress(OSError):
                folder.rmdir()


def planned(config: Path, folder: Path, pods: Sequence[Manifest]) -> Any:
    """What ``pinfold plan -o json`` answers for these pods on this machine."""
    file = folder / "planned.yaml"
    file.write_text(yaml.safe_dump_all([dict(pod) for pod in pods]))
    command = ["plan", "--kubelet-config", str(config), "-o", "json", str(file)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


class RefusedPodError(Exception):
    """A pod was refused; the message is what the user is told."""


@dataclass(frozen=True, slots=True)
class Running:
    """A container that runs: its process, and where the kernel lets it run."""

    pid: int
    allowed: CPUSet


class World(Protocol):
    """One way to run pods."""

    name: str
    agent: AgentProcess

    @property
    def root(self) -> Path:
        """The cgroup, in the hierarchy that has cpusets, below which all its pods are."""

    def start(self) -> None:
        """Start the agent, and return when pods can be given."""

    def dress(self, pod: Manifest) -> Manifest:
        """The manifest with what it needs to run here."""

    def run(self, pod: Manifest) -> Mapping[str, Running]:
        """Run a dressed pod; its containers by name.

        Raises:
            RefusedPodError: it was refused.
        """

    def end(self, pod: str) -> None:
        """End a pod, and return when it is gone."""

    def close(self) -> None:
        """End everything."""


def dressed(pod: Manifest, container: Manifest, **spec: Any) -> Manifest:
    """A copy of a manifest whose containers have ``container`` unless they say otherwise."""
    whole: dict[str, Any] = copy.deepcopy(dict(pod))
    whole["spec"] = {"terminationGracePeriodSeconds": 1, **spec, **whole["spec"]}
    whole["spec"]["containers"] = [{**container, **one} for one in whole["spec"]["containers"]]
    return whole


class _Told:
    """Worlds whose agent is told of the pods by its own API."""

    agent: AgentProcess

    @property
    def root(self) -> Path:
        return cpuset_folder(self.agent.name)

    def start(self) -> None:
        self.agent.start()

    def run(self, pod: Manifest) -> Mapping[str, Running]:
        name = pod["metadata"]["name"]
        self.agent.apply(pod)
        deadline = time.monotonic() + START_SECONDS
        while True:
            shown = self.agent.pod(name)
            if shown["phase"] in ("Failed", "Rejected"):
                raise RefusedPodError(f"{shown['reason']}: {shown['message']}")
            if shown["phase"] == "Running" and all(one["pid"] for one in shown["containers"]):
                break
            assert time.monotonic() < deadline, shown
            time.sleep(0.02)
        return {
            one["name"]: Running(one["pid"], allowed(one["pid"])) for one in shown["containers"]
        }

    def end(self, pod: str) -> None:
        self.agent.client.delete(f"/v1/pods/default/{pod}", grace=0)

    def close(self) -> None:
        try:
            if self.agent.process is not None and self.agent.process.poll() is None:
                for pod in self.agent.client.get("/v1/pods")["pods"]:
                    self.end(pod["name"])
        finally:
            self.agent.clean_up()


class ProcessWorld(_Told):
    """Pods are processes of the agent."""

    name = "process"

    def __init__(self, folder: Path) -> None:
        self.agent = AgentProcess(folder)

    def dress(self, pod: Manifest) -> Manifest:
        return dressed(pod, {"command": list(LASTING)})


class CriWorld(_Told):
    """Pods are containers that the agent asks containerd for."""

    name = "cri"

    def __init__(self, folder: Path, node: ContainerdNode) -> None:
        self.agent = AgentProcess(folder)
        self.node = node
        self.kubelet = ManifestKubelet(node)
        """To look with, only."""
        self.agent.config["pinfold"] |= {
            "runtime": "cri",
            "runtimeEndpoint": f"unix://{node.address}",
        }

    def dress(self, pod: Manifest) -> Manifest:
        container = {
            "image": self.node.image,
            "imagePullPolicy": "Never",
            "command": list(LASTING),
        }
        return dressed(pod, container, hostNetwork=True)

    def close(self) -> None:
        super().close()
        self.kubelet.close()
        remove_groups(self.agent.name)


class ManifestKubelet(KubeletStandIn):
    """A stand-in that sends what a kubelet makes of a manifest's containers."""

    def running(self) -> dict[tuple[str, str], str]:
        """The ids of the containers that run, by the uid of the pod and the container's name."""
        return self.containers(cri.CONTAINER_RUNNING)

    def never_started(self) -> dict[tuple[str, str], str]:
        """The same of those that were created, and whose start nobody has asked for."""
        return self.containers(cri.CONTAINER_CREATED)

    def containers(self, state: int) -> dict[tuple[str, str], str]:
        """The ids of the containers in a state, by the uid of the pod and the container's name."""
        listed = self.call(
            "ListContainers", cri.ListContainersRequest(), cri.ListContainersResponse
        ).containers
        pods = self.call(
            "ListPodSandbox", cri.ListPodSandboxRequest(), cri.ListPodSandboxResponse
        ).items
        uids = {pod.id: pod.metadata.uid for pod in pods}
        return {
            (uids[one.pod_sandbox_id], one.metadata.name): one.id
            for one in listed
            if one.state == state
        }

    def sandboxes(self) -> list[str]:
        """The ids of all pods that the runtime has, also of those whose start had no answer."""
        request = cri.ListPodSandboxRequest()
        return [
            one.id for one in self.call("ListPodSandbox", request, cri.ListPodSandboxResponse).items
        ]

    def forget(self, sandbox: str) -> None:
        """Stop and remove a pod that may not be known here."""
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=sandbox)
        self.call("StopPodSandbox", stop, cri.StopPodSandboxResponse)
        remove = cri.RemovePodSandboxRequest(pod_sandbox_id=sandbox)
        self.call("RemovePodSandbox", remove, cri.RemovePodSandboxResponse)
        self._pods.pop(sandbox, None)

    def create_as(self, sandbox: str, container: Manifest, attempt: int = 0) -> str:
        """Create a container with the manifest's requests and limits, for the n-th time."""
        request = cri.CreateContainerRequest(
            pod_sandbox_id=sandbox,
            config=cri.ContainerConfig(
                metadata=cri.ContainerMetadata(name=container["name"], attempt=attempt),
                image=cri.ImageSpec(image=self._image),
                command=list(container.get("command", LASTING)),
                linux=cri.LinuxContainerConfig(
                    resources=kubelet_resources(container.get("resources", {})),
                    security_context=cri.LinuxContainerSecurityContext(
                        namespace_options=cri.NamespaceOption(network=cri.NODE)
                    ),
                ),
            ),
            sandbox_config=self._pods[sandbox],
        )
        return str(self.call("CreateContainer", request, cri.CreateContainerResponse).container_id)


def kubelet_resources(resources: Manifest) -> cri.LinuxContainerResources:
    """What a kubelet sends for a container's resources."""
    limits = resources.get("limits", {})
    requests = {**limits, **resources.get("requests", {})}
    made = cri.LinuxContainerResources(cpu_shares=2)
    if "cpu" in requests:
        made.cpu_shares = milli_cpu_to_shares(_milli(requests["cpu"]))
    if "cpu" in limits:
        made.cpu_period = 100_000
        made.cpu_quota = milli_cpu_to_quota(_milli(limits["cpu"]))
    if "memory" in limits:
        made.memory_limit_in_bytes = Quantity.parse(str(limits["memory"])).value()
    return made


def _milli(amount: object) -> int:
    return Quantity.parse(str(amount)).milli_value()


class NriWorld:
    """Pods are a kubelet's; the agent is a plugin of its runtime."""

    name = "nri"

    def __init__(self, folder: Path, node: ContainerdNode) -> None:
        self.agent = AgentProcess(folder)
        self.node = node
        self.kubelet = ManifestKubelet(node)
        self.sandboxes: dict[str, str] = {}
        self.extra: list[str] = []
        """Sandboxes that a test has started itself."""
        del self.agent.config["staticPodPath"]
        self.agent.config["pinfold"] |= {
            "runtime": "nri",
            "nriSocket": str(node.nri),
            "runtimeEndpoint": f"unix://{node.address}",
        }

    @property
    def root(self) -> Path:
        return cpuset_folder(self.kubelet.root)

    def start(self) -> None:
        self.agent.start()
        self.connected()

    def connected(self) -> None:
        """Wait until the runtime has taken the plugin."""
        eventually(self.is_connected, expected=True, seconds=30)

    def is_connected(self) -> bool:
        return bool(self.agent.client.get("/v1/status")["agent"]["nri"]["connected"])

    def dress(self, pod: Manifest) -> Manifest:
        container = {"image": self.node.image, "command": list(LASTING)}
        return dressed(pod, container, hostNetwork=True)

    def run(self, pod: Manifest) -> Mapping[str, Running]:
        name = pod["metadata"]["name"]
        # A kubelet puts the pod's cgroup below that of its class.
        qos = apply_defaults(pod_from_api(pod)).qos
        said = pod["metadata"].get("annotations", {})
        self.sandboxes[name] = sandbox = self.kubelet.pod(name, QOS_FOLDERS[qos], **said)
        started = {}
        for container in pod["spec"]["containers"]:
            try:
                started[container["name"]] = one = self.kubelet.create_as(sandbox, container)
            except grpc.RpcError as error:
                raise RefusedPodError(str(error)) from error
            self.kubelet.start(one)
        pids = {name: self.kubelet.pid(one) for name, one in started.items()}
        return {name: Running(pid, allowed(pid)) for name, pid in pids.items()}

    def end(self, pod: str) -> None:
        if (sandbox := self.sandboxes.get(pod)) is not None:
            self.kubelet.forget(sandbox)
            self.sandboxes.pop(pod, None)

    def close(self) -> None:
        try:
            self.kubelet.close()
        finally:
            self.agent.stop()
            remove_groups(self.kubelet.root)


@contextmanager
def started(world: World) -> Iterator[World]:
    """A world that runs, and is cleaned up."""
    try:
        world.start()
        yield world
    finally:
        world.close()


@contextmanager
def patient_containerd() -> Iterator[ContainerdNode]:
    """A containerd that waits for its plugins as long as this machine needs."""
    with containerd_node(nri_timeout=f"{5 * PATIENCE:g}s") as node:
        yield node
