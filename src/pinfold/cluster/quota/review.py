"""What an admission request is to be charged, before anybody is asked: nothing, a pod, a claim.

Source: the resources and subresources of the Kubernetes API (1.34) through which a pod gets CPUs:
its creation, a resize, a change of what it is counted by, and claims of DRA.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.cluster.quota.counted import CLAIMS, PODS, TEMPLATES
from pinfold.core.pod.annotations import changed_fixed
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.fields import mapping
from pinfold.core.quota.charge import CREATE, RESIZE, UPDATE, Request
from pinfold.core.quota.claims import ClaimedCPUs, ClaimRules, claimed_cpus
from pinfold.core.quota.counted_pod import counted_pod_from_api
from pinfold.documents.admission_review import AdmissionRequest

CLAIM_GROUP: Final = "resource.k8s.io"

_CLAIMS: Final = ((CLAIM_GROUP, CLAIMS, CREATE), (CLAIM_GROUP, TEMPLATES, CREATE))


class NothingAsked(Struct, frozen=True):
    """Nothing is charged."""


class Denied(Struct, frozen=True):
    """It is refused without asking anybody."""

    code: int
    reason: str
    message: str


class PodAsked(Struct, frozen=True):
    """A pod, or more for one."""

    request: Request


class ClaimAsked(Struct, frozen=True):
    """A claim for CPUs; of a template each claim that is made of it will be charged."""

    uid: str
    name: str
    claimed: ClaimedCPUs
    is_template: bool


Asked = NothingAsked | Denied | PodAsked | ClaimAsked

_NOTHING: Final = NothingAsked()


def review(request: AdmissionRequest, rules: ClaimRules) -> Asked:
    """What is to be charged; ``rules`` say which claims are for CPUs."""
    if request.object is None:
        return _NOTHING
    asked = (request.resource.group, request.resource.resource, request.operation)
    try:
        if asked == ("", PODS, CREATE) and not request.sub_resource:
            return PodAsked(Request(CREATE, counted_pod_from_api(_placed(request))))
        if asked == ("", PODS, UPDATE) and request.sub_resource in (None, "", RESIZE):
            return _changed(request, request.old_object or {})
        if asked in _CLAIMS and not request.sub_resource:
            return _claim(request, request.object, rules)
    except PodError as error:
        return Denied(400, "BadRequest", str(error))
    return _NOTHING


def _changed(request: AdmissionRequest, old: Mapping[str, Any]) -> Asked:
    if changed := changed_fixed(_annotations(old), _annotations(request.object or {})):
        verb = "says" if len(changed) == 1 else "say"
        return Denied(
            403,
            "Forbidden",
            f"{', '.join(changed)}: may not change once a pod is created, as it {verb} how many "
            "CPUs it owns, and its quota has counted them; create the pod anew",
        )
    subresource = request.sub_resource or ""
    new_pod = counted_pod_from_api(_placed(request))
    return PodAsked(Request(UPDATE, new_pod, counted_pod_from_api(old), subresource))


def _claim(request: AdmissionRequest, claim: Mapping[str, Any], rules: ClaimRules) -> Asked:
    is_template = request.resource.resource == TEMPLATES
    # What kind it is decides where its requests are; a server sends it, and it is what counts.
    kind = "ResourceClaimTemplate" if is_template else "ResourceClaim"
    claimed = claimed_cpus({**claim, "kind": kind}, rules)
    if not claimed.cpus and not claimed.unspecified:
        return _NOTHING
    metadata = mapping(claim.get("metadata"), "metadata")
    name = str(metadata.get("name") or request.name or metadata.get("generateName") or "")
    return ClaimAsked(str(metadata.get("uid") or request.uid), name, claimed, is_template)


def _placed(request: AdmissionRequest) -> Mapping[str, Any]:
    """The object in the namespace that it is asked for; its own may be left out."""
    found = request.object or {}
    metadata = mapping(found.get("metadata"), "metadata")
    return {**found, "metadata": {**metadata, "namespace": request.namespace or "default"}}


def _annotations(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = mapping(pod.get("metadata"), "metadata")
    return mapping(metadata.get("annotations"), "metadata.annotations")
