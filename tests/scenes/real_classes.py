"""What ``deploy/kubernetes/serve-classes`` makes in a real cluster, and nodes with devices."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from pinfold.core.classes.bound import bound_key, parsed_bound
from pinfold.core.classes.scheduler_config import ExtenderTLS, scheduler_config
from tests.roots import ROOT
from tests.scenes.class_cluster import GPU, compute_resource, pod, resource_class
from tests.scenes.control_plane import ControlPlane
from tests.scenes.real_deployment import RealDeployment, own_address
from tests.scenes.replica_process import ReplicaProcess

NAME = "pinfold-classes"
OVERLAYS = ROOT / "deploy" / "kubernetes" / "serve-classes" / "overlays"
PINFOLD = "pinfold.dev/v1alpha1"


class RealClasses(RealDeployment):
    """The deployment; nobody but these tests tells what nodes have."""

    def __init__(self, control: ControlPlane) -> None:
        words = ("--extender-listen", f"{own_address()}:0")
        super().__init__(control, NAME, OVERLAYS, command=("classes", "serve"), words=words)

    def make_class(self, name: str, *kinds: str, **fields: Any) -> None:
        made = resource_class(name, *kinds, **fields)
        self.control.apply({"apiVersion": PINFOLD, "kind": "ResourceClass", **made})

    def make_node(self, name: str, **devices: int) -> None:
        """A node that is ready, with so many devices of each kind."""
        # More than are told of, so that the scheduler alone would give what nobody has.
        amounts = {"cpu": "32", "memory": "64Gi", "pods": "110", GPU: "16"}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
        resources = [
            {
                "apiVersion": PINFOLD,
                "kind": "ComputeResource",
                **compute_resource(f"{name}-nvidia.com-gpu-{kind}", name, kind, count),
            }
            for kind, count in devices.items()
        ]
        self.control.apply(node, *resources)

    def pod(self, name: str, namespace: str, /, **classes: int) -> dict[str, Any]:
        """One as a client sends it."""
        made = pod(name, namespace=namespace, bound=False, **classes)  # type: ignore[arg-type] # no class is called so
        del made["status"], made["metadata"]["annotations"]
        made["spec"]["containers"][0]["image"] = "img"
        return {"apiVersion": "v1", "kind": "Pod", **made}

    def configuration(self, replica: ReplicaProcess, *classes: str) -> Mapping[str, Any]:
        """Of a scheduler that asks a replica about pods with these classes."""
        newest = self.control.version >= (1, 25)
        version = "v1" if newest else "v1beta1"
        url = f"https://{own_address()}:{replica.ports['extender_port']}"
        # A file that a scheduler of another place would see; here it is told what is in it.
        tls = ExtenderTLS("ca.crt", f"{NAME}-extender.{NAME}.svc")
        found = dict(scheduler_config(classes, url, tls, version))
        webhook = self.control.get("mutatingwebhookconfiguration", NAME)["webhooks"][0]
        (extender,) = found["extenders"]
        del extender["tlsConfig"]["caFile"]
        extender["tlsConfig"]["caData"] = webhook["clientConfig"]["caBundle"]
        assert base64.b64decode(extender["tlsConfig"]["caData"])
        return found


def taken(pods: list[dict[str, Any]], of: str) -> dict[str, int]:
    """How many devices of a class pods have, by node; as the annotations say."""
    found: dict[str, int] = {}
    for one in pods:
        node = one["spec"].get("nodeName", "")
        text = one["metadata"].get("annotations", {}).get(bound_key("app"), "")
        if node and text:
            found[node] = found.get(node, 0) + sum(
                bound.count for bound in parsed_bound(text) if bound.class_name == of
            )
    return found


def given_twice(pods: list[dict[str, Any]], of: str, nodes: Mapping[str, int]) -> list[str]:
    """The nodes of which more is taken than they have."""
    return [node for node, count in taken(pods, of).items() if count > nodes.get(node, 0)]
