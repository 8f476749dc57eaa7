"""An agent with ``runtime: cri``, and the containerd that it tells what to run."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.scenes.agent_process import AgentProcess
from tests.scenes.containerd_node import ContainerdNode
from tests.scenes.kubelet_stand_in import KubeletStandIn
from tests.scenes.waiting import eventually


class Scene:
    """A containerd, and the agent that tells it what to do."""

    def __init__(self, node: ContainerdNode, folder: Path) -> None:
        self.node = node
        self.agent = AgentProcess(folder)
        self.agent.config["pinfold"] |= {
            "runtime": "cri",
            "runtimeEndpoint": f"unix://{node.address}",
        }
        self.look = KubeletStandIn(node)

    def pod(
        self, name: str, cpus: str = "", command: str = "sleep 1000000", **spec: Any
    ) -> Mapping[str, Any]:
        """The manifest of a pod with one container."""
        limits = {"cpu": cpus, "memory": "64Mi"} if cpus else {}
        container = {
            "name": "main",
            "image": self.node.image,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", f"trap 'exit 0' TERM; {command} & wait $!"],
            "resources": {"limits": limits},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "hostNetwork": True,
                "terminationGracePeriodSeconds": 5,
                "containers": [container],
                **spec,
            },
        }

    def run(self, name: str, cpus: str = "", **spec: Any) -> str:
        """Apply a pod, and wait until it runs; the id of its container."""
        self.agent.apply(self.pod(name, cpus, **spec))
        return self.running(name)

    def running(self, name: str) -> str:
        eventually(lambda: self.agent.pod(name)["phase"], "Running")
        uid = self.agent.pod(name)["uid"]
        return next(
            line.split()[0]
            for line in self.node.ctr("containers", "ls").splitlines()
            if self._is_main(line.split()[0], uid)
        )

    def _is_main(self, container: str, uid: str) -> bool:
        if container == "CONTAINER":
            return False
        try:
            info = self.node.ctr("containers", "info", container)
        except subprocess.CalledProcessError:
            return False  # it was removed since it was listed
        return f'"io.kubernetes.pod.uid": "{uid}"' in info and (
            '"io.cri-containerd.kind": "container"' in info
        )

    def allowed(self, *containers: str) -> list[str]:
        return [self.look.allowed(one) for one in containers]
