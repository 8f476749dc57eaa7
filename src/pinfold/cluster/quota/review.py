"""What an admission request is to be charged, before anybody is asked: nothing, a pod, a claim.

Source: the resources and subresources of the Kubernetes API (1.34) through which a pod gets CPUs:
its creation, a resize, a change of what it is counted by, and claims of DRA.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct

from pinfold.cluster.quota.counted import CLAIMS, PODS, TEMPLATES
from pinfold.core.pod.annotations import changed_fixed
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.fields import mapping
from pinfold.core.pod.manifest.names import CONTAINER_LISTS
from pinfold.core.quota.charge import CREATE, RESIZE, UPDATE, Request
from pinfold.core.quota.claims import ClaimedCPUs, ClaimRules, claimed_cpus
from pinfold.core.quota.counted_pod import CountedPod, counted_pod_from_api
from pinfold.core.values.names import subdomain_problems
from pinfold.documents.admission_review import AdmissionRequest
from pinfold.ports.kubernetes import RESOURCE_CLAIMS

CLAIM_GROUP: Final = RESOURCE_CLAIMS.group

MOST_CONTAINERS: Final = 1000
"""Of one pod.  An API server takes some ten thousand, no node runs as many; to count them would
hold up all others for most of a second."""

_MOST_UID: Final = 128

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


def review(request: AdmissionRequest, rules: ClaimRules, *, heeds_opt_out: bool = True) -> Asked:
    """What is to be charged.

    Args:
        request: of the API server.
        rules: which claims are for CPUs.
        heeds_opt_out: whether ``exclusive-cpus: "false"`` counts 0.
    """
    if request.object is None:
        return _NOTHING
    counted = partial(counted_pod_from_api, may_decline=heeds_opt_out)
    asked = (request.resource.group, request.resource.resource, request.operation)
    try:
        if asked == ("", PODS, CREATE) and not request.sub_resource:
            return PodAsked(Request(CREATE, counted(_placed(request))))
        if asked == ("", PODS, UPDATE) and request.sub_resource in (None, "", RESIZE):
            return _changed(request, request.old_object or {}, counted)
        if asked in _CLAIMS and not request.sub_resource:
            return _claim(request, request.object, rules)
    except PodError as error:
        return Denied(400, "BadRequest", str(error))
    return _NOTHING


def _changed(
    request: AdmissionRequest,
    old: Mapping[str, Any],
    counted: Callable[[Mapping[str, Any]], CountedPod],
) -> Asked:
    if changed := changed_fixed(_annotations(old), _annotations(request.object or {})):
        verb = "says" if len(changed) == 1 else "say"
        return Denied(
            403,
            "Forbidden",
            f"{', '.join(changed)}: may not change once a pod is created, as it {verb} how many "
            "CPUs it owns, and its quota has counted them; create the pod anew",
        )
    subresource = request.sub_resource or ""
    return PodAsked(Request(UPDATE, counted(_placed(request)), counted(old), subresource))


def _claim(request: AdmissionRequest, claim: Mapping[str, Any], rules: ClaimRules) -> Asked:
    is_template = request.resource.resource == TEMPLATES
    # What kind it is decides where its requests are; a server sends it, and it is what counts.
    kind = "ResourceClaimTemplate" if is_template else "ResourceClaim"
    claimed = claimed_cpus({**claim, "kind": kind}, rules)
    if not claimed.cpus and not claimed.unspecified:
        return _NOTHING
    metadata = mapping(claim.get("metadata"), "metadata")
    return ClaimAsked(_uid(request, metadata), _name(request, metadata), claimed, is_template)


def _placed(request: AdmissionRequest) -> Mapping[str, Any]:
    """The pod with its namespace and name, and a uid: its own ones may be left out.

    Raises:
        PodError: more than somebody means, in a name, a uid or a number of containers.
    """
    found = request.object or {}
    spec = mapping(found.get("spec"), "spec")
    lists = [spec.get(key) for key in CONTAINER_LISTS]
    if sum(len(one) for one in lists if isinstance(one, list)) > MOST_CONTAINERS:
        problem = f"a pod of more than {MOST_CONTAINERS} containers is not counted; make several"
        raise PodError("spec.containers", problem)
    metadata = mapping(found.get("metadata"), "metadata")
    placed = {
        "namespace": request.namespace or "default",
        "name": _name(request, metadata),
        "uid": _uid(request, metadata),
    }
    return {**found, "metadata": {**metadata, **placed}}


def _uid(request: AdmissionRequest, metadata: Mapping[str, Any]) -> str:
    """What is reserved for: the object's uid, which an API server gives before it asks.

    Without one that of the request, so that no two objects share what is reserved for one.
    """
    uid = str(metadata.get("uid") or request.uid)
    if not uid:
        raise PodError("metadata.uid", "Required value")
    if len(uid) > _MOST_UID:
        raise PodError("metadata.uid", f"more than {_MOST_UID} characters")
    return uid


def _name(request: AdmissionRequest, metadata: Mapping[str, Any]) -> str:
    """What the object is looked for by until it is there.

    An API server makes one of ``generateName`` before it asks a validating webhook.
    """
    name = str(metadata.get("name") or request.name or "")
    if not name:
        problem = "Required value: a name is there where the webhook is a validating one"
        raise PodError("metadata.name", problem)
    for problem in subdomain_problems(name):
        raise PodError("metadata.name", problem)
    return name


def _annotations(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = mapping(pod.get("metadata"), "metadata")
    return mapping(metadata.get("annotations"), "metadata.annotations")
