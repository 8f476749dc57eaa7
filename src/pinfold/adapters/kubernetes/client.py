"""A small client of the Kubernetes API: just the requests that the agent makes.

:data:`OPERATIONS` is all of it; the rights in ``deploy/kubernetes`` are compared with that table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from msgspec import Struct

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.connection import JSON, MERGE, Connection
from pinfold.adapters.kubernetes.published_node import NAMESPACE
from pinfold.ports.kubernetes import KubernetesError

TIMEOUT: Final = 10.0
"""Seconds for a request, all in all."""

MANAGER: Final = "pinfold"
"""The field manager: who a server notes down as the owner of what is written."""

_APPLY: Final = "application/apply-patch+yaml"


class Operation(Struct, frozen=True):
    """A request: method and path, and the rights that it needs (RBAC's words)."""

    method: str
    path: str
    group: str
    resource: str
    verbs: tuple[str, ...]
    content_type: str = JSON


GET_POD: Final = Operation(
    "GET", "/api/v1/namespaces/{namespace}/pods/{name}", "", "pods", ("get",)
)
CREATE_EVENT: Final = Operation(
    "POST", "/api/v1/namespaces/{namespace}/events", "", "events", ("create",)
)
PATCH_EVENT: Final = Operation(
    "PATCH", "/api/v1/namespaces/{namespace}/events/{name}", "", "events", ("patch",), MERGE
)
GET_NODE: Final = Operation("GET", "/api/v1/nodes/{name}", "", "nodes", ("get",))
PATCH_NODE: Final = Operation("PATCH", "/api/v1/nodes/{name}", "", "nodes", ("patch",), MERGE)
APPLY_TOPOLOGY: Final = Operation(
    "PATCH",
    "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{name}"
    f"?fieldManager={MANAGER}&force=true",
    "topology.node.k8s.io",
    "noderesourcetopologies",
    # A server-side apply of what is not there yet creates it.
    ("create", "patch"),
    _APPLY,
)

APPLY_PUBLISHED: Final = Operation(
    "PATCH",
    f"/api/v1/namespaces/{NAMESPACE}/configmaps/{{name}}?fieldManager={MANAGER}&force=true",
    "",
    "configmaps",
    ("create", "patch"),
    _APPLY,
)

OPERATIONS: Final[Mapping[str, tuple[Operation, ...]]] = {
    "": (GET_POD, GET_NODE, CREATE_EVENT, PATCH_EVENT),
    "nodeLabels": (PATCH_NODE,),
    "nodeResourceTopology": (GET_NODE, APPLY_TOPOLOGY),
    # Beside what pinfold.cluster.classes.publishing asks.
    "computeResources": (GET_NODE,),
    "publishNode": (GET_NODE, APPLY_PUBLISHED),
    "startUpTaint": (GET_NODE, PATCH_NODE),
}
"""The requests by the setting that asks for them; "": wherever there is an API server."""


class KubeClient:
    """Talks to one API server; to be closed.

    Every method raises ``KubernetesError`` where the server cannot be reached or refuses.
    """

    def __init__(self, access: Access, *, timeout: float = TIMEOUT) -> None:
        self._connection = Connection(access, timeout=timeout)

    @property
    def server(self) -> str:
        """The address."""
        return self._connection.server

    async def get_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A pod, as the server has it."""
        return await self._do(GET_POD, namespace=namespace, name=name)

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write a new ``core/v1`` Event."""
        return await self._do(CREATE_EVENT, event, namespace=namespace)

    async def patch_event(
        self, namespace: str, name: str, changes: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Change an Event; the server forgets them after an hour or so (status 404)."""
        return await self._do(PATCH_EVENT, changes, namespace=namespace, name=name)

    async def get_node(self, name: str) -> Mapping[str, Any]:
        """A node."""
        return await self._do(GET_NODE, name=name)

    async def node_reference(self, name: str) -> dict[str, Any]:
        """What says in an object that it belongs to a node (``ownerReferences``)."""
        metadata = (await self.get_node(name)).get("metadata")
        uid = metadata.get("uid") if isinstance(metadata, dict) else None
        if not isinstance(uid, str):
            raise KubernetesError(f"{self.server}: node {name} has no uid")
        return {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}

    async def label_node(self, name: str, labels: Mapping[str, str | None]) -> Mapping[str, Any]:
        """Set these labels of a node, and remove those that are None; others stay."""
        return await self._do(PATCH_NODE, {"metadata": {"labels": dict(labels)}}, name=name)

    async def set_taints(
        self, name: str, taints: Sequence[object], *, version: str
    ) -> Mapping[str, Any]:
        """Set all taints of a node as it was read (``resourceVersion``; status 409: it is not)."""
        changes = {"metadata": {"resourceVersion": version}, "spec": {"taints": list(taints)}}
        return await self._do(PATCH_NODE, changes, name=name)

    async def apply_topology(self, topology: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create or replace a ``NodeResourceTopology``."""
        return await self._do(APPLY_TOPOLOGY, topology, name=topology["metadata"]["name"])

    async def apply_published(self, published: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create or replace the ConfigMap in which a node is published."""
        return await self._do(APPLY_PUBLISHED, published, name=published["metadata"]["name"])

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()

    async def _do(
        self, operation: Operation, body: Mapping[str, Any] | None = None, **names: str
    ) -> Mapping[str, Any]:
        path = operation.path.format(**{key: quote(name, safe="") for key, name in names.items()})
        return await self._connection.ask(operation.method, path, body, operation.content_type)
