"""A Node object, as far as it matters to who looks for a node.

Source: the Kubernetes API (``core/v1`` ``Node``, 1.34).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from pinfold.core.pod.api import PodError, quantities_from_api
from pinfold.core.pod.manifest.fields import flag, mapping, text_of
from pinfold.core.pod.manifest.names import refused
from pinfold.core.pod.pod import NO_RESOURCES, Resources
from pinfold.core.pod.scheduling import Taint, taints_from_api
from pinfold.core.values.names import subdomain_problems


class NodeObject(Struct, frozen=True):
    """A node by its name; ``allocatable`` is what its status says, nothing where it says nothing.

    ``unschedulable`` is one that is cordoned.
    """

    name: str
    labels: Mapping[str, str] = {}
    allocatable: Resources = NO_RESOURCES
    unschedulable: bool = False
    creation_timestamp: str | None = None
    taints: tuple[Taint, ...] = ()
    kubelet_version: str = ""
    """As its kubelet tells it, such as ``v1.36.2``; "" where nobody does."""


def node_from_api(manifest: Mapping[str, Any]) -> NodeObject:
    """Read a Node.

    Raises:
        PodError: a field of the wrong type, a malformed quantity, or a name that no node has.
    """
    metadata = mapping(manifest.get("metadata"), "metadata")
    spec = mapping(manifest.get("spec"), "spec")
    status = mapping(manifest.get("status"), "status")
    info = mapping(status.get("nodeInfo"), "status.nodeInfo")
    labels = mapping(metadata.get("labels"), "metadata.labels")
    name = text_of(metadata.get("name"), "metadata.name") or ""
    for problem in refused(name, subdomain_problems, "metadata.name"):
        raise PodError(problem.path, problem.problem)
    return NodeObject(
        name,
        {str(key): text_of(one, f"metadata.labels.{key}") or "" for key, one in labels.items()},
        quantities_from_api(status.get("allocatable"), "status.allocatable"),
        flag(spec.get("unschedulable"), "spec.unschedulable"),
        text_of(metadata.get("creationTimestamp"), "metadata.creationTimestamp"),
        taints_from_api(spec.get("taints"), "spec.taints"),
        text_of(info.get("kubeletVersion"), "status.nodeInfo.kubeletVersion") or "",
    )
