"""The kinds that the server knows: some of Kubernetes' own, and those of its CRDs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pinfold.planning.fake_cluster import FakeCluster
from pinfold.ports.kubernetes import NAMESPACES, Resource


@dataclass(frozen=True)
class Served:
    """A resource, and what discovery says of it."""

    resource: Resource
    short_names: tuple[str, ...] = ()
    has_status: bool = True
    subresources: tuple[str, ...] = ()
    columns: tuple[tuple[str, str, str], ...] = ()
    """Name, type and path of the columns that a table shows beside name and age."""
    schema: Mapping[str, Any] = field(default_factory=dict, hash=False)
    selectable: tuple[str, ...] = ()
    """The fields that lists and watches are selected by beside name and namespace."""

    @property
    def group_version(self) -> str:
        return self.resource.api_version


def _own(group: str, version: str, kind: str, *, cluster: bool = False) -> Resource:
    plural = kind.lower() + ("es" if kind.endswith(("s", "ss")) else "s")
    if kind.endswith("y") and not kind.endswith("ay"):
        plural = kind.lower()[:-1] + "ies"
    return Resource(group, version, plural, kind, is_namespaced=not cluster)


CRDS = _own("apiextensions.k8s.io", "v1", "CustomResourceDefinition", cluster=True)
_ADMISSION = "admissionregistration.k8s.io"
_RBAC = "rbac.authorization.k8s.io"

BUILT_IN = (
    Served(NAMESPACES, ("ns",), subresources=("finalize",)),
    Served(_own("", "v1", "Node", cluster=True), ("no",)),
    Served(
        _own("", "v1", "Pod"),
        ("po",),
        subresources=("resize", "binding"),
        columns=(("Status", "string", ".status.phase"),),
        selectable=("spec.nodeName", "spec.schedulerName", "status.phase"),
    ),
    Served(
        _own("", "v1", "ResourceQuota"),
        ("quota",),
        columns=(("Hard", "string", ".status.hard"), ("Used", "string", ".status.used")),
    ),
    Served(_own("", "v1", "ConfigMap"), ("cm",), has_status=False),
    Served(_own("", "v1", "Secret"), has_status=False),
    Served(_own("", "v1", "ServiceAccount"), ("sa",), has_status=False),
    Served(_own("", "v1", "Service"), ("svc",)),
    Served(_own("", "v1", "Event"), ("ev",), has_status=False),
    Served(_own("apps", "v1", "Deployment"), ("deploy",)),
    Served(_own("apps", "v1", "DaemonSet"), ("ds",)),
    Served(_own("policy", "v1", "PodDisruptionBudget"), ("pdb",)),
    Served(_own("networking.k8s.io", "v1", "NetworkPolicy"), ("netpol",), has_status=False),
    Served(
        _own("coordination.k8s.io", "v1", "Lease"),
        has_status=False,
        columns=(("Holder", "string", ".spec.holderIdentity"),),
    ),
    Served(_own("discovery.k8s.io", "v1", "EndpointSlice"), has_status=False),
    Served(_own("resource.k8s.io", "v1", "ResourceClaim")),
    Served(_own("resource.k8s.io", "v1", "ResourceClaimTemplate"), has_status=False),
    Served(_own("resource.k8s.io", "v1", "ResourceSlice", cluster=True), has_status=False),
    Served(_own("resource.k8s.io", "v1", "DeviceClass", cluster=True), has_status=False),
    Served(
        _own(_ADMISSION, "v1", "ValidatingWebhookConfiguration", cluster=True), has_status=False
    ),
    Served(_own(_ADMISSION, "v1", "MutatingWebhookConfiguration", cluster=True), has_status=False),
    Served(_own(_ADMISSION, "v1", "ValidatingAdmissionPolicy", cluster=True)),
    Served(
        _own(_ADMISSION, "v1", "ValidatingAdmissionPolicyBinding", cluster=True), has_status=False
    ),
    Served(_own(_RBAC, "v1", "ClusterRole", cluster=True), has_status=False),
    Served(_own(_RBAC, "v1", "ClusterRoleBinding", cluster=True), has_status=False),
    Served(_own(_RBAC, "v1", "Role"), has_status=False),
    Served(_own(_RBAC, "v1", "RoleBinding"), has_status=False),
    Served(_own("scheduling.k8s.io", "v1", "PriorityClass", cluster=True), has_status=False),
    Served(CRDS, ("crd",)),
)


class Kinds:
    """What is served now."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        for served in BUILT_IN:
            if not served.has_status:
                cluster.without_status.add((served.resource.group, served.resource.plural))

    def all(self) -> Iterator[Served]:
        yield from BUILT_IN
        for crd in self._cluster.chunk(CRDS).objects:
            yield from _versions(crd["spec"])

    def find(self, group: str, version: str, plural: str) -> Served | None:
        for served in self.all():
            one = served.resource
            if (one.group, one.version, one.plural) == (group, version, plural):
                key = (group, plural)
                if served.has_status:
                    self._cluster.without_status.discard(key)
                else:
                    self._cluster.without_status.add(key)
                return served
        return None


def _versions(spec: Mapping[str, Any]) -> Iterator[Served]:
    names = spec["names"]
    for version in spec["versions"]:
        if version.get("served"):
            yield Served(
                Resource(
                    spec["group"],
                    version["name"],
                    names["plural"],
                    names["kind"],
                    is_namespaced=spec["scope"] == "Namespaced",
                ),
                tuple(names.get("shortNames", ())),
                has_status="status" in version.get("subresources", {}),
                columns=tuple(
                    (one["name"], one["type"], one["jsonPath"])
                    for one in version.get("additionalPrinterColumns", ())
                ),
                schema=version.get("schema", {}).get("openAPIV3Schema", {}),
                selectable=tuple(
                    one["jsonPath"].removeprefix(".") for one in version.get("selectableFields", ())
                ),
            )
