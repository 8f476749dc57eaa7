"""What a kubelet asks of a container runtime, over the real CRI; its own CPU manager is off."""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc

from pinfold.adapters.cri import cri_pb2 as cri
from pinfold.core.pod.cgroup_values import milli_cpu_to_quota, milli_cpu_to_shares
from tests.scenes.containerd_node import ContainerdNode

_HOST: Final = cri.NamespaceOption(network=cri.NODE)
MEMORY: Final = 64 << 20
_LASTING: Final = ("sleep", "1000000")


class KubeletStandIn:
    """Runs pods below a cgroup of its own, named as a kubelet names them."""

    def __init__(self, node: ContainerdNode) -> None:
        self._image = node.image
        self._channel = grpc.insecure_channel(f"unix://{node.address}")
        self.root = f"/pinfold-test-{secrets.token_hex(4)}"
        self._pods: dict[str, cri.PodSandboxConfig] = {}

    def call(self, method: str, request: Any, answer: Any, timeout: float = 60) -> Any:
        """One call; raises grpc.RpcError."""
        return self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )(request, timeout=timeout, wait_for_ready=True)

    def pod(self, name: str, qos: str = "", **annotations: str) -> str:
        """Start a sandbox; ``qos`` is "" (Guaranteed), ``burstable`` or ``besteffort``."""
        uid = f"uid-{name}"
        parts = [self.root, "kubepods", *([qos] if qos else []), f"pod{uid}"]
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, uid=uid, namespace="default"),
            labels={"io.kubernetes.pod.name": name, "io.kubernetes.pod.uid": uid},
            annotations=annotations,
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent="/".join(parts),
                security_context=cri.LinuxSandboxSecurityContext(namespace_options=_HOST),
            ),
        )
        answer = self.call(
            "RunPodSandbox", cri.RunPodSandboxRequest(config=config), cri.RunPodSandboxResponse
        )
        self._pods[answer.pod_sandbox_id] = config
        return str(answer.pod_sandbox_id)

    def create(
        self, pod: str, name: str, cpus: float = 0, command: tuple[str, ...] = _LASTING
    ) -> str:
        """Create a container with ``cpus`` as request and limit; 0 is BestEffort."""
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=name),
            image=cri.ImageSpec(image=self._image),
            command=list(command),
            linux=cri.LinuxContainerConfig(
                resources=resources(cpus),
                security_context=cri.LinuxContainerSecurityContext(namespace_options=_HOST),
            ),
        )
        request = cri.CreateContainerRequest(
            pod_sandbox_id=pod, config=config, sandbox_config=self._pods[pod]
        )
        return str(self.call("CreateContainer", request, cri.CreateContainerResponse).container_id)

    def start(self, container: str) -> None:
        request = cri.StartContainerRequest(container_id=container)
        self.call("StartContainer", request, cri.StartContainerResponse)

    def run(self, pod: str, name: str, cpus: float = 0, command: tuple[str, ...] = _LASTING) -> str:
        container = self.create(pod, name, cpus, command)
        self.start(container)
        return container

    def resize(self, container: str, cpus: float) -> None:
        request = cri.UpdateContainerResourcesRequest(container_id=container, linux=resources(cpus))
        self.call("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    def stop(self, container: str) -> None:
        request = cri.StopContainerRequest(container_id=container, timeout=0)
        self.call("StopContainer", request, cri.StopContainerResponse)

    def remove(self, container: str) -> None:
        request = cri.RemoveContainerRequest(container_id=container)
        self.call("RemoveContainer", request, cri.RemoveContainerResponse)

    def end(self, pod: str) -> None:
        """Stop and remove a pod."""
        stop = cri.StopPodSandboxRequest(pod_sandbox_id=pod)
        self.call("StopPodSandbox", stop, cri.StopPodSandboxResponse)
        remove = cri.RemovePodSandboxRequest(pod_sandbox_id=pod)
        self.call("RemovePodSandbox", remove, cri.RemovePodSandboxResponse)
        del self._pods[pod]

    def close(self) -> None:
        """End every pod."""
        for pod in list(self._pods):
            self.end(pod)
        self._channel.close()
        # A kubelet keeps the cgroups of pods; a runtime removes those of containers only.
        for root in Path("/sys/fs/cgroup").glob(f"**{self.root}"):
            for folder in sorted(root.glob("**/"), reverse=True):
                with suppress(OSError):
                    folder.rmdir()

    # ----------------------------------------------------------------------- what the kernel says

    def _status(self, container: str) -> Any:
        request = cri.ContainerStatusRequest(container_id=container, verbose=True)
        return self.call("ContainerStatus", request, cri.ContainerStatusResponse)

    def pid(self, container: str) -> int:
        return int(json.loads(self._status(container).info["info"])["pid"])

    def allowed(self, container: str) -> str:
        """Where the kernel lets the main process run."""
        status = Path(f"/proc/{self.pid(container)}/status").read_text()
        return status.split("Cpus_allowed_list:")[1].split()[0]

    def quota(self, container: str) -> int:
        """The main process's CPU quota in microseconds of each period; -1: there is none."""
        groups = Path(f"/proc/{self.pid(container)}/cgroup").read_text().splitlines()
        for line in groups:
            _, controllers, path = line.split(":", 2)
            if "cpu" in controllers.split(","):
                folder = Path("/sys/fs/cgroup", controllers, path.lstrip("/"))
                if not folder.exists():
                    folder = Path("/sys/fs/cgroup/cpu", path.lstrip("/"))
                return int((folder / "cpu.cfs_quota_us").read_text())
        (line,) = (line for line in groups if line.startswith("0::"))
        quota = Path("/sys/fs/cgroup", line[4:], "cpu.max").read_text().split()[0]
        return -1 if quota == "max" else int(quota)

    def reported_quota(self, container: str) -> int:
        """The CPU quota that the runtime reports, of which a kubelet makes the limit it shows."""
        return int(self._status(container).status.resources.linux.cpu_quota)

    def recorded(self, container: str) -> str:
        """The cpuset that the runtime has on record."""
        info = json.loads(self._status(container).info["info"])
        return str(info["runtimeSpec"]["linux"]["resources"]["cpu"].get("cpus", ""))


def resources(cpus: float) -> cri.LinuxContainerResources:
    """What a kubelet sends for a container with these CPUs as request and limit."""
    if not cpus:
        return cri.LinuxContainerResources(cpu_shares=2)
    milli = round(cpus * 1000)
    return cri.LinuxContainerResources(
        cpu_shares=milli_cpu_to_shares(milli),
        cpu_quota=milli_cpu_to_quota(milli),
        cpu_period=100_000,
        memory_limit_in_bytes=MEMORY,
    )
