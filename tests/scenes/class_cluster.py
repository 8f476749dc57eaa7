"""A cluster with classes of devices, and the objects that it is made of."""

from __future__ import annotations

from typing import Any

import yaml

from pinfold.core.classes.bound import bound_key
from pinfold.core.classes.names import class_resource
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.ports.kubernetes import Object
from tests.cluster.api_server.kinds import CRDS
from tests.roots import ROOT

GPU = "nvidia.com/gpu"


def install(cluster: FakeCluster) -> None:
    """Define both kinds, as ``kubectl apply -k deploy/kubernetes/classes`` does."""
    for name in ("resource-class", "compute-resource"):
        file = ROOT / f"deploy/kubernetes/classes/{name}.yaml"
        cluster.create(CRDS, yaml.safe_load(file.read_text()))


def resource_class(name: str, *kinds: str, priority: int = 0, level: str = "NODELEVEL") -> Object:
    """A class of what has one of some kinds; without kinds of all."""
    one: dict[str, Any] = {"key": "kind", "operator": "Exists"}
    if kinds:
        one = {"key": "kind", "operator": "In", "values": list(kinds)}
    return {
        "metadata": {"name": name},
        "spec": {
            "labelSelector": [{"matchExpressions": [one]}],
            "priority": priority,
            "provisionConfig": {"resourceType": level},
        },
    }


def compute_resource(name: str, node: str, kind: str, count: int, resource: str = GPU) -> Object:
    """So many devices of a kind; of no node with ""."""
    spec: dict[str, Any] = {
        "resourceName": resource,
        "properties": {"kind": kind},
        "devices": [f"{name}-{at}" for at in range(count)],
    }
    return {"metadata": {"name": name}, "spec": spec | ({"nodeName": node} if node else {})}


def pod(
    name: str, *, node: str = "", namespace: str = "team", bound: bool = True, **amounts: int
) -> Object:
    """One container that asks for classes by name, bound to GPUs as the webhook does it."""
    requests = {class_resource(one): str(n) for one, n in amounts.items() if one != "gpu"}
    count = amounts.get("gpu", 0) + (sum(amounts.values()) if bound else 0)
    if count:
        requests[GPU] = str(count)
    annotations = {}
    if bound and amounts:
        text = ",".join(f"{one}={GPU}:{n}" for one, n in amounts.items())
        annotations[bound_key("app")] = text
    spec: dict[str, Any] = {
        "containers": [{"name": "app", "resources": {"requests": requests, "limits": requests}}]
    }
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": spec | ({"nodeName": node} if node else {}),
        "status": {"phase": "Pending"},
    }
