"""The manifests of deploy/kubernetes/quota say what the code does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.kubernetes.manifests import read_manifests
from pinfold.cluster.certificates.keeper import Names
from pinfold.cluster.quota.counted import CLAIMS, PODS, TEMPLATES
from pinfold.cluster.quota.review import CLAIM_GROUP, Denied, PodAsked, review
from pinfold.cluster.quota.rights import RIGHTS
from pinfold.core.pod.annotations import ANNOTATIONS
from pinfold.core.quota.claims import ClaimRules
from pinfold.documents.admission_review import AdmissionRequest
from pinfold.web.webhook.app import DEADLINE, PATH
from tests.roots import ROOT
from tests.scenes.cel_rules import evaluated
from tests.scenes.deployed import documents, granted, listed, served, the, written_names
from tests.scenes.kubectl import kustomized, needs_kubectl
from tests.scenes.webhook_world import pod
from tests.scenes.webhook_world import review as asked_review

QUOTA = ROOT / "deploy" / "kubernetes" / "quota"
OVERLAYS = sorted((QUOTA / "overlays").iterdir())
NAME = "pinfold-quota"


@pytest.mark.parametrize("component", RIGHTS)
def test_rights_are_the_requests_that_are_made(component: str) -> None:
    folder = QUOTA / "components" / component if component else QUOTA / "base"
    assert granted(folder, NAME) == listed(RIGHTS[component])


def test_names_of_what_may_be_written_are_those_of_the_program() -> None:
    names = Names(NAME, f"{NAME}-certificates", NAME, NAME)
    assert written_names(QUOTA) == {
        ("leases", names.service),
        ("secrets", names.secret),
        ("validatingwebhookconfigurations", names.configuration),
    }
    configuration = the(QUOTA / "base", "ValidatingWebhookConfiguration")
    service = configuration["webhooks"][0]["clientConfig"]["service"]
    assert configuration["metadata"]["name"] == names.configuration
    assert (service["name"], service["namespace"]) == (names.service, names.namespace)
    assert service["path"] == PATH
    dns = f"{service['name']}.{service['namespace']}.svc"
    assert dns == names.served[0]
    (certificate,) = [
        one
        for one in documents(QUOTA / "components" / "cert-manager")
        if one["spec"].get("secretName") == names.secret
    ]
    assert dns in certificate["spec"]["dnsNames"]


def test_the_webhook_asks_for_what_is_charged() -> None:
    (webhook,) = the(QUOTA / "base", "ValidatingWebhookConfiguration")["webhooks"]
    assert webhook["admissionReviewVersions"] == ["v1"]
    assert webhook["sideEffects"] == "NoneOnDryRun"
    assert webhook["matchPolicy"] == "Equivalent"
    assert webhook["timeoutSeconds"] > DEADLINE
    asked = {
        (group, resource, operation)
        for rule in webhook["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for operation in rule["operations"]
    }
    assert asked == {
        ("", PODS, "CREATE"),
        ("", PODS, "UPDATE"),
        ("", f"{PODS}/resize", "UPDATE"),
        (CLAIM_GROUP, CLAIMS, "CREATE"),
        (CLAIM_GROUP, TEMPLATES, "CREATE"),
    }


@st.composite
def changes(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A pod before and after an update; what a quota looks at is changed, or is not."""
    rows = st.sampled_from([*ANNOTATIONS])
    keys = rows.map(lambda row: row.key()) | rows.map(lambda row: row.key("container.main"))
    said = st.none() | st.dictionaries(
        keys | st.just("example.com/a"), st.sampled_from(["true", "false"]), max_size=3
    )
    found = []
    for _ in range(2):
        one = pod(resourceVersion="7", labels=draw(st.sampled_from([{}, {"a": "b"}])))
        if (annotations := draw(said)) is not None:
            one["metadata"]["annotations"] = annotations
        if draw(st.booleans()):
            one["spec"]["activeDeadlineSeconds"] = draw(st.integers(1, 9))
        found.append(one)
    return found[0], found[1]


def is_asked(request: dict[str, Any]) -> bool:
    """Whether an API server asks about a request that the rules name."""
    (webhook,) = the(QUOTA / "base", "ValidatingWebhookConfiguration")["webhooks"]
    seen = {"request": request, "object": request["object"], "oldObject": request["oldObject"]}
    return all(evaluated(one["expression"], **seen) for one in webhook["matchConditions"])


@given(changes())
def test_every_change_that_is_counted_or_denied_is_asked_about(
    change: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    old, new = change
    request = asked_review(new, operation="UPDATE", oldObject=old)["request"]
    found = review(msgspec.convert(request, AdmissionRequest), ClaimRules())
    if isinstance(found, Denied) or (isinstance(found, PodAsked) and found.request.is_counted):
        assert is_asked(request)


def test_other_changes_are_not_asked_about() -> None:
    """They go on while no replica answers."""
    told = {"example.com/a": "1", "exclusive-cpus.pinfold.dev/pod": "true"}
    old = pod(annotations=told, finalizers=["batch.kubernetes.io/job-tracking"])
    changed: tuple[dict[str, Any], ...] = (
        pod(annotations=told),
        pod(annotations=told, labels={"a": "b"}),
        pod(annotations={**told, "example.com/a": "2", "other": ""}),
        pod(annotations=told, ownerReferences=[{"uid": "u"}]),
    )
    for new in changed:
        assert not is_asked(asked_review(new, operation="UPDATE", oldObject=old)["request"])
    asked: tuple[dict[str, Any], ...] = (
        {"operation": "CREATE"},
        {"operation": "UPDATE", "subResource": "resize"},
    )
    for fields in asked:
        assert is_asked(asked_review(old, oldObject=old, **fields)["request"])
    assert is_asked(asked_review(pod(), operation="UPDATE", oldObject=old)["request"])


def test_ports_and_probes_are_those_of_the_program() -> None:
    assert the(QUOTA / "base", "Deployment")["metadata"]["name"] == NAME
    assert served(QUOTA)


def test_it_has_no_more_power_than_it_uses() -> None:
    spec = the(QUOTA / "base", "Deployment")["spec"]["template"]["spec"]
    context = spec["containers"][0]["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_an_overlay_says_how_it_fails_and_where_certificates_come_from(overlay: Path) -> None:
    found = kustomized(overlay)
    (webhook,) = found["ValidatingWebhookConfiguration", NAME]["webhooks"]
    if overlay.name.startswith("fail-closed"):
        assert webhook["failurePolicy"] == "Fail"
        (left_out,) = webhook["namespaceSelector"]["matchExpressions"]
        assert left_out == {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", NAME, *["cert-manager"] * ("cert-manager" in overlay.name)],
        }
    else:
        assert webhook["failurePolicy"] == "Ignore"
        assert "namespaceSelector" not in webhook
    template = found["Deployment", NAME]["spec"]["template"]["spec"]
    args = template["containers"][0]["args"]
    (volume,) = template["volumes"]
    makes_own = not overlay.name.endswith("cert-manager")
    assert ("--make-certificates" in args) == makes_own == ("emptyDir" in volume)
    assert (("Certificate", NAME) in found) == (not makes_own)
    annotations = found["ValidatingWebhookConfiguration", NAME]["metadata"].get("annotations", {})
    assert ("cert-manager.io/inject-ca-from" in annotations) == (not makes_own)
    namespaced = [
        one
        for (kind, _), one in found.items()
        if kind in {"Deployment", "Service", "Role", "Secret", "PodDisruptionBudget", "Certificate"}
    ]
    assert {one["metadata"]["namespace"] for one in namespaced} == {NAME}
    selector = found["Service", NAME]["spec"]["selector"]
    labels = found["Deployment", NAME]["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_its_pods_are_pods_that_pinfold_itself_reads(overlay: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(list(kustomized(overlay).values())))
    pods = read_manifests([str(file)]).pods
    assert len(pods) == 2
    assert {pod.priority_class_name for pod in pods} == {"system-cluster-critical"}


def test_the_page_names_each_overlay() -> None:
    page = ROOT / "docs" / "how-to" / "limit-exclusive-cpus-in-a-cluster.md"
    text = page.read_text()
    assert all(f"| `{overlay.name}` |" in text for overlay in OVERLAYS)
