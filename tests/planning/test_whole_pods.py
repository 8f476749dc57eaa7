"""Plans, explanations and pictures of pods that get CPUs and memory as a whole."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from pinfold.admission.admission import decide
from pinfold.admission.moves import with_claims
from pinfold.config.kubelet import load_kubelet_config
from pinfold.core.kubelet.faults import KUBELET, SOUND, AllocationRules
from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS, POD_LEVEL_RESOURCES
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.versions import V1_35
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.resize_wish import ResizeWish
from pinfold.core.pod.cgroup_values import pod_cgroup
from pinfold.core.pod.pod import Pod, QOSClass
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.explanation import Explanation
from pinfold.planning.compare import changed_pods, compare_document
from pinfold.planning.explaining.decision import explain_pod
from pinfold.planning.explaining.document import explain_document
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Planner
from pinfold.render.compare import render_compare_svg
from pinfold.render.explain_text import render_explain
from pinfold.render.node_map import POOL
from pinfold.render.svg import render_plan_svg
from pinfold.render.terminal import Style
from pinfold.render.text import render_plan
from pinfold.views.compare import compare_view
from pinfold.views.explain import explain_view
from pinfold.views.plan import plan_view, planned_on
from tests.roots import ROOT
from tests.scenes.pod_level_pods import container, whole_pod

POD = whole_pod(
    "4",
    "2Gi",
    container("app", "2", "1Gi"),
    container("log"),
    init=(container("prepare"), container("proxy", "1", "256Mi", sidecar=True)),
)
UNSOUND = whole_pod("2", "1Gi", container("app", "2", "512Mi"), container("log"), uid="w")
TOO_SMALL = whole_pod("2", "1Gi", container("app", "3", "512Mi"), uid="s")


def planner(rules: AllocationRules = KUBELET, **config: Any) -> Planner:
    made = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0, 1]),
        topology_manager_policy="restricted",
        topology_manager_scope="pod",
        feature_gates={POD_LEVEL_RESOURCE_MANAGERS: True},
    )
    machine = parse_short_form("1s6c2t@8Gi")
    return Planner(machine, replace(made, **config), rules=rules)


def explained(pod: Pod, **config: Any) -> Explanation:
    node = planner(**config)
    return explain_document(node, explain_pod(node, [pod], pod.name))


def because(document: Explanation) -> dict[str, str]:
    return {one.name: one.constraint for one in document.containers}


def test_a_plan_tells_the_bubble_and_its_parts() -> None:
    document = plan_document(planner().plan([POD]))
    [pod] = document.pods
    assert pod.bubble
    assert (pod.bubble.cpus, pod.bubble.pool) == ("2-5", "3")
    told = {one.name: (one.cpus, one.exclusive, one.isolation) for one in pod.containers}
    assert told == {
        "prepare": ("2-5", False, "pod"),
        "proxy": ("2", True, "container"),
        "app": ("4-5", True, "container"),
        "log": ("3", False, "pod"),
    }
    assert document.shared == "0-1,6-11"


def test_the_map_draws_one_owner_with_its_parts() -> None:
    ordinary = Pod("o", "o", containers=(container("c", "2", "64Mi"),))
    plan = planner().plan([POD, ordinary])
    view = plan_view(plan_document(plan), planned_on(plan))
    owners = view.node_map.owners
    bubble = [one for one in owners.values() if one.bubble]
    assert {(str(one.cpus), one.kind) for one in bubble} == {
        ("2", "sidecar"),
        ("4-5", "container"),
        ("3", POOL),
    }
    # One colour, a symbol for each part; the ordinary owner has another colour.
    assert len({one.painted for one in bubble}) == 1
    assert len({one.index for one in owners.values()}) == 4
    assert owners["default/o/c"].painted not in {one.painted for one in bubble}
    # Core 2 is of two containers, and of one bubble.
    assert view.node_map.split_cores() == ()
    text = render_plan(view, Style(width=100))
    assert "bubble 2-5, 4 CPUs, of them 3 the pod shared pool" in text
    assert re.search(r"3 +1 CPU, pod shared pool", text)
    assert re.search(r"2-5 +4 CPUs, of the bubble", text)
    assert "3 containers, 1 pod as a whole" in text
    narrow = render_plan(view, Style(width=40))
    assert "pod shared pool" in narrow
    picture = render_plan_svg(view)
    assert "* a pod shared pool" in picture
    assert picture.count("*</text>") == 1


def test_what_nobody_uses_of_a_bubble_is_told() -> None:
    plan = planner().plan([whole_pod("4", "1Gi", container("app", "2", "64Mi"))])
    view = plan_view(plan_document(plan), planned_on(plan))
    assert view.pods[0].whole == ("bubble 2-5, 4 CPUs, of them 4-5 used by nobody",)
    assert "used by nobody" in view.node_map.owners["default/u"].label


def test_a_leak_is_named_and_drawn() -> None:
    plan = planner().plan([TOO_SMALL, POD])
    document = plan_document(plan)
    leaked = document.pods[0]
    assert leaked.bubble
    assert (leaked.admitted, leaked.kubelet_fault, leaked.bubble.cpus) == (
        False,
        "bubble-leaks",
        "2-3",
    )
    view = plan_view(document, planned_on(plan))
    assert "CPUs 2-3 stay its own (kubelet fault bubble-leaks)" in (view.pods[0].message or "")
    assert CPUSet([2, 3]) <= view.exclusive
    assert document.pods[1].bubble
    assert document.pods[1].bubble.cpus == "4-7"
    told = explained(TOO_SMALL)
    assert told.kubelet_fault == "bubble-leaks"
    assert told.bubble
    assert told.bubble.cpus == "2-3"


def test_the_gate_alone_makes_a_difference() -> None:
    ordinary = Pod("o", "o", containers=(container("c", "1", "64Mi"),))
    on, off = planner().plan([ordinary, POD]), planner(feature_gates={}).plan([ordinary, POD])
    assert [one.pod.name for one, _ in changed_pods(on, off)] == ["u"]
    assert changed_pods(on, on) == []


def test_an_explanation_says_what_bound_each_part() -> None:
    document = explained(POD)
    assert document.bubble
    assert document.bubble.request == "requests cpu 4, memory 2Gi"
    assert [step.cpus for step in document.bubble.steps] == ["2-5"]
    told = because(document)
    assert told["app"].startswith("2 exclusive CPUs of its pod's 4: its own requests of CPUs and")
    assert told["log"].startswith("3, which of its pod's 4 CPUs no other has for itself")
    assert "it requests no cpu for itself" in told["log"]
    assert told["prepare"].startswith("2-5, which of its pod's 4 CPUs no sidecar has by then")
    text = render_explain(explain_view(document), Style(width=100))
    assert "As a whole  requests cpu 4, memory 2Gi" in text


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"feature_gates": {}}, "while the feature gate PodLevelResourceManagers is off"),
        ({"feature_gates": {}, "kubelet_version": V1_35}, "kubelet 1.35 has no PodLevelResource"),
        ({"topology_manager_scope": "container"}, "only topologyManagerScope: pod"),
        ({"topology_manager_policy": "none"}, "only topologyManagerScope: pod"),
    ],
)
def test_why_a_container_shares_though_its_pod_has_resources(
    config: dict[str, Any], why: str
) -> None:
    told = because(explained(POD, **config))["log"]
    assert told.startswith("shared pool: ")
    assert why in told


def test_why_there_is_no_bubble() -> None:
    fraction = replace(POD, resources=whole_pod("4500m", "2Gi").resources)
    assert "cpu 4500m is no whole number" in because(explained(fraction))["log"]
    assert POD.resources is not None
    wide = {
        **POD.resources.limits,
        "cpu": POD.resources.limits["cpu"] + POD.resources.limits["cpu"],
    }
    burstable = replace(POD, resources=replace(POD.resources, limits=wide))
    assert "the pod is Burstable by its own resources" in because(explained(burstable))["log"]


def test_what_would_admit_an_unsound_pod() -> None:
    document = explained(UNSOUND)
    assert document.reason == "TopologyAffinityError"
    assert "leaving no cpus for shared containers" in because(document)["app"]
    assert document.remedies[0].startswith("ask for 3 CPUs instead of 2 for the pod as a whole")
    assert any(
        one.startswith("ask for 1 CPU instead of 2 in container app") for one in document.remedies
    )
    assert any("PodLevelResourceManagers: false" in one for one in document.remedies)


def test_a_smaller_budget_is_a_remedy() -> None:
    large = whole_pod("12", "1Gi", container("app", "2", "64Mi"), container("log"))
    document = explained(large)
    assert not document.admitted
    assert document.remedies[0].startswith("ask for 10 CPUs instead of 12 for the pod as a whole")


def test_a_resize_of_another_pod_leaves_a_bubble_alone() -> None:
    ordinary = Pod("o", "o", containers=(container("c", "2", "64Mi"),))
    node = planner()
    plan = node.plan([POD, ordinary])
    wish = ResizeWish.parse("pod/o/c=4")
    after = plan_document(node.resize(plan, wish))
    before = plan_document(plan)
    assert after.resizes
    assert after.resizes[0].feasible
    assert after.pods[0] == before.pods[0]
    refused = plan_document(node.resize(plan, ResizeWish.parse("pod/u/app=3")))
    assert refused.resizes
    assert not refused.resizes[0].feasible
    assert "as a whole" in (refused.resizes[0].message or "")
    assert refused.pods == before.pods


def test_room_is_made_for_a_bubble() -> None:
    """Two owners in the way of three CPUs at one NUMA node."""
    machine = parse_short_form("2s4c1t@8Gi")
    made = NodeConfig(
        cpu_manager_policy="static",
        reserved_system_cpus=CPUSet([0, 4]),
        topology_manager_policy="single-numa-node",
        topology_manager_scope="pod",
        feature_gates={POD_LEVEL_RESOURCE_MANAGERS: True},
    )
    node = Planner(machine, made, rules=SOUND)
    state = node.empty
    pods = [Pod(uid, uid, containers=(container("c", "1", "64Mi"),)) for uid in "ab"]
    ledger = state.ledger.with_assignment("a", "c", CPUSet([1]))
    state = replace(state, ledger=ledger.with_assignment("b", "c", CPUSet([5])))
    bubble = whole_pod("3", "1Gi", container("app", "1", "64Mi"), container("log"))
    assert not decide(node.node, state, bubble).admitted
    found = node.room_for(state, bubble, pods)
    assert found is not None
    after = replace(state, ledger=with_claims(state.ledger, found.plan.end))
    decision = decide(node.node, after, bubble)
    assert decision.bubble is not None
    assert len(decision.bubble.cpus) == 3


def test_why_a_container_of_whole_cpus_shares_in_a_pod_of_a_fraction() -> None:
    pod = whole_pod("2500m", "2Gi", container("main", "1", "1Gi"), container("log"), uid="f")
    main = explained(pod).containers[0]
    assert main.cpus is None
    assert main.constraint.startswith("shared pool: the pod's own cpu 2500m is no whole number")


def test_far_too_many_cpus_as_a_whole_have_a_remedy() -> None:
    pod = whole_pod("99", "1Gi", container("a", "1", "256Mi"), container("b"), uid="x")
    remedies = explained(pod).remedies
    assert any("ask for 10 CPUs instead of 99 for the pod as a whole" in one for one in remedies)


@pytest.mark.parametrize("policy", ["none", "restricted"])
def test_the_scope_that_serves_pods_as_a_whole_is_a_remedy(policy: str) -> None:
    pod = whole_pod("4", "2Gi", container("a", "2", "1Gi"), container("b"), uid="y")
    loaded = load_kubelet_config(str(ROOT / "examples/pod-level/kubelet.yaml")).config
    asked = replace(loaded, topology_manager_policy=policy, topology_manager_scope="container")
    node = Planner(parse_short_form("2s6c2t@32Gi"), asked)
    explanation = explain_document(node, explain_pod(node, [pod], pod.name))
    assert not explanation.admitted
    assert any("topologyManagerScope: pod" in one for one in explanation.remedies)


@pytest.mark.parametrize(
    ("changes", "pod", "words"),
    [
        (
            {"feature_gates": {}},
            POD,
            f"gate {POD_LEVEL_RESOURCE_MANAGERS} is off",
        ),
        (
            {"feature_gates": {POD_LEVEL_RESOURCES: False}},
            POD,
            f"passed over while the feature gate {POD_LEVEL_RESOURCES} is off",
        ),
        (
            {"feature_gates": {}, "kubelet_version": V1_35},
            POD,
            f"kubelet 1.35 has no {POD_LEVEL_RESOURCE_MANAGERS}",
        ),
        ({}, whole_pod("2500m", "2Gi", container("log")), "is no whole number of CPUs"),
        ({"topology_manager_scope": "container"}, POD, "only topologyManagerScope: pod"),
    ],
)
def test_a_plan_tells_in_one_line_why_a_pod_has_no_cpus_as_a_whole(
    changes: dict[str, Any], pod: Pod, words: str
) -> None:
    plan = planner(**changes).plan([pod])
    document = plan_document(plan)
    told = document.pods[0].not_whole
    assert told
    assert words in told
    text = render_plan(plan_view(document, planned_on(plan)), Style(width=400))
    assert text.count(f"no CPUs as a whole: {told}") == 1


def test_a_plan_has_no_such_line_for_a_pod_that_has_them_or_asks_for_none() -> None:
    ordinary = replace(POD, uid="o", name="o", resources=None)
    plan = planner().plan([POD, ordinary])
    assert [one.not_whole for one in plan_document(plan).pods] == [UNSET, UNSET]


def test_resources_that_are_passed_over_leave_a_pod_to_its_containers() -> None:
    off = {POD_LEVEL_RESOURCES: False}
    own = replace(POD, resources=None)
    alike = planner(feature_gates=off).plan([own]).pods[0].decision
    decision = planner(feature_gates=off).plan([POD]).pods[0].decision
    assert decision.pod.qos is own.qos is QOSClass.BURSTABLE
    assert planner().plan([POD]).pods[0].decision.pod.qos is QOSClass.GUARANTEED
    assert decision.requests == alike.requests
    assert decision.requests["cpu"] == 3000
    assert pod_cgroup(decision.pod) == pod_cgroup(own) != pod_cgroup(POD)


def test_the_managers_leave_it_alone_all_the_same() -> None:
    pod = whole_pod("4", "2Gi", container("app", "2", "1Gi"))
    node = planner(feature_gates={POD_LEVEL_RESOURCES: False})
    decision = node.plan([pod]).pods[0].decision
    assert decision.pod.qos is QOSClass.GUARANTEED
    assert not decision.allocations
    assert node.plan([replace(pod, resources=None)]).pods[0].decision.allocations


@pytest.mark.parametrize("turned", [False, True])
def test_the_legend_of_a_comparison_tells_the_marks_of_either_side(turned: bool) -> None:
    plans = [planner().plan([POD]), planner(feature_gates={}).plan([POD])]
    before, after = reversed(plans) if turned else plans
    sides = (plan_document(before), plan_document(after))
    on = (planned_on(before), planned_on(after))
    view = compare_view(sides, on, ("before", "after"), compare_document(before, after, ()))
    svg = render_compare_svg(view)
    assert svg.count("* a pod shared pool") == 1
