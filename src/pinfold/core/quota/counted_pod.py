"""What a quota sees of a pod: its resources, what scopes ask of it, how far a resize has come.

Source: the Kubernetes API (``core/v1`` ``Pod``, 1.34).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from pinfold.core.pod.annotations import EXCLUSIVE_CPUS
from pinfold.core.pod.api import PodError, pod_from_api, quantities_from_api
from pinfold.core.pod.manifest.fields import mapping, mappings, moment, text_of
from pinfold.core.pod.manifest.names import CONTAINER_LISTS
from pinfold.core.pod.pod import NO_RESOURCES, Pod, QOSClass, Resources

_STATUS_LISTS: Final = ("initContainerStatuses", "containerStatuses")
_NOT_ITS_OWN: Final = ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion")
_TERMS: Final = (
    ("requiredDuringSchedulingIgnoredDuringExecution", None),
    ("preferredDuringSchedulingIgnoredDuringExecution", "podAffinityTerm"),
)


class RunningContainer(Struct, frozen=True):
    """What a container has, by its status: ``resources`` in force, and what is allocated."""

    requests: Resources = NO_RESOURCES
    limits: Resources = NO_RESOURCES
    allocated: Resources = NO_RESOURCES


class PodClaim(Struct, frozen=True):
    """An entry of ``spec.resourceClaims``: the claim's own name, or that of its template.

    A claim that was made of a template has a name only when it is there.
    """

    name: str
    claim: str | None = None
    template: str | None = None


_NO_CONTAINERS: Final[Mapping[str, RunningContainer]] = MappingProxyType({})
_NO_CLAIMS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({})


class CountedPod(Struct, frozen=True):
    """A pod with the fields that decide what it is charged, and by whom.

    Times are in seconds since the epoch.  ``running`` holds the containers (init containers, too)
    whose status says what they have; ``infeasible`` is a resize that the node has refused for
    good.  ``container_claims`` are the entries of ``claims`` that each container names.
    ``may_decline``: whether ``exclusive-cpus: "false"`` is in force where it comes to, which it is
    beside a kubelet with Pinfold's agent alone.
    """

    pod: Pod
    phase: str = ""
    deleted_at: float | None = None
    deletion_grace: int | None = None
    active_deadline: int | None = None
    cross_namespace_affinity: bool = False
    running: Mapping[str, RunningContainer] = _NO_CONTAINERS
    infeasible: bool = False
    qos_class: str = ""
    resource_version: str = ""
    claims: tuple[PodClaim, ...] = ()
    container_claims: Mapping[str, tuple[str, ...]] = _NO_CLAIMS
    may_decline: bool = True

    def declines(self, container: str) -> bool:
        """Whether a container has no CPUs of its own by its annotation; "" is the pod."""
        return self.may_decline and not EXCLUSIVE_CPUS.of(self.pod.annotations, container)

    @property
    def qos(self) -> str:
        """The QoS class: that of the status, where there is one."""
        return self.qos_class or self.pod.qos.value

    @property
    def is_best_effort(self) -> bool:
        """Whether it asks for no CPU and no memory."""
        return self.qos == QOSClass.BEST_EFFORT.value

    @property
    def is_terminating(self) -> bool:
        """Whether it says how long it may run: the scope ``Terminating`` is about nothing else."""
        return self.active_deadline is not None and self.active_deadline >= 0

    def is_over(self, now: float) -> bool:
        """Whether only the object is left: it has ended, or should have by its grace period."""
        if self.phase in ("Failed", "Succeeded"):
            return True
        ends = self.ends_at
        return ends is not None and now > ends

    @property
    def ends_at(self) -> float | None:
        """The moment after which it is charged no more though nobody has said that it ended."""
        if self.deleted_at is None or self.deletion_grace is None:
            return None
        return self.deleted_at + self.deletion_grace


def counted_pod_from_api(
    manifest: Mapping[str, Any], pod: Pod | None = None, *, may_decline: bool = True
) -> CountedPod:
    """Read a Pod; nothing is defaulted.

    Args:
        manifest: the Pod.
        pod: what was made of it already, such as one that is defaulted.
        may_decline: whether ``exclusive-cpus: "false"`` is in force where it comes to.

    Raises:
        PodError: a field of the wrong type, or a malformed quantity.
    """
    pod = pod or pod_from_api(manifest)
    metadata = mapping(manifest.get("metadata"), "metadata")
    spec = mapping(manifest.get("spec"), "spec")
    status = mapping(manifest.get("status"), "status")
    claims = tuple(_claims(spec, status)) if spec.get("resourceClaims") else ()
    return CountedPod(
        pod,
        phase=text_of(status.get("phase"), "status.phase") or "",
        deleted_at=moment(metadata.get("deletionTimestamp"), "metadata.deletionTimestamp"),
        deletion_grace=_whole(
            metadata.get("deletionGracePeriodSeconds"), "metadata.deletionGracePeriodSeconds"
        ),
        active_deadline=_whole(spec.get("activeDeadlineSeconds"), "spec.activeDeadlineSeconds"),
        cross_namespace_affinity=_reaches_others(spec.get("affinity"), "spec.affinity"),
        running=dict(_running(status)) if status else _NO_CONTAINERS,
        infeasible=_is_infeasible(status),
        qos_class=text_of(status.get("qosClass"), "status.qosClass") or "",
        resource_version=text_of(metadata.get("resourceVersion"), "metadata.resourceVersion") or "",
        claims=claims,
        container_claims=dict(_container_claims(spec)) if claims else _NO_CLAIMS,
        may_decline=may_decline,
    )


def new_pod_from_api(manifest: Mapping[str, Any], pod: Pod) -> CountedPod:
    """Read a Pod that is to be created on a node of Pinfold's alone, without a kubelet.

    As with an API server, what it says itself that has become of it is not heeded.

    Raises:
        PodError: see :func:`counted_pod_from_api`.
    """
    metadata = mapping(manifest.get("metadata"), "metadata")
    kept = {key: value for key, value in metadata.items() if key not in _NOT_ITS_OWN}
    new = {"metadata": kept, "spec": manifest.get("spec")}
    return counted_pod_from_api(new, pod, may_decline=False)


def _running(status: Mapping[str, Any]) -> Iterator[tuple[str, RunningContainer]]:
    for key in _STATUS_LISTS:
        for item, path in mappings(status.get(key), f"status.{key}"):
            if item.get("resources") is None:
                continue
            resources = mapping(item["resources"], f"{path}.resources")
            yield (
                text_of(item.get("name"), f"{path}.name") or "",
                RunningContainer(
                    quantities_from_api(resources.get("requests"), f"{path}.resources.requests"),
                    quantities_from_api(resources.get("limits"), f"{path}.resources.limits"),
                    quantities_from_api(
                        item.get("allocatedResources"), f"{path}.allocatedResources"
                    ),
                ),
            )


def _is_infeasible(status: Mapping[str, Any]) -> bool:
    for condition, _ in mappings(status.get("conditions"), "status.conditions"):
        if condition.get("type") == "PodResizePending":
            return condition.get("reason") == "Infeasible"
    return False


def _reaches_others(value: object, path: str) -> bool:
    """Whether a term of (anti-)affinity names namespaces, or selects them."""
    if value is None:
        return False
    affinity = mapping(value, path)
    for side in ("podAffinity", "podAntiAffinity"):
        found = mapping(affinity.get(side), f"{path}.{side}")
        for key, inner in _TERMS:
            for item, here in mappings(found.get(key), f"{path}.{side}.{key}"):
                term = item if inner is None else mapping(item.get(inner), f"{here}.{inner}")
                if term.get("namespaces") or term.get("namespaceSelector") is not None:
                    return True
    return False


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[PodClaim]:
    path = "status.resourceClaimStatuses"
    made = {
        text_of(item.get("name"), f"{here}.name"): text_of(
            item.get("resourceClaimName"), f"{here}.resourceClaimName"
        )
        for item, here in mappings(status.get("resourceClaimStatuses"), path)
    }
    for item, here in mappings(spec.get("resourceClaims"), "spec.resourceClaims"):
        name = text_of(item.get("name"), f"{here}.name") or ""
        claim = text_of(item.get("resourceClaimName"), f"{here}.resourceClaimName")
        template = item.get("resourceClaimTemplateName")
        yield PodClaim(
            name,
            claim or made.get(name),
            text_of(template, f"{here}.resourceClaimTemplateName"),
        )


def _container_claims(spec: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for key in CONTAINER_LISTS:
        for item, path in mappings(spec.get(key), f"spec.{key}"):
            resources = mapping(item.get("resources"), f"{path}.resources")
            named = mappings(resources.get("claims"), f"{path}.resources.claims")
            names = tuple(text_of(one.get("name"), f"{here}.name") or "" for one, here in named)
            if names:
                yield str(item.get("name")), names


def _whole(value: object, path: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63:
        return value
    raise PodError(path, f"must be an integer, not {value!r}"[:200])
