"""Quotas in a plan: a pod that one refuses is never shown to the node."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.json import encode

from pinfold import CPUSet, NodeConfig, parse_short_form
from pinfold.adapters.kubernetes.manifests import ManifestError, Manifests, read_manifests
from pinfold.core.moves.resize_wish import ResizeWish
from pinfold.documents.plan import QuotaUse
from pinfold.planning.explaining.decision import explain_pod
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Plan, Planner
from pinfold.planning.quotas import PlannedQuotas

OURS = "pinfold.dev/exclusive-cpus"
Read = Callable[..., Manifests]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Manifests as they are read from a file."""

    def read(*objects: dict[str, Any]) -> Manifests:
        file = tmp_path / "manifests.json"
        file.write_text(json.dumps({"kind": "List", "items": objects}))
        return read_manifests([str(file)])

    return read


def quota(hard: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard, **spec}}


def pod(name: str, cpu: str = "2", **spec: Any) -> dict[str, Any]:
    limits = {"cpu": cpu, "memory": "1Gi"}
    containers = [{"name": "c", "resources": {"limits": limits}}]
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers, **spec}}


def planner_of(read: Manifests, cpus: str = "1s8c1t") -> Planner:
    config = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
    claims = (read.claims, read.templates, "dra.cpu/cpu")
    quotas = PlannedQuotas.of(read.quotas, read.counted, *claims)
    return Planner(parse_short_form(cpus), config, quotas=quotas)


def plan_of(read: Manifests, cpus: str = "1s8c1t") -> Plan:
    return planner_of(read, cpus).plan(read.pods)


def used(plan: Plan) -> dict[str, str]:
    [found] = plan_document(plan).quotas or ()
    assert isinstance(found, QuotaUse)
    return dict(found.used)


def test_the_pod_beyond_the_quota_is_refused_and_a_later_one_is_not(read: Read) -> None:
    plan = plan_of(read(quota({OURS: "4"}), pod("a"), pod("b", "3"), pod("c")))
    assert [one.admitted for one in plan.pods] == [True, False, True]
    [refused] = plan.rejected
    assert refused.decision.reason == "Forbidden"
    assert refused.decision.message == (
        f'pods "b" is forbidden: exceeded quota: q, requested: {OURS}=3, used: {OURS}=2, '
        f"limited: {OURS}=4"
    )
    assert refused.decision.affinities == ()
    assert used(plan) == {OURS: "4"}


def test_what_the_node_rejects_is_charged_its_object_alone(read: Read) -> None:
    hard = {OURS: "9", "pods": "9", "count/pods": "9"}
    plan = plan_of(read(quota(hard), pod("a", "6"), pod("b", "2")))
    assert [one.decision.reason for one in plan.pods] == [None, "UnexpectedAdmissionError"]
    assert used(plan) == {OURS: "6", "pods": "1", "count/pods": "2"}


def test_scopes_are_of_the_manifest(read: Read) -> None:
    scoped = quota({"pods": "0"}, scopes=["Terminating"])
    plan = plan_of(read(scoped, pod("a"), pod("b", activeDeadlineSeconds=60)))
    assert [one.admitted for one in plan.pods] == [True, False]


def test_replicas_are_counted_one_by_one(read: Read) -> None:
    template = {"spec": pod("t")["spec"] | {"activeDeadlineSeconds": 5}}
    job = {
        "kind": "Job",
        "metadata": {"name": "j"},
        "spec": {"parallelism": 3, "template": template},
    }
    plan = plan_of(read(quota({"pods": "2"}, scopes=["Terminating"]), job))
    assert [one.admitted for one in plan.pods] == [True, True, False]


def test_another_namespace_is_not_asked(read: Read) -> None:
    other = pod("a")
    other["metadata"]["namespace"] = "other"
    assert plan_of(read(quota({"pods": "0"}), other)).rejected == ()


def test_a_resize_is_charged_first(read: Read) -> None:
    manifests = read(quota({OURS: "5"}), pod("a"), pod("b"))
    planner = planner_of(manifests)
    plan = planner.plan(manifests.pods)
    answers = []
    for wish, in_use in (("a=3", "5"), ("b=3", "5"), ("a=2", "4"), ("b=3", "5")):
        plan = planner.resize(plan, ResizeWish.parse(f"pod/{wish}"))
        answers.append(plan.resizes[-1].decision.reason)
        assert used(plan) == {OURS: in_use}
    assert answers == [None, "Forbidden", None, None]


def test_an_explanation_names_the_quota_and_tries_no_other_node(read: Read) -> None:
    manifests = read(quota({OURS: "2"}), pod("a"), pod("b"))
    explanation = explain_pod(planner_of(manifests), manifests.pods, "b")
    assert explanation.remedies == (
        f"raise spec.hard to {OURS}=4 in ResourceQuota default/q",
        "remove pod default/a, or create this one before it",
    )
    assert "exceeded quota: q" in explanation.containers[0].constraint


def test_a_plan_without_quotas_says_nothing_of_them(read: Read) -> None:
    assert plan_document(plan_of(read(pod("a")))).quotas is UNSET
    namespace = {"kind": "Namespace", "metadata": {"name": "default"}}
    assert read(namespace, pod("a")).notes == ()


def test_a_quota_is_refused_as_an_api_server_refuses_it(read: Read) -> None:
    wrong = quota({"nonsense": "1"})
    with pytest.raises(ManifestError, match=r"spec.hard\[nonsense\].*must be a standard resource"):
        read(wrong)
    with pytest.raises(ManifestError, match="is there already"):
        read(quota({"pods": "1"}), quota({"pods": "2"}))


def test_names_that_are_not_of_pods_are_left_out_of_what_is_used(read: Read) -> None:
    document = plan_document(plan_of(read(quota({"services": "1", "pods": "2"}), pod("a"))))
    assert json.loads(encode(document))["quotas"][0]["used"] == {"pods": "1"}


@pytest.mark.parametrize(
    "more",
    [
        {"status": {"qosClass": "Burstable"}},
        {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}},
        {"status": {"containerStatuses": 5}},
        {"metadata": {"name": "a", "deletionTimestamp": "long ago"}},
    ],
)
def test_a_pod_is_new_whatever_it_says_of_itself(read: Read, more: dict[str, Any]) -> None:
    plan = plan_of(read(quota({OURS: "0"}), {**pod("a"), **more}))
    assert [one.decision.reason for one in plan.pods] == ["Forbidden"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"affinity": {"podAffinity": 7}}, "spec.affinity.podAffinity: must be a mapping"),
        ({"activeDeadlineSeconds": 1.5}, "spec.activeDeadlineSeconds: must be an integer"),
    ],
)
def test_a_field_that_only_quotas_read_is_named(
    read: Read, spec: dict[str, Any], problem: str
) -> None:
    assert read(pod("a", **spec)).pods
    with pytest.raises(ManifestError, match=rf"items\[1\]: pod default/a: {problem}"):
        read(quota({OURS: "4"}), pod("a", **spec))


def test_a_scope_without_a_meaning_lets_nobody_in(read: Read) -> None:
    one = {"scopeName": "PriorityClass", "operator": "In", "values": ["bad value!"]}
    scoped = quota({OURS: "4"}, scopeSelector={"matchExpressions": [one]})
    plan = plan_of(read(scoped, pod("a")))
    assert [one.decision.reason for one in plan.pods] == ["Forbidden"]
    assert used(plan) == {OURS: "0"}


def test_what_a_refusal_names_as_its_remedy_has_been_tried(read: Read) -> None:
    hard = {OURS: "5", "requests.memory": "3Gi", "pods": "9"}
    pods = (pod("a", "1"), pod("b", "3"), pod("c", "3"))
    found = read(quota(hard), *pods)
    explanation = explain_pod(planner_of(found), found.pods, "c")
    assert explanation.remedies == (
        "ask for no more than 1 CPU in container c",
        f"raise spec.hard to {OURS}=7 in ResourceQuota default/q",
        "remove pod default/b, or create this one before it",
    )
    assert plan_of(read(quota({**hard, OURS: "7"}), *pods)).rejected == ()
    assert plan_of(read(quota(hard), pods[0], pods[2])).rejected == ()
    assert plan_of(read(quota(hard), *pods[:2], pod("c", "1"))).rejected == ()


def test_what_no_limit_helps_is_told_no_limit(read: Read) -> None:
    shared = {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "c"}]}}
    found = read(quota({"requests.cpu": "4"}), shared)
    explanation = explain_pod(planner_of(found), found.pods, "a")
    assert "must specify requests.cpu for: c" in (explanation.decision.message or "")
    assert explanation.remedies == ()


def test_an_annotation_that_is_not_in_force_takes_nothing_off(read: Read) -> None:
    annotated = pod("a")
    annotated["metadata"]["annotations"] = {"exclusive-cpus.pinfold.dev/pod": "false"}
    plan = plan_of(read(quota({OURS: "1"}), annotated))
    assert [one.decision.reason for one in plan.pods] == ["Forbidden"]


def claim(name: str, cpus: int | None, kind: str = "ResourceClaim") -> dict[str, Any]:
    request: dict[str, Any] = {"deviceClassName": "dra.cpu"}
    if cpus is not None:
        request["capacity"] = {"requests": {"dra.cpu/cpu": str(cpus)}}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "cpus", "exactly": request}]}}
    return {
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"spec": spec} if kind.endswith("Template") else spec,
    }


def claiming(name: str, cpu: str, **of: str) -> dict[str, Any]:
    made = pod(name, cpu, resourceClaims=[{"name": "cpus", **of}])
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "cpus"}]
    return made


def test_a_claim_counts_once_however_many_pods_share_it(read: Read) -> None:
    shared = [claiming(name, "3", resourceClaimName="three") for name in "ab"]
    plan = plan_of(read(quota({OURS: "4"}), *shared, claim("three", 3)))
    assert [one.admitted for one in plan.pods] == [True, True]
    assert used(plan) == {OURS: "3"}


def test_of_a_pod_what_is_above_its_claim_is_charged_besides(read: Read) -> None:
    plan = plan_of(
        read(quota({OURS: "9"}), claiming("a", "4", resourceClaimName="c"), claim("c", 3))
    )
    assert used(plan) == {OURS: "4"}


def test_a_template_counts_for_each_pod(read: Read) -> None:
    pods = [claiming(name, "2", resourceClaimTemplateName="two") for name in "abc"]
    template = claim("two", 2, "ResourceClaimTemplate")
    plan = plan_of(read(quota({OURS: "5"}), *pods, template), "1s8c2t")
    assert [one.admitted for one in plan.pods] == [True, True, False]
    [refused] = plan.rejected
    message = refused.decision.message or ""
    assert message.startswith(
        'resourceclaims.resource.k8s.io "c-cpus" is forbidden: exceeded quota'
    )
    assert used(plan) == {OURS: "4"}


def test_the_claim_of_a_pod_that_its_node_rejects_is_gone_with_it(read: Read) -> None:
    pods = [claiming("a", "8", resourceClaimTemplateName="t"), pod("b", "2")]
    template = claim("t", 8, "ResourceClaimTemplate")
    plan = plan_of(read(quota({OURS: "9"}), *pods, template))
    assert [one.admitted for one in plan.pods] == [False, True]
    assert used(plan) == {OURS: "2"}


def test_without_its_claim_a_pod_is_refused(read: Read) -> None:
    pods = [
        claiming("a", "2", resourceClaimName="big"),
        claiming("b", "2", resourceClaimName="any"),
    ]
    plan = plan_of(read(quota({OURS: "4"}), *pods, claim("big", 5), claim("any", None)))
    first, second = (one.decision.message or "" for one in plan.pods)
    assert 'resourceclaims.resource.k8s.io "big" is forbidden: exceeded quota' in first
    assert 'claims.resource.k8s.io "any" is forbidden: failed quota: q: must specify dra' in second
    assert used(plan) == {OURS: "0"}


def test_a_claim_that_is_not_there_is_told(read: Read) -> None:
    manifests = read(quota({OURS: "4"}), claiming("a", "2", resourceClaimName="elsewhere"))
    assert any("ResourceClaim default/elsewhere of pod default/a" in n for n in manifests.notes)


def test_a_resize_of_a_pod_with_a_claim_is_charged_what_is_above_it(read: Read) -> None:
    claimed = claiming("a", "2", resourceClaimName="c")
    manifests = read(quota({OURS: "3"}), claimed, claim("c", 2))
    planner = planner_of(manifests)
    plan = planner.plan(manifests.pods)
    for cpus, reason, in_use in ((3, None, "3"), (4, "Forbidden", "3")):
        plan = planner.resize(plan, ResizeWish.parse(f"pod/a={cpus}"))
        assert plan.resizes[-1].decision.reason == reason
        assert used(plan) == {OURS: in_use}


def test_names_that_nobody_counts_are_told_in_the_document(read: Read) -> None:
    [found] = plan_document(plan_of(read(quota({"pinfold.dev/exclusive-cpu": "2"})))).quotas or ()
    [note] = found.notes or ()
    assert f"did you mean {OURS}?" in note


def test_fields_that_a_quota_does_not_have_are_told(read: Read) -> None:
    manifests = read({**quota({"pods": "1"}, scope=["BestEffort"]), "apiVersion": "v2"})
    assert [note.partition("ResourceQuota 'q': ")[2] for note in manifests.notes] == [
        'apiVersion: unknown version "v2"; it is v1; planned without it',
        'spec.scope: unknown field "scope"; did you mean "scopes"?; planned without it',
    ]


@pytest.mark.parametrize("name", ["A_B", ""])
def test_a_namespace_that_cannot_be_is_refused(read: Read, name: str) -> None:
    with pytest.raises(ManifestError, match="Namespace"):
        read({"kind": "Namespace", "metadata": {"name": name}})


def test_priority_classes_are_read_wherever_they_stand(read: Read) -> None:
    classes = [
        {"kind": "PriorityClass", "metadata": {"name": name}, "value": value, "globalDefault": d}
        for name, value, d in (("high", 9, False), ("low", 1, True))
    ]
    named = [pod("a", priorityClassName="high"), pod("b"), pod("c", priorityClassName="lost")]
    scoped = quota(
        {"pods": "0"},
        scopeSelector={
            "matchExpressions": [
                {"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}
            ]
        },
    )
    manifests = read(*named, scoped, *classes)
    assert [one.priority for one in manifests.pods] == [9, 1, None]
    assert any(note.startswith("PriorityClass lost of pod default/c") for note in manifests.notes)
    assert [one.admitted for one in plan_of(manifests).pods] == [True, False, True]


def test_a_quota_of_a_class_that_is_not_there_is_told(read: Read) -> None:
    needs = [{"key": "Kind", "operator": "Exists"}]
    spec = {"labelSelector": [{"matchExpressions": needs}]}
    gold = {"kind": "ResourceClass", "metadata": {"name": "gold"}, "spec": spec}
    manifests = read(gold, quota({"requests.class.pinfold.dev/glod": "1", "gold": "2"}))
    [note] = manifests.notes
    assert "there is no class glod; there is gold" in note


def test_fewer_cpus_are_a_remedy_where_they_would_do(read: Read) -> None:
    manifests = read(quota({OURS: "5"}), pod("a"), pod("b", "4"))
    told = explain_pod(planner_of(manifests), manifests.pods, "b")
    assert told.remedies[0] == "ask for no more than 3 CPUs in container c"
    smaller = read(quota({OURS: "5"}), pod("a"), pod("b", "3"))
    assert [one.admitted for one in plan_of(smaller).pods] == [True, True]
