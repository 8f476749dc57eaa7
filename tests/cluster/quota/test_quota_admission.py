"""What a review's request is charged, and what the API server is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from pinfold.cluster.quota.admission import Admission
from pinfold.cluster.quota.review import (
    ClaimAsked,
    Denied,
    NothingAsked,
    PodAsked,
    review,
)
from pinfold.core.pod.annotations import ANNOTATIONS
from pinfold.core.quota.charge import Charged, Refused, Request, charge, charge_claim
from pinfold.core.quota.claims import ClaimedCPUs, ClaimRules
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.core.quota.quota import ResourceQuota
from pinfold.core.quota.usage import usage
from pinfold.core.values.quantity import Quantity
from pinfold.documents.admission_review import AdmissionRequest, AdmissionResponse
from pinfold.ports.errors import PortError
from tests.scenes.webhook_world import pod
from tests.scenes.webhook_world import review as asked_review

RULES = ClaimRules()
STATUS_OF_NO_NAME: dict[str, Any] = {"resourceClaimStatuses": [{"name": []}]}
CLAIMS = {"group": "resource.k8s.io", "version": "v1", "resource": "resourceclaims"}
TEMPLATES = {**CLAIMS, "resource": "resourceclaimtemplates"}


def request(created: dict[str, Any] | None = None, **fields: Any) -> AdmissionRequest:
    """The request of a review, as it comes over the wire."""
    return msgspec.convert(asked_review(created, **fields)["request"], AdmissionRequest)


def claim(cpus: str | None = "4", *, of_class: str = "dra.cpu") -> dict[str, Any]:
    exactly: dict[str, Any] = {"deviceClassName": of_class, "allocationMode": "ExactCount"}
    if cpus is not None:
        exactly["capacity"] = {"requests": {"dra.cpu/cpu": cpus}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team", "uid": "u-c"},
        "spec": {"devices": {"requests": [{"name": "cpus", "exactly": exactly}]}},
    }


def template(cpus: str | None) -> dict[str, Any]:
    inner = claim(cpus)
    return {**inner, "kind": "ResourceClaimTemplate", "spec": {"spec": inner["spec"]}}


def quota(most: int, used: int = 0) -> ResourceQuota:
    hard = {EXCLUSIVE_CPUS: Quantity(most)}
    return ResourceQuota(
        "team", "cpus", hard, used={EXCLUSIVE_CPUS: Quantity(used)}, status_hard=hard
    )


class OneQuota:
    """Charges one quota, which nobody else does."""

    def __init__(self, most: int) -> None:
        self.quota = quota(most)
        self.written = 0

    async def charge(self, namespace: str, request: Request, *, dry_run: bool) -> Charged | Refused:
        assert namespace == "team"
        return self._done(charge([self.quota], request, 0.0), dry_run=dry_run)

    async def charge_claim(
        self, namespace: str, uid: str, name: str, claimed: ClaimedCPUs, *, dry_run: bool
    ) -> Charged | Refused:
        assert (namespace, uid, name) == ("team", "u-c", "c")
        found = charge_claim([self.quota], name, claimed, RULES.capacity)
        return self._done(found, dry_run=dry_run)

    def problems(self) -> Sequence[str]:
        return ()

    def _done(self, found: Charged | Refused, *, dry_run: bool) -> Charged | Refused:
        if isinstance(found, Charged) and not dry_run:
            (self.quota,) = found.quotas
            self.written += 1
        return found

    @property
    def used(self) -> str:
        return str(self.quota.used[EXCLUSIVE_CPUS])


def decide(charging: Any, asked: AdmissionRequest) -> AdmissionResponse:
    async def decided() -> AdmissionResponse:
        return await Admission(charging, RULES).decide(asked)

    return asyncio.run(decided())


@pytest.mark.parametrize(("heeds", "cpus"), [(True, None), (False, 3)])
def test_who_declines_counts_all_the_same_where_no_node_heeds_it(
    *, heeds: bool, cpus: int | None
) -> None:
    declining = pod(cpus="3")
    declining["metadata"]["annotations"] = {"exclusive-cpus.pinfold.dev/pod": "false"}
    asked = review(request(declining), RULES, heeds_opt_out=heeds)
    assert isinstance(asked, PodAsked)
    counted = usage(asked.request.pod, 0.0).get(EXCLUSIVE_CPUS)
    assert (None if counted is None else counted.value()) == cpus


def test_pods_without_a_uid_share_nothing() -> None:
    """An API server gives one before it asks validating webhooks; others may not."""
    unknown = pod(cpus="3")
    del unknown["metadata"]["uid"]
    unknown["metadata"]["generateName"] = "job-"
    uids = set()
    for uid in ("r1", "r2"):
        asked = review(request(unknown, uid=uid), RULES)
        assert isinstance(asked, PodAsked)
        uids.add(asked.request.pod.pod.uid)
    assert uids == {"r1", "r2"}


@pytest.mark.parametrize("name", [None, "", ".", "..", "a/b"])
def test_who_has_no_name_is_not_charged(name: str | None) -> None:
    """A mutating webhook is asked before ``generateName`` has become a name."""
    for made, fields in ((pod(cpus="3"), {}), (claim(), {"resource": CLAIMS})):
        made["metadata"] |= {"name": name, "generateName": "job-"}
        asked = review(request(made, **fields, name=""), RULES)
        assert isinstance(asked, Denied)
        assert asked.code == 400
        assert asked.message.startswith("metadata.name: ")


def test_the_name_may_be_that_of_the_request() -> None:
    unnamed = pod(cpus="3")
    del unnamed["metadata"]["name"]
    asked = review(request(unnamed, name="job-x"), RULES)
    assert isinstance(asked, PodAsked)
    assert asked.request.pod.pod.name == "job-x"


def test_nothing_is_charged_without_any_uid() -> None:
    unknown = pod(cpus="3", uid="")
    asked = review(request(unknown, uid=""), RULES)
    assert isinstance(asked, Denied)
    assert asked.message == "metadata.uid: Required value"


@pytest.mark.parametrize(
    ("field", "value"), [("uid", "u" * 129), ("name", "n" * 254), ("uid", ["u"] * 99)]
)
def test_a_name_or_uid_that_nobody_has_is_refused(field: str, value: Any) -> None:
    for made, fields in ((pod(cpus="3"), {}), (claim(), {"resource": CLAIMS})):
        made["metadata"][field] = value
        asked = review(request(made, **fields), RULES)
        assert isinstance(asked, Denied)
        assert asked.code == 400
        assert asked.message.startswith(f"metadata.{field}: ")


def test_a_pod_of_thousands_of_containers_is_refused_before_it_is_counted() -> None:
    many = pod(cpus="1")
    (one,) = many["spec"]["containers"]
    for number, of_what in ((1000, PodAsked), (1001, Denied)):
        half = number // 2
        many["spec"]["initContainers"] = [one | {"name": f"i{each}"} for each in range(half)]
        rest = range(number - half)
        many["spec"]["containers"] = [one | {"name": f"c{each}"} for each in rest]
        assert isinstance(review(request(many), RULES), of_what)


def test_a_pod_is_charged_and_the_audit_says_to_whom() -> None:
    charging = OneQuota(4)
    answer = decide(charging, request(pod(cpus="3")))
    assert answer.allowed
    assert answer.audit_annotations == {"charged": f"cpus: {EXCLUSIVE_CPUS}=3"}
    assert charging.used == "3"


def test_a_refusal_is_the_api_servers_text() -> None:
    answer = decide(OneQuota(2), request(pod("a", cpus="3"), uid="x"))
    assert answer == AdmissionResponse(
        uid="x",
        allowed=False,
        status=msgspec.convert(
            {
                "message": 'pods "a" is forbidden: exceeded quota: cpus, requested: '
                f"{EXCLUSIVE_CPUS}=3, used: {EXCLUSIVE_CPUS}=0, limited: {EXCLUSIVE_CPUS}=2",
                "reason": "Forbidden",
                "code": 403,
            },
            type=type(decide(OneQuota(0), request()).status),
        ),
        audit_annotations={"refused-by": "cpus"},
    )


def test_a_dry_run_is_answered_alike_and_charges_nothing() -> None:
    charging = OneQuota(2)
    assert decide(charging, request(pod(cpus="2"), dryRun=True)).allowed
    assert not decide(charging, request(pod(cpus="3"), dryRun=True)).allowed
    assert charging.written == 0


def test_a_resize_is_charged_what_is_more() -> None:
    charging = OneQuota(4)
    decide(charging, request(pod(cpus="2")))
    old, new = (pod(cpus=cpus, resourceVersion="7") for cpus in ("2", "4"))
    fields = {"operation": "UPDATE", "subResource": "resize", "oldObject": old}
    assert decide(charging, request(new, **fields)).audit_annotations == {
        "charged": f"cpus: {EXCLUSIVE_CPUS}=2"
    }
    assert charging.used == "4"
    more = pod(cpus="5", resourceVersion="8")
    answer = decide(charging, request(more, **{**fields, "oldObject": new}))
    assert not answer.allowed


def test_what_cannot_be_charged_now_is_no_answer() -> None:
    class Away(OneQuota):
        async def charge(
            self, namespace: str, request: Request, *, dry_run: bool
        ) -> Charged | Refused:
            raise PortError(f"{namespace}: {request.operation}: {dry_run}: away")

    with pytest.raises(PortError, match="away"):
        decide(Away(1), request())


FIXED = [row.name for row in ANNOTATIONS if row.fixed]


def test_which_annotations_decide_how_many_cpus_a_container_owns() -> None:
    assert FIXED == ["exclusive-cpus", "mixed-cpus", "smt-isolate", "load-driven"]


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("holder", ["pod", "container.main"])
@pytest.mark.parametrize("subresource", ["", "resize"])
def test_such_an_annotation_stays_as_it_was(name: str, holder: str, subresource: str) -> None:
    key = f"{name}.pinfold.dev/{holder}"
    without, said, other = (
        pod(resourceVersion="1", annotations=annotations)
        for annotations in ({}, {key: "false"}, {key: "true"})
    )
    fields: dict[str, Any] = {"operation": "UPDATE", "subResource": subresource}
    for old, new in ((without, said), (said, without), (said, other)):
        found = review(request(new, oldObject=old, **fields), RULES)
        assert isinstance(found, Denied), (old, new)
        assert (found.code, found.reason) == (403, "Forbidden")
        assert found.message.startswith(f"{key}: may not change")
    assert isinstance(review(request(said, oldObject=said, **fields), RULES), PodAsked)


def test_other_annotations_may_change() -> None:
    old = pod(annotations={"a": "b", "rebalance.pinfold.dev/pod": "true"})
    new = pod(annotations={"rebalance.pinfold.dev/pod": "false"})
    assert isinstance(review(request(new, oldObject=old, operation="UPDATE"), RULES), PodAsked)


def test_a_pod_is_of_the_namespace_that_it_is_asked_for() -> None:
    created = pod()
    del created["metadata"]["namespace"]
    found = review(request(created, namespace="team"), RULES)
    assert isinstance(found, PodAsked)
    assert found.request.pod.pod.namespace == "team"
    assert found.request.pod.pod.uid == "u-1"


@pytest.mark.parametrize(
    "fields",
    [
        {"operation": "DELETE", "object": None, "oldObject": pod()},
        {"operation": "CREATE", "subResource": "binding"},
        {"operation": "UPDATE", "subResource": "status", "oldObject": pod()},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
        {"resource": {"group": "other", "version": "v1", "resource": "pods"}},
        {"operation": "CONNECT"},
    ],
)
def test_what_is_not_ours_is_let_by(fields: dict[str, Any]) -> None:
    assert review(request(**fields), RULES) == NothingAsked()


def test_a_pod_that_cannot_be_read_is_refused_by_field() -> None:
    spoilt = pod()
    spoilt["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "two"
    found = review(request(spoilt), RULES)
    assert isinstance(found, Denied)
    assert found.code == 400
    assert "spec.containers[0].resources.requests" in found.message


@pytest.mark.parametrize(
    ("spoilt", "field"),
    [
        ({"metadata": {"deletionGracePeriodSeconds": 10**400}}, "deletionGracePeriodSeconds"),
        ({"metadata": {"deletionTimestamp": "0001-01-01T00:00:00"}}, "deletionTimestamp"),
        ({"spec": {"activeDeadlineSeconds": 2**63}}, "spec.activeDeadlineSeconds"),
        (
            {"spec": {"resourceClaims": [{"name": "c"}]}, "status": STATUS_OF_NO_NAME},
            "status.resourceClaimStatuses[0].name",
        ),
    ],
)
def test_a_field_that_nothing_can_be_done_with_is_refused_with_its_pod(
    spoilt: dict[str, Any], field: str
) -> None:
    created = pod()
    for key, fields in spoilt.items():
        created[key] = {**created.get(key, {}), **fields}
    created["metadata"].setdefault("deletionTimestamp", "2026-01-31T08:00:00Z")
    found = review(request(created), RULES)
    assert isinstance(found, Denied)
    assert found.code == 400
    assert field in found.message


def test_a_claim_is_charged_by_its_capacity() -> None:
    charging = OneQuota(4)
    answer = decide(charging, request(claim("3"), resource=CLAIMS))
    assert answer.audit_annotations == {"charged": f"cpus: {EXCLUSIVE_CPUS}=3"}
    answer = decide(charging, request(claim("2"), resource=CLAIMS))
    assert not answer.allowed
    assert charging.used == "3"


def test_a_claim_for_something_else_is_of_no_matter() -> None:
    asked = request(claim(None, of_class="gpu.example"), resource=CLAIMS)
    assert review(asked, RULES) == NothingAsked()


def test_a_claim_that_does_not_say_how_many_is_refused_where_they_are_counted() -> None:
    answer = decide(OneQuota(4), request(claim(None), resource=CLAIMS))
    assert not answer.allowed
    assert "must specify dra.cpu/cpu for: cpus" in str(answer.status)


def test_a_template_takes_nothing_and_is_warned_of() -> None:
    charging = OneQuota(4)
    assert decide(charging, request(template("3"), resource=TEMPLATES)) == AdmissionResponse(
        uid=request().uid, allowed=True
    )
    answer = decide(charging, request(template("5"), resource=TEMPLATES))
    assert answer.allowed
    (warning,) = answer.warnings or ()
    assert warning.startswith("a claim of this template would be refused now: ")
    assert len(warning) <= 256
    assert charging.written == 0


def test_the_requests_of_a_template_are_read_where_they_are_whatever_its_kind_says() -> None:
    spoofed = {**template("9"), "kind": "ResourceClaim"}
    found = review(request(spoofed, resource=TEMPLATES), RULES)
    assert found == ClaimAsked("u-c", "c", ClaimedCPUs(9), is_template=True)
