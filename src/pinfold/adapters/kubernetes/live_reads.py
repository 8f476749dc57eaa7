"""Every request with which nodes of a cluster are read, and the rights that it needs.

The Roles of ``docs/how-to/plan-a-live-node.md`` are compared with this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pinfold.adapters.kubernetes.published_node import NAMESPACE
from pinfold.ports.kubernetes import PROXY_WARNING


class Read(Struct, frozen=True):
    """A request, and the right that it needs in RBAC's words; ``namespace`` "": in all of them.

    ``warning``: what is said with the rule; "" where nothing speaks against it.
    """

    path: str
    group: str
    resource: str
    verb: str
    namespace: str = ""
    warning: str = ""

    @property
    def remedy(self) -> str:
        """What to say to whoever has not the right."""
        warned = f": {self.warning}" if self.warning else ""
        return f"it needs the rule {self.rule}{warned}"

    @property
    def rule(self) -> str:
        """The rule to add to a role, as YAML in one line."""
        group = self.group or '""'
        where = f" in namespace {self.namespace}" if self.namespace else " of a ClusterRole"
        return (
            f"{{apiGroups: [{group}], resources: [{self.resource}], verbs: [{self.verb}]}}{where}"
        )


GET_NODE: Final = Read("/api/v1/nodes/{node}", "", "nodes", "get")
LIST_NODES: Final = Read("/api/v1/nodes", "", "nodes", "list")
LIST_PODS: Final = Read("/api/v1/pods", "", "pods", "list")
GET_POD: Final = Read("/api/v1/namespaces/{namespace}/pods/{name}", "", "pods", "get")
GET_PUBLISHED: Final = Read(
    f"/api/v1/namespaces/{NAMESPACE}/configmaps/{{node}}", "", "configmaps", "get", NAMESPACE
)
GET_TOPOLOGY: Final = Read(
    "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{node}",
    "topology.node.k8s.io",
    "noderesourcetopologies",
    "get",
)
GET_CONFIGZ: Final = Read(
    "/api/v1/nodes/{node}/proxy/configz", "", "nodes/proxy", "get", warning=PROXY_WARNING
)

READS: Final[Mapping[str, tuple[Read, ...]]] = {
    "--node": (GET_NODE, LIST_PODS, GET_PUBLISHED),
    "--from-cluster": (LIST_NODES, LIST_PODS, GET_PUBLISHED),
    "pod/NAME": (GET_POD,),
    "--node-resource-topology": (GET_TOPOLOGY,),
    "--configz": (GET_CONFIGZ,),
}
"""The requests by what is asked for."""
