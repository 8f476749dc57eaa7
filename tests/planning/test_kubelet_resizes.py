"""Resizes of a plan for one version of the kubelet: its answers, and not our own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold import CPUSet, NodeConfig, Planner, ResizeWish, parse_short_form
from pinfold.core.kubelet.feature_gates import (
    POD_LEVEL_RESOURCE_MANAGERS,
    RESIZE,
    RESIZE_EXCLUSIVE_CPUS,
)
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.kubelet.versions import RELEASES, V1_36, KubeletVersion, VersionSource
from pinfold.core.moves.kubelet_resize import INFEASIBLE, infeasible_resize
from pinfold.core.moves.resize import NOT_ALLOCATED, resized
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.pod import Pod
from pinfold.core.values.quantity import Quantity
from pinfold.planning.planner import Plan
from tests.scenes.planned_pods import planned_pod as pod
from tests.scenes.pod_level_pods import container, whole_pod
from tests.scenes.published_schemas import plan_document

STATIC_CPUS = 'Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static"'
GATE_ON = {RESIZE_EXCLUSIVE_CPUS: True}
VERSIONS = [one.version for one in RELEASES]


def placed(*pods: Pod, version: KubeletVersion = V1_36, **config: Any) -> Plan:
    usual: dict[str, Any] = {
        "cpu_manager_policy": "static",
        "reserved_system_cpus": CPUSet([0]),
        "kubelet_version": version,
        "kubelet_version_from": VersionSource.FLAG,
    }
    return Planner(parse_short_form("2s4c2t"), NodeConfig(**usual | config)).plan(pods)


def after(plan: Plan, *wishes: str) -> Plan:
    for wish in wishes:
        plan = plan.planner.resize(plan, ResizeWish.parse(wish))
    return plan


def answers(plan: Plan, *wishes: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = plan_document(after(plan, *wishes))["resizes"]
    return found


def shared(name: str, **requests: str) -> Pod:
    container = {"name": "c", "resources": {"requests": requests}}
    return pod_from_api({"metadata": {"name": name}, "spec": {"containers": [container]}})


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_guaranteed_pods_are_not_resized_beside_a_static_policy(version: KubeletVersion) -> None:
    plan = placed(pod("a", c=2), version=version)
    refused = after(plan, "pod/a=4")
    (answer,) = plan_document(refused)["resizes"]
    assert (answer["reason"], answer["message"]) == (INFEASIBLE, STATIC_CPUS)
    assert answer["before"] == answer["after"] == "2-3"
    assert (refused.state, refused.pods) == (plan.state, plan.pods)


def test_what_is_no_change_is_admitted() -> None:
    (answer,) = answers(placed(pod("a", c=2)), "pod/a=2")
    assert (answer["feasible"], answer["after"]) == (True, "2-3")
    assert "moves" not in answer


def test_with_the_gate_a_container_asks_for_more_and_keeps_what_it_has() -> None:
    plan = after(placed(pod("a", c=2), pod("b", c=2), feature_gates=GATE_ON), "pod/a=4", "pod/b=1")
    for answer, cpus in zip(plan_document(plan)["resizes"], ("2-3", "4-5"), strict=True):
        assert answer["feasible"]
        assert answer["before"] == answer["after"] == cpus
    assert [str(one.pod.containers[0].requests["cpu"]) for one in plan.pods] == ["4", "1"]
    assert plan.state.requested["cpu"] == 5000


@pytest.mark.parametrize("scope", ["container", "pod"])
@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_with_the_gate_a_policy_that_rejects_admits_no_other_number(
    policy: str, scope: str
) -> None:
    config: dict[str, Any] = {
        "topology_manager_policy": policy,
        "topology_manager_scope": scope,
    }
    plan = placed(pod("a", c=2), feature_gates=GATE_ON, **config)
    refused, same = answers(plan, "pod/a=4", "pod/a=2")
    assert refused["reason"] == "TopologyAffinityError"
    assert refused["message"] == "Resources cannot be allocated with Topology locality"
    assert refused["after"] == "2-3"
    assert same["feasible"]


@pytest.mark.parametrize("policy", ["none", "best-effort"])
def test_with_the_gate_other_policies_admit(policy: str) -> None:
    plan = placed(pod("a", c=2), feature_gates=GATE_ON, topology_manager_policy=policy)
    assert answers(plan, "pod/a=4")[0]["feasible"]


def test_a_shared_container_may_get_cpus_of_its_own() -> None:
    plan = after(placed(pod("a", c="1500m"), feature_gates=GATE_ON), "pod/a=2")
    (answer,) = plan_document(plan)["resizes"]
    assert (answer["before"], answer["after"]) == ("", "2-3")
    (container,) = plan.pods[0].containers
    assert (str(container.cpus), container.exclusive) == ("2-3", True)
    assert str(plan.shared) == "0-1,4-15"


def test_who_shares_is_resized_as_the_node_has_room() -> None:
    plan = placed(shared("a", cpu="1", memory="1Gi"), shared("b", cpu="12"))
    fits, too_many, beyond = answers(plan, "pod/a=3", "pod/a=4", "pod/a=17")
    assert fits["feasible"]
    assert too_many["reason"] == "OutOfcpu"
    assert too_many["message"] == (
        "Node didn't have enough resource: cpu, requested: 4000, used: 12000, capacity: 15000"
    )
    assert beyond["reason"] == INFEASIBLE
    assert beyond["message"] == (
        "Node didn't have enough capacity: cpu, requested: 17000, capacity: 15000"
    )


def test_what_the_api_server_refuses_comes_to_no_kubelet() -> None:
    (init,) = answers(placed(pod("a", setup_=1, c=1), feature_gates=GATE_ON), "pod/a/setup=2")
    assert init["reason"] == "Invalid"
    assert "only sidecars can be resized" in init["message"]


def test_a_pod_stays_in_its_class() -> None:
    container = {
        "name": "c",
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    }
    burstable = pod_from_api({"metadata": {"name": "a"}, "spec": {"containers": [container]}})
    (answer,) = answers(placed(burstable), "pod/a=2")
    assert answer["reason"] == "Invalid"
    assert answer["message"] == (
        'Invalid value: "Guaranteed": Pod QOS Class may not change as a result of resizing'
    )


def whole(*cpus: int, budget: int) -> Pod:
    names = [f"c{number}" for number in range(len(cpus))]
    parts = [container(name, str(one), "1Gi") for name, one in zip(names, cpus, strict=True)]
    return replace(whole_pod(str(budget), "8Gi", *parts, uid="a"), name="a")


PODS_AS_A_WHOLE: dict[str, Any] = {
    "feature_gates": {**GATE_ON, POD_LEVEL_RESOURCE_MANAGERS: True},
    "topology_manager_scope": "pod",
}


def test_no_container_asks_for_more_than_its_pod() -> None:
    plan = placed(whole(1, 1, budget=2), **PODS_AS_A_WHOLE)
    (answer,) = answers(plan, "pod/a/c0=2")
    assert answer["reason"] == "Invalid"
    assert "must be greater than or equal to aggregate container requests of 3" in answer["message"]


def test_a_second_bubble_is_a_fault_of_the_kubelet() -> None:
    plan = placed(whole(2, 2, budget=4), topology_manager_policy="best-effort", **PODS_AS_A_WHOLE)
    assert str(plan.ledger.bubble_of("a")) == "2-5"
    refused = after(plan, "pod/a/c0=1")
    (answer,) = plan_document(refused)["resizes"]
    assert answer["reason"] == "UnexpectedAdmissionError"
    assert "once more, CPUs 6-9, and have the first in no record" in answer["message"]
    assert answer["message"].endswith("(kubelet fault bubble-twice)")
    assert refused.state is plan.state


@pytest.mark.parametrize("policy", ["restricted", "single-numa-node"])
def test_a_bubble_has_no_hints_for_another_size(policy: str) -> None:
    plan = placed(whole(2, 2, budget=4), topology_manager_policy=policy, **PODS_AS_A_WHOLE)
    (answer,) = answers(plan, "pod/a/c0=1")
    assert answer["message"] == (
        "Pod Scope pod with pod-level resources failed admission under pod-scope topology manager"
    )


def test_in_scope_container_a_part_is_as_any_container() -> None:
    config = PODS_AS_A_WHOLE | {"topology_manager_scope": "container"}
    plan = placed(whole(2, 2, budget=4), topology_manager_policy="best-effort", **config)
    (answer,) = answers(plan, "pod/a/c0=1")
    assert (answer["feasible"], answer["after"]) == (True, "2-3")


def test_sidecars_count_and_policy_none_lets_all_through() -> None:
    assert answers(placed(pod("a", side=1, c=1)), "pod/a/side=2")[0]["message"] == STATIC_CPUS
    (answer,) = answers(placed(pod("a", c=2), cpu_manager_policy="none"), "pod/a=4")
    assert answer["feasible"]


def test_a_gate_may_forbid_every_resize() -> None:
    config = {"cpu_manager_policy": "none", "feature_gates": {RESIZE: False}}
    plan = placed(pod("a", c=2), version=KubeletVersion(34), **config)
    (answer,) = answers(plan, "pod/a=4")
    assert (answer["reason"], answer["message"]) == (
        INFEASIBLE,
        "InPlacePodVerticalScaling is disabled",
    )


def test_static_pods_are_not_resized() -> None:
    before = replace(pod("a", c=2), static=True)
    problem = infeasible_resize(before, resized(before, "c", 4), NodeConfig())
    assert problem == "In-place resize of static-pods is not supported"


@pytest.mark.parametrize(
    "config",
    [
        {"kubelet_version_from": VersionSource.DEFAULT},
        {"own": OwnPolicies()},
    ],
)
def test_nobody_else_answers_so(config: dict[str, Any]) -> None:
    grown, too_many = answers(placed(pod("a", c=2), **config), "pod/a=4", "pod/a=99")
    assert (grown["feasible"], grown["after"]) == (True, "2-5")
    assert too_many["reason"] == NOT_ALLOCATED


@given(
    sizes=st.lists(st.integers(1, 5), min_size=3, max_size=3),
    wishes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20)), max_size=5),
    gate=st.booleans(),
    policy=st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
)
@settings(max_examples=60)
def test_nobody_ever_loses_or_gains_a_cpu(
    *, sizes: list[int], wishes: list[tuple[int, int]], gate: bool, policy: str
) -> None:
    plan = placed(
        *(pod(f"p{n}", c=size) for n, size in enumerate(sizes)),
        feature_gates=GATE_ON if gate else {},
        topology_manager_policy=policy,
    )
    before = plan.ledger
    for who, cpus in wishes:
        plan = after(plan, f"p{who}={cpus}")
        answer = plan.resizes[-1].decision
        assert plan.ledger == before
        assert answer.before == answer.after
        changes = cpus != len(answer.before)
        if changes and answer.before:
            assert answer.feasible == (gate and policy in {"none", "best-effort"}) or (
                answer.reason in {INFEASIBLE, "OutOfcpu"}
            )
    requested = sum(
        int(str(one.pod.containers[0].requests["cpu"])) for one in plan.pods if one.admitted
    )
    assert plan.state.requested.get("cpu", 0) == 1000 * requested


def test_memory_has_a_manager_and_a_gate_of_its_own() -> None:
    before = pod("a", c=2)
    asked = {**before.containers[0].requests, "memory": Quantity.parse("1Gi")}
    other = replace(before.containers[0], requests=asked, limits=asked)
    config = NodeConfig(cpu_manager_policy="static", memory_manager_policy="Static")
    assert infeasible_resize(before, replace(before, containers=(other,)), config) == (
        'Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static"'
    )
