"""Exclusive CPUs that the kernel was booted to isolate: preferred, required, or ignored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import NodeState, decide
from pinfold.admission.container import decide_container
from pinfold.admission.decision import Decision
from pinfold.admission.resize import Resize, decide_resize
from pinfold.admission.settling import settle
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import IsolatedCPUs, OwnPolicies
from pinfold.core.machine.machine import Machine
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.explaining.decision import explain_pod
from pinfold.planning.planner import Planner
from tests.scenes.manager_harness import Harness, isolating, manifest, run
from tests.scenes.published_schemas import plan_document

STATIC = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
ISOLATED = CPUSet.parse("4-7")


def own(use: Any) -> NodeConfig:
    return replace(STATIC, own=OwnPolicies(isolated_cpus=IsolatedCPUs(use)))


def node(use: Any = "never", isolated: CPUSet = ISOLATED, **config: Any) -> Planner:
    machine = isolating(parse_short_form("1s4c2t"), isolated)
    return Planner(machine, replace(own(use), **config))


def pod(name: str, *cpus: int | str, **annotations: str) -> Pod:
    said = {f"isolated-cpus.pinfold.dev/{holder}": text for holder, text in annotations.items()}
    return pod_from_api(
        {
            "metadata": {"name": name, "uid": name, "annotations": said},
            "spec": {
                "containers": [
                    {
                        "name": f"c{at}",
                        "resources": {
                            kind: {"cpu": count, "memory": "1Gi"} for kind in ("limits", "requests")
                        },
                    }
                    for at, count in enumerate(cpus)
                ]
            },
        }
    )


def given_to(decision: Decision) -> list[str]:
    return [str(one.cpus) for one in decision.allocations.values()]


def test_isolated_cpus_are_preferred() -> None:
    planner = node("prefer")
    plan = planner.plan([pod("a", 2), pod("b", 3), pod("c", 2), pod("d", 3)])
    placed = {one.pod.name: str(one.containers[0].cpus) for one in plan.pods if one.admitted}
    # Two are left of the isolated ones, which is not enough for b, and enough for c.
    assert placed == {"a": "4-5", "b": "1-3", "c": "6-7"}
    assert str(plan.pool) == "0"
    b = next(one for one in plan.pods if one.pod.name == "b")
    assert b.decision.notes == ("not on isolated CPUs: too few of 4-7 were free for container c0",)


def test_what_is_preferred_costs_no_admission() -> None:
    planner = node("prefer")
    plan = planner.plan([pod("a", 5), pod("b", 2)])
    assert [one.admitted for one in plan.pods] == [True, True]
    # Neither side was enough: the kubelet's own choice among all.
    assert str(plan.pods[0].containers[0].cpus) == "1-5"


def test_what_is_required_is_had_or_refused() -> None:
    planner = node("require")
    plan = planner.plan([pod("a", 3), pod("b", 2), pod("c", 1), pod("d", 2, pod="never")])
    assert [one.admitted for one in plan.pods] == [True, False, True, True]
    refused = plan.pods[1].decision
    assert refused.reason == "UnexpectedAdmissionError"
    assert refused.message == (
        "isolated CPUs are required, but only 1 of the 2 for container c0 are free (isolated: "
        "4-7); end what runs there, ask for fewer CPUs, or say prefer instead of require"
    )
    assert [str(plan.pods[at].containers[0].cpus) for at in (0, 2, 3)] == ["4-6", "7", "2-3"]


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_the_topology_manager_aligns_within_them(policy: str, scope: str) -> None:
    machine = isolating(parse_short_form("2s4c1t"), CPUSet.parse("2-3,6-7"))
    config = replace(own("require"), topology_manager_policy=policy, topology_manager_scope=scope)
    planner = Planner(machine, config)
    first, second, third = planner.plan([pod("a", 2), pod("b", 2), pod("c", 1)]).pods
    assert [str(one.containers[0].cpus) for one in (first, second)] == ["2-3", "6-7"]
    assert not third.admitted


def test_a_strict_policy_refuses_no_preference() -> None:
    """Two isolated CPUs at two nodes are enough, and not aligned: others are."""
    machine = isolating(parse_short_form("2s4c1t"), CPUSet.parse("3,7"))
    config = replace(own("prefer"), topology_manager_policy="single-numa-node")
    plan = Planner(machine, config).plan([pod("a", 2)])
    assert str(plan.pods[0].containers[0].cpus) == "1-2"


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("never", "whole cpu request; best fit"),
        ("prefer", "whole cpu request, on isolated CPUs if they are enough; best fit"),
        ("require", "whole cpu request, on isolated CPUs; best fit"),
    ],
)
def test_an_explanation_names_the_wish(use: str, words: str) -> None:
    explanation = explain_pod(node(use), [pod("a", 2)], "a")
    assert words in explanation.containers[0].constraint


def test_an_explanation_names_a_wish_against_the_nodes() -> None:
    explanation = explain_pod(node("prefer"), [pod("a", 2, pod="never")], "a")
    assert "whole cpu request, on any CPUs as it asks for; " in explanation.containers[0].constraint


def test_an_explanation_names_isolation_where_alignment_fails() -> None:
    planner = node("require", topology_manager_policy="single-numa-node")
    (reason,) = explain_pod(planner, [pod("a", 5)], "a").containers
    assert "needs one NUMA node for 5 CPUs" in reason.constraint
    assert reason.constraint.endswith("; isolated CPUs are required: 4 of 4-7 are free")
    planner = node("never", topology_manager_policy="single-numa-node")
    (reason,) = explain_pod(planner, [pod("a", 9)], "a").containers
    assert "isolated" not in reason.constraint


def test_each_container_has_its_own_wish() -> None:
    planner = node("never")
    wishes = {"container.c0": "require", "container.c1": "prefer"}
    (placed,) = planner.plan([pod("a", 2, 2, 1, **wishes)]).pods
    assert [str(one.cpus) for one in placed.containers] == ["4-5", "6-7", "1"]


@pytest.mark.parametrize(
    ("asking", "isolated", "words"),
    [
        (pod("a", 2, pod="require"), "", "required, but the kernel was booted without any"),
        (pod("a", "500m", pod="require"), "4-7", "there are no exclusive CPUs to place"),
        (pod("a", 2, "500m", **{"container.c1": "require"}), "4-7", "no exclusive CPUs to place"),
        (pod("a", 2, pod="always"), "4-7", "must be never, prefer or require, not 'always'"),
        (pod("a", 2, **{"container.x": "never"}), "4-7", "no container 'x'"),
    ],
)
def test_what_cannot_be_is_refused(asking: Pod, isolated: str, words: str) -> None:
    planner = node("never", CPUSet.parse(isolated))
    decision = decide(planner.node, planner.empty, asking)
    assert not decision.admitted
    assert words in (decision.message or "")
    # A kubelet knows no such annotation.
    kubelet = Planner(planner.machine, STATIC)
    assert decide(kubelet.node, kubelet.empty, asking).admitted


def test_a_node_that_requires_what_it_has_not() -> None:
    planner = node("require", CPUSet())
    refused, shared = planner.plan([pod("a", 2), pod("b", "1500m")]).pods
    assert "required for container c0, but the kernel was booted without any" in (
        refused.decision.message or ""
    )
    assert shared.admitted


def test_a_resize_takes_isolated_cpus_too() -> None:
    """One container of a kubelet's pod, as a runtime shows it."""
    machine = isolating(parse_short_form("1s4c2t"), ISOLATED)
    planner = Planner(machine, own("require"), rules=SOUND)
    first = decide_container(planner.node, planner.empty, pod("a", 2), "c0", {})
    state = settle(planner.empty, first)
    grown = decide_container(planner.node, state, pod("a", 4), "c0", {})
    assert (given_to(first), given_to(grown)) == (["4-5"], ["4-7"])
    assert not decide_container(planner.node, state, pod("a", 5), "c0", {}).admitted


@pytest.mark.parametrize(
    ("wish", "before", "cpus", "after"),
    [
        ("never", "4-5", 4, "2-5"),
        ("prefer", "4-5", 4, "4-7"),
        ("prefer", "2-3", 4, ""),
        ("prefer", "1-2", 3, "1-3"),
        ("require", "4-5", 4, "4-7"),
        ("require", "4-5", 5, ""),
    ],
)
def test_a_grow_stays_on_its_side(wish: str, before: str, cpus: int, after: str) -> None:
    planner = node("never")
    asking = pod("a", len(CPUSet.parse(before)), pod=wish)
    had = CPUSet.parse(before)
    ledger = planner.empty.ledger.with_pod("a", {"c0": had})
    state = replace(planner.empty, ledger=ledger)
    decision = decide_resize(planner.node, state, asking, Resize("c0", cpus, had))
    if after:
        assert str(decision.after) == after
    elif wish == "prefer":
        assert len(decision.after) == cpus
    else:
        assert not decision.feasible
        assert decision.after == had


def test_an_agent_moves_everybody_else_off() -> None:
    async def scenario(harness: Harness) -> None:
        assert str(harness.books.view.pool) == "1-3"
        await harness.admit(manifest("web", ""))
        await harness.admit(manifest("db", "2"))
        assert harness.cpus("db") == {"c0": "4-5"}
        assert str(harness.cgroups.shared) == "1-3"
        # Others than isolated ones are gone, and somebody shares.
        for name in ("b", "c"):
            await harness.admit(manifest(name, "2"))
        assert harness.cpus("b") == {"c0": "6-7"}
        assert str(harness.cgroups.shared) == "1"

    run(scenario, isolated=ISOLATED, config=own("prefer"))


def test_others_move_off_while_a_pod_wants_isolated_cpus() -> None:
    """By annotation alone: the pool is as it was when the pod is gone."""

    async def scenario(harness: Harness) -> None:
        await harness.admit(manifest("web", ""))
        await harness.admit(manifest("plain", "1"))
        assert str(harness.cgroups.shared) == "2-7"
        wanting = manifest("db", "2")
        wanting["metadata"]["annotations"] = {"isolated-cpus.pinfold.dev/pod": "require"}
        await harness.admit(wanting)
        assert harness.cpus("db") == {"c0": "4-5"}
        assert str(harness.cgroups.shared) == "2-3"
        await harness.kill()
        await harness.start()
        assert str(harness.cgroups.shared) == "2-3"
        # One that is refused moves nobody.
        await harness.manager.release("default/db", grace=0)
        assert str(harness.cgroups.shared) == "2-7"
        refused = manifest("wide", "5")
        refused["metadata"]["annotations"] = {"isolated-cpus.pinfold.dev/pod": "require"}
        await harness.admit(refused)
        assert str(harness.cgroups.shared) == "2-7"
        assert str(harness.books.view.pool) == "2-7"

    run(scenario, isolated=ISOLATED)


def test_an_agent_ignores_them_by_default() -> None:
    async def scenario(harness: Harness) -> None:
        assert str(harness.books.view.pool) == "1-7"
        await harness.admit(manifest("db", "2"))
        assert harness.cpus("db") == {"c0": "2-3"}

    run(scenario, isolated=ISOLATED)


MACHINES = ["1s4c2t", "2s4c1t", "2s2n2c2t@half", "1s3c4t"]
PODS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["1", "2", "3", "4", "500m"]), min_size=1, max_size=2),
        st.sampled_from([None, "never", "prefer", "require"]),
    ),
    max_size=5,
)
CONFIGS = st.fixed_dictionaries(
    {
        "topology_manager_policy": st.sampled_from(["none", "best-effort", "restricted"]),
        "topology_manager_scope": st.sampled_from(["container", "pod"]),
        "cpu_manager_policy_options": st.sampled_from(
            [{}, {"full-pcpus-only": "true"}, {"distribute-cpus-across-numa": "true"}]
        ),
    }
)


def pods_of(wanted: list[tuple[list[str], str | None]]) -> list[Pod]:
    return [
        pod(f"p{at}", *cpus, **({} if said is None else {"pod": said}))
        for at, (cpus, said) in enumerate(wanted)
    ]


def booted(form: str, isolated: frozenset[int]) -> Machine:
    machine = parse_short_form(form)
    return isolating(machine, CPUSet(isolated) & machine.online)


@settings(max_examples=80)
@given(st.sampled_from(MACHINES), st.frozensets(st.integers(0, 15)), CONFIGS, PODS)
def test_where_nobody_wishes_it_is_the_kubelets_plan(
    form: str, isolated: frozenset[int], config: dict[str, Any], wanted: list[Any]
) -> None:
    machine = booted(form, isolated)
    pods = [replace(one, annotations={}) for one in pods_of(wanted)]
    plain = plan_document(Planner(machine, replace(STATIC, **config)).plan(pods))
    ours = plan_document(Planner(machine, replace(own("never"), **config)).plan(pods))
    assert ours.pop("config") != plain.pop("config")
    assert ours == plain


@settings(max_examples=120)
@given(
    st.sampled_from(MACHINES),
    st.frozensets(st.integers(0, 15)),
    CONFIGS,
    PODS,
    st.sampled_from(["never", "prefer", "require"]),
)
def test_who_requires_isolated_cpus_has_nothing_else(
    form: str, isolated: frozenset[int], config: dict[str, Any], wanted: list[Any], use: str
) -> None:
    machine = booted(form, isolated)
    planner = Planner(machine, replace(own(use), **config))
    state: NodeState = planner.empty
    admitted = []
    for asking, (_, said) in zip(pods_of(wanted), wanted, strict=True):
        decision = decide(planner.node, state, asking)
        wish = said or use
        for allocation in decision.allocations.values():
            if wish == "require":
                assert allocation.cpus <= machine.isolated
            assert not allocation.not_free
        before, state = state, settle(state, decision)
        admitted += [asking] if decision.admitted else []
        taken = before.ledger.default - state.ledger.default
        assert taken == state.ledger.cpus_of_pod(asking.uid)
        assert state.ledger.violations() == []
        if wish == "prefer" and not decision.admitted:
            # Whoever only prefers is admitted wherever who ignores them is.
            ignoring = replace(asking, annotations={"isolated-cpus.pinfold.dev/pod": "never"})
            assert not decide(planner.node, before, ignoring).admitted
    pool = planner.pool(state.ledger, admitted)
    if use != "never" and machine.isolated:
        assert pool.isdisjoint(machine.isolated) or pool <= machine.isolated
