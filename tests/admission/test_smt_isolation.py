"""Containers that are alone on their cores: one thread of each is used, its siblings stay idle."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import NodeState, decide
from pinfold.admission.container import decide_container
from pinfold.admission.decision import Decision
from pinfold.admission.model import NodeError
from pinfold.admission.moves import with_claims
from pinfold.admission.node_status import (
    assignable_cpus,
    node_resource_topology,
    node_status,
)
from pinfold.admission.rebalance import rebalance
from pinfold.admission.resize import Resize, decide_resize
from pinfold.admission.settling import release, settle
from pinfold.admission.smt_isolation import NO_SMT, SMT_ISOLATION_ERROR
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import IsolatedCPUs, OwnPolicies, SMTIsolate
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.owners import Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.rebalance import RebalanceOptions
from pinfold.core.moves.steps import after
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.pod import Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.explaining.decision import explain_pod
from pinfold.planning.planner import Planner
from pinfold.state.restore import to_checkpoint, to_ledger
from tests.scenes.manager_harness import isolating

STATIC = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0, 1]))
OPTIONS: tuple[dict[str, str], ...] = (
    {},
    {"full-pcpus-only": "true"},
    {"distribute-cpus-across-numa": "true"},
    {"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"},
    {"distribute-cpus-across-cores": "true"},
    {"align-by-socket": "true"},
    {"prefer-align-cpus-by-uncorecache": "true"},
    {"strict-cpu-reservation": "true"},
)
GATES = {"CPUManagerPolicyAlphaOptions": True, "CPUManagerPolicyBetaOptions": True}


def own(*, use: bool) -> NodeConfig:
    return replace(STATIC, own=OwnPolicies(smt_isolate=SMTIsolate(use=use)))


def node(machine: str = "1s4c2t", *, use: bool = False, **config: Any) -> Planner:
    return Planner(parse_short_form(machine), replace(own(use=use), **config))


def pod(name: str, *cpus: int | str, init: Any = 0, **annotations: str) -> Pod:
    said = {f"smt-isolate.pinfold.dev/{holder}": text for holder, text in annotations.items()}

    def container(name: str, count: int | str) -> dict[str, Any]:
        amounts = {"cpu": count, "memory": "1Gi"}
        return {"name": name, "resources": {"limits": amounts, "requests": amounts}}

    return pod_from_api(
        {
            "metadata": {"name": name, "uid": name, "annotations": said},
            "spec": {
                "initContainers": [container("first", init)] if init else [],
                "containers": [container(f"c{at}", count) for at, count in enumerate(cpus)],
            },
        }
    )


def alone(name: str, *cpus: int | str, **more: Any) -> Pod:
    return pod(name, *cpus, **{"pod": "true", **more})


def given_to(decision: Decision) -> list[tuple[str, str]]:
    return [(str(one.cpus), str(one.idle)) for one in decision.allocations.values()]


def check(planner: Planner, state: NodeState) -> None:
    """The siblings of every CPU that is used in isolation are claimed, and nobody's."""
    ledger = state.ledger
    assert ledger.violations() == []
    running = [cpus for uid in ledger.assignments for cpus in ledger.used_by(uid).values()]
    everywhere = CPUSet.union_of(running) | ledger.default
    for uid, containers in ledger.idle.items():
        for name, idle in containers.items():
            used = ledger.cpus_of(uid, name)
            assert used is not None
            cores = [core for core in planner.machine.cores if core & used]
            assert len(cores) == len(used)
            assert CPUSet.union_of(cores) - used == idle
            assert idle.isdisjoint(everywhere)
    assert ledger.idle_siblings.isdisjoint(everywhere)
    assert ledger.idle_siblings | everywhere == ledger.limits.pool


def test_one_thread_of_each_core() -> None:
    first, second = node("1s8c2t").plan([alone("a", 3), pod("b", 3)]).pods
    assert given_to(first.decision) == [("2,4,6", "3,5,7")]
    assert given_to(second.decision) == [("8-10", "None")]


def test_it_is_the_lowest_thread() -> None:
    machine = parse_short_form("1s2c4t")
    planner = Planner(machine, replace(own(use=True), reserved_system_cpus=CPUSet(range(4))))
    (one,) = planner.plan([pod("a", 1)]).pods
    assert given_to(one.decision) == [("4", "5-7")]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["1s8c", "2s4c", "2s2n4c"]),
    st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    st.sampled_from(["container", "pod"]),
    st.lists(
        st.lists(st.sampled_from([1, 2, 3, 4, 5, "500m"]), min_size=1, max_size=3), max_size=5
    ),
)
def test_it_is_a_kubelet_on_a_machine_without_smt(
    options: dict[str, str], machine: str, policy: str, scope: str, asked: list[list[int | str]]
) -> None:
    if "align-by-socket" in options and policy == "single-numa-node":
        return
    config = replace(
        own(use=True),
        cpu_manager_policy_options=options,
        topology_manager_policy=policy,
        topology_manager_scope=scope,
        feature_gates=GATES,
    )
    pods = [pod(f"p{at}", *cpus) for at, cpus in enumerate(asked)]
    with_smt = Planner(parse_short_form(f"{machine}2t"), config)
    plain = replace(config, own=None, reserved_system_cpus=CPUSet([0]))
    without = Planner(parse_short_form(f"{machine}1t"), plain)
    ours, theirs = with_smt.plan(pods), without.plan(pods)
    for one, other in zip(ours.pods, theirs.pods, strict=True):
        assert one.admitted == other.admitted
        for mine, kubelets in zip(one.containers, other.containers, strict=True):
            assert mine.exclusive == kubelets.exclusive
            if mine.exclusive:
                assert mine.cpus == CPUSet(cpu * 2 for cpu in kubelets.cpus)
                assert mine.idle == CPUSet(cpu * 2 + 1 for cpu in kubelets.cpus)
    check(with_smt, ours.state)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["1s8c2t", "2s4c2t", "2s2c4t", "1s4c1t"]),
    st.booleans(),
    st.lists(
        st.tuples(
            st.sampled_from(["admit", "admit", "remove", "offline", "online"]),
            st.integers(0, 15),
            st.lists(st.sampled_from([1, 2, 3, "300m"]), min_size=1, max_size=2),
            st.sampled_from(["", "true", "false"]),
            st.integers(0, 2),
        ),
        max_size=12,
    ),
)
def test_idle_siblings_are_nobodys_whatever_happens(
    machine: str, use: bool, events: list[tuple[str, int, list[int | str], str, int]]
) -> None:
    planner = node(machine, use=use)
    empty = state = planner.empty
    running: dict[str, Pod] = {}
    for number, (event, which, cpus, said, init) in enumerate(events):
        if event == "admit":
            annotations = {"pod": said} if said else {}
            one = pod(f"p{number}", *cpus, init=init, **annotations)
            decision = decide(planner.node, state, one)
            if decision.admitted:
                running[one.uid] = one
            for allocation in decision.allocations.values():
                assert allocation.cpus.isdisjoint(state.offline)
            state = settle(state, decision)
        elif event == "remove" and running:
            state = release(state, running.pop(sorted(running)[which % len(running)]))
        elif which in planner.view.topology.cpus:
            gone = CPUSet([which])
            after = state.offline | gone if event == "offline" else state.offline - gone
            state = replace(state, offline=after)
        check(planner, state)
        total = sum(len(state.ledger.assignments.get(uid, {})) for uid in running)
        assert total == sum(map(len, state.ledger.assignments.values()))
        assert assignable_cpus(planner.node, state).isdisjoint(state.ledger.idle_siblings)
    for one in running.values():
        state = release(state, one)
    assert state.ledger == empty.ledger
    assert state.requested == {} or set(state.requested.values()) <= {0}


def test_a_core_whose_sibling_is_offline_is_claimed_whole() -> None:
    planner = node()
    state = replace(planner.empty, offline=CPUSet([3, 4]))
    decision = decide(planner.node, state, alone("a", 2))
    # CPU 4, the first thread of its core, cannot run: that core is passed over.
    assert given_to(decision) == [("2,6", "3,7")]
    assert not decide(planner.node, state, alone("a", 3)).admitted


def test_cores_with_a_reserved_thread_are_passed_over() -> None:
    planner = node(reserved_system_cpus=CPUSet([3]))
    first, second = planner.plan([alone("a", 3), alone("b", 1)]).pods
    assert given_to(first.decision) == [("0,4,6", "1,5,7")]
    assert second.decision.reason == SMT_ISOLATION_ERROR
    with pytest.raises(NodeError, match="leaves no CPU that could be owned"):
        node(use=True, reserved_system_cpus=CPUSet([1, 3, 5, 7]))


def test_hybrid_machines() -> None:
    """Two cores with two threads, four with one."""
    machine = parse_short_form("1s4c2t")
    cpus = tuple(
        replace(cpu, core=cpu.cpu, core_id=10 + cpu.cpu) if cpu.cpu >= 4 else cpu
        for cpu in machine.cpus
    )
    cores = (CPUSet([0, 1]), CPUSet([2, 3]), *(CPUSet([cpu]) for cpu in range(4, 8)))
    planner = Planner(replace(machine, cpus=cpus, cores=cores, kubelet_facts=None), own(use=True))
    (one,) = planner.plan([pod("a", 5)]).pods
    assert given_to(one.decision) == [("2,4-7", "3")]


def test_a_shortage_is_refused_with_its_own_reason() -> None:
    planner = node(topology_manager_policy="single-numa-node")
    decision = decide(planner.node, planner.empty, alone("a", 4))
    assert (decision.admitted, decision.reason) == (False, SMT_ISOLATION_ERROR)
    assert decision.message == (
        "SMT isolation: container c0 is to have 4 cores for itself (smt-isolate), and only 3 of "
        "the 3 that may be owned are free with all of their threads; a scheduler counts one CPU "
        "for each of them, and the node loses them all; end what runs there, ask for fewer CPUs, "
        "or do without smt-isolate"
    )
    # The pool has to have what others have requested.
    crowded = planner.plan([pod("shared", "4500m"), alone("b", 1), alone("c", 1)])
    assert [one.admitted for one in crowded.pods] == [True, False, False]
    assert crowded.pods[1].decision.reason == SMT_ISOLATION_ERROR
    assert "would leave 1 siblings idle" in (crowded.pods[1].decision.message or "")


def test_what_is_idle_is_not_allocatable() -> None:
    planner = node()
    first, second, third = planner.plan([alone("a", 2), pod("b", "2500m"), pod("c", "1")]).pods
    assert first.admitted
    assert second.decision.reason == "OutOfcpu"
    assert "used: 2000, capacity: 4000" in (second.decision.message or "")
    assert third.admitted
    state = planner.plan([alone("a", 2)]).state
    status = node_status(planner.machine, planner.view, planner.config, planner.node, state)
    assert status.allocatable["cpu"].canonical() == "4"
    (zone,) = node_resource_topology(status, "n")["zones"]
    cpu = next(one for one in zone["resources"] if one["name"] == "cpu")
    assert (cpu["capacity"], cpu["allocatable"], cpu["available"]) == ("8", "4", "2")


def test_for_the_node_allocatable_is_its_cores_from_the_start() -> None:
    planner = node(use=True)
    status = node_status(planner.machine, planner.view, planner.config, planner.node, planner.empty)
    assert status.allocatable["cpu"].canonical() == "3"
    admitted = planner.plan([pod("a", 2), pod("b", "1"), pod("c", "100m")]).pods
    assert [one.admitted for one in admitted] == [True, True, False]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["2s4c2t", "2s2c4t", "2s3c1t", "1s4c2t"]),
    st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=4),
    st.frozensets(st.integers(0, 15), max_size=3),
)
def test_what_a_zone_has_available_can_be_had(
    machine: str, asked: list[tuple[int, bool]], offline: frozenset[int]
) -> None:
    """By one pod, on that NUMA node, and no pod of more: a scheduler reads no other numbers."""
    planner = node(machine, use=True, topology_manager_policy="single-numa-node")
    state = replace(planner.empty, offline=CPUSet(offline) & planner.view.topology.cpus)
    for at, (cpus, gone) in enumerate(asked):
        one = pod(f"p{at}", cpus)
        decision = decide(planner.node, state, one)
        state = settle(state, decision)
        if decision.admitted and gone:
            state = release(state, one)
    status = node_status(planner.machine, planner.view, planner.config, planner.node, state)
    zones = [zone.resources["cpu"] for zone in status.zones]
    assert sum(zone.allocatable.value() for zone in zones) == len(status.exclusive)
    most = max(zone.available.value() for zone in zones)
    for count in range(1, most + 2):
        assert decide(planner.node, state, pod("next", count)).admitted == (count <= most)
    if not offline:
        assert status.allocatable["cpu"].value() == len(status.exclusive)


def test_a_machine_without_smt() -> None:
    planner = node("1s4c1t")
    (one,) = planner.plan([alone("a", 2)]).pods
    assert given_to(one.decision) == [("2-3", "None")]
    assert one.decision.notes == (NO_SMT,)
    (other,) = node("1s4c1t", use=True).plan([pod("a", 2)]).pods
    assert other.decision.notes == ()


@pytest.mark.parametrize(
    ("asking", "config", "words"),
    [
        (pod("a", "500m", pod="true"), {}, "there are no exclusive CPUs"),
        (pod("a", 1, "500m", **{"container.c1": "true"}), {}, "there are no exclusive CPUs"),
        (pod("a", 1, pod="yes"), {}, "must be true or false, not 'yes'"),
        (
            pod("a", 1, 1, **{"container.c0": "true"}),
            {"topology_manager_policy": "best-effort", "topology_manager_scope": "pod"},
            "only some of them are to be SMT-isolated",
        ),
        (
            alone("a", 1),
            {"cpu_manager_policy": "none"},
            "there are no exclusive CPUs whose siblings could stay idle",
        ),
    ],
)
def test_what_cannot_be_is_refused(asking: Pod, config: dict[str, Any], words: str) -> None:
    planner = node(**config)
    decision = decide(planner.node, planner.empty, asking)
    assert not decision.admitted
    assert words in (decision.message or "")
    # A kubelet knows no such annotation.
    kubelet = Planner(planner.machine, replace(STATIC, **config))
    assert decide(kubelet.node, kubelet.empty, asking).admitted


def test_an_explanation_says_so() -> None:
    (one,) = explain_pod(node(), [alone("a", 2)], "a").containers
    assert "2 exclusive CPUs: Guaranteed pod with a whole cpu request, alone on their cores" in (
        one.constraint
    )
    explanation = explain_pod(node(), [alone("a", 4)], "a")
    assert "is to have 4 cores for itself" in explanation.containers[0].constraint
    assert any("3 CPUs" in remedy for remedy in explanation.remedies)


def test_each_container_says_for_itself() -> None:
    planner = node(use=True)
    wishes = {"container.c1": "false"}
    (placed,) = planner.plan([pod("a", 1, 2, **wishes)]).pods
    assert given_to(placed.decision) == [("2", "3"), ("4-5", "None")]


def test_init_containers_hand_their_cores_on() -> None:
    planner = node()
    wanted = alone("a", 1, 1, init=3)
    decision = decide(planner.node, planner.empty, wanted)
    assert {name: str(one.claim) for name, one in decision.allocations.items()} == {
        "first": "2-7",
        "c0": "2-3",
        "c1": "4-5",
    }
    ledger = settle(planner.empty, decision).ledger
    assert ledger.idle_siblings == CPUSet([3, 5, 7])
    left = ledger.without("a", "first")
    assert (str(left.default), str(left.idle_siblings)) == ("0-1,6-7", "3,5")


def test_isolated_cpus_are_those_that_are_used() -> None:
    """Only the first threads of two cores are isolated: their siblings need not be."""
    both = OwnPolicies(isolated_cpus=IsolatedCPUs("require"), smt_isolate=SMTIsolate(use=True))
    machine = isolating(parse_short_form("1s4c2t"), CPUSet([4, 6]))
    planner = Planner(machine, replace(STATIC, own=both))
    first, second = planner.plan([pod("a", 2), pod("b", 1)]).pods
    assert given_to(first.decision) == [("4,6", "5,7")]
    assert not second.admitted
    assert "isolated CPUs are required, but only 0" in (second.decision.message or "")


@pytest.mark.parametrize("policy", ["none", "restricted", "single-numa-node"])
def test_what_a_container_has_it_keeps(policy: str) -> None:
    """One container of a kubelet's pod, decided again after the configuration has changed."""
    machine = parse_short_form("2s4c2t")

    def planner(*, use: bool) -> Planner:
        config = replace(own(use=use), topology_manager_policy=policy)
        return Planner(machine, config, rules=SOUND)

    for use in (True, False):
        before, after = planner(use=use), planner(use=not use)
        first = decide_container(before.node, before.empty, pod("a", 3), "c0", {})
        state = settle(before.empty, first)
        again = decide_container(after.node, state, pod("a", 3), "c0", {})
        assert again.admitted
        assert given_to(again) == given_to(first)
        assert settle(state, again).ledger == state.ledger


def test_another_number_after_it_was_made_anew() -> None:
    planner = Planner(parse_short_form("1s4c2t"), own(use=True), rules=SOUND)
    first = decide_container(planner.node, planner.empty, pod("a", 1), "c0", {})
    state = settle(planner.empty, first)
    grown = decide_container(planner.node, state, pod("a", 3), "c0", {})
    assert (given_to(first), given_to(grown)) == ([("2", "3")], [("2,4,6", "3,5,7")])
    ended = {"c0": state.ledger.assignments["a"]["c0"]}
    taken = decide_container(planner.node, state, pod("a", 1, 3), "c1", ended)
    assert given_to(taken) == [("2,4,6", "3,5,7")]


def test_a_resize_is_refused_and_a_rebalance_leaves_it_alone() -> None:
    planner = node()
    state = planner.plan([pod("x", 1), alone("a", 1), pod("b", 2)]).state
    asked = planner.plan([pod("x", 1), alone("a", 1), pod("b", 2)]).pods[1].pod
    decision = decide_resize(planner.node, state, asked, Resize("c0", 2, CPUSet([4])))
    assert (decision.feasible, decision.reason) == (False, "resizeAllocateCPUsError")
    assert "is SMT-isolated (smt-isolate)" in (decision.message or "")
    assert decision.before == decision.after == state.ledger.cpus_of("a", "c0")
    ledger = state.ledger.without("x")
    found = rebalance(planner.node, replace(state, ledger=ledger), RebalanceOptions())
    assert all(owner.pod_uid != "a" for owner in found.plan.start.placed)


def test_moves_of_others_leave_a_claim_as_it_is() -> None:
    """Another container of the same pod moves: what is idle stays so at every step."""
    planner = node("1s8c2t")
    mine = pod("a", 2, 2, **{"container.c0": "true"})
    ledger = planner.plan([mine]).ledger
    assert (str(ledger.cpus_of("a", "c0")), str(ledger.cpus_of("a", "c1"))) == ("2,4", "6-7")
    plan = plan_moves(ledger, [Wish(Owner("a", "c1"), CPUSet([8, 9]))])
    for written in range(len(plan.steps) + 1):
        after_step = with_claims(ledger, after(plan, written))
        assert after_step.violations() == []
        assert str(after_step.idle_siblings) == "3,5"
        assert str(after_step.cpus_of("a", "c0")) == "2,4"
    assert str(with_claims(ledger, plan.end).cpus_of("a", "c1")) == "8-9"


def test_a_state_file_gives_the_siblings_to_nobody_else() -> None:
    """Who reads it without Pinfold sees the cores whole."""
    ledger = node().plan([alone("a", 2)]).state.ledger
    read = to_ledger(to_checkpoint(ledger))
    assert read.default == ledger.default
    assert str(read.cpus_of("a", "c0")) == "2-5"
    assert read.violations() == []


def test_where_nobody_is_isolated_all_is_as_without() -> None:
    pods = [pod("a", 3), pod("b", 2, 1), pod("c", "1500m"), pod("d", 9)]
    ours, theirs = node("2s4c2t").plan(pods), Planner(parse_short_form("2s4c2t"), STATIC).plan(pods)
    for one, other in zip(ours.pods, theirs.pods, strict=True):
        assert one.containers == other.containers
        assert (one.decision.reason, one.decision.message) == (
            other.decision.reason,
            other.decision.message,
        )
    assert ours.ledger == theirs.ledger
