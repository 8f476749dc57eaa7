"""A resize: the rules of KEP-5554 under every policy and all options that go together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.resize import Resize, decide_resize, settle_resize
from pinfold.admission.settling import settle
from pinfold.core.moves.owners import MoveOptions
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.resize import (
    INCONSISTENT,
    NO_BASELINE,
    NOT_ALLOCATED,
    PROHIBITED,
    RESIZE_REASONS,
    ResizeDecision,
)
from pinfold.core.pod.pod import Container, Pod, PodResources
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from tests.scenes.resized_nodes import POLICIES, admitted, cpus, node, permitted


def pod(uid: str, *cpus: object, **more: str) -> Pod:
    def container(name: str, cpu: object) -> Container:
        both = {n: Quantity.parse(str(a)) for n, a in {"cpu": cpu, "memory": "1Gi", **more}.items()}
        return Container(name, both, both)

    return Pod(
        uid=uid, name=uid, containers=tuple(container(f"c{n}", c) for n, c in enumerate(cpus))
    )


class Running:
    """One pod on a node."""

    def __init__(self, where: Node, state: NodeState, what: Pod) -> None:
        self.node, self.pod = where, what
        self.state = admitted(where, state, what)
        self.baseline = self.state.ledger.cpus_of(what.uid, "c0")

    def resize(self, count: int, **more: Any) -> ResizeDecision:
        ask = Resize("c0", count, **{"baseline": self.baseline, **more})
        return decide_resize(self.node, self.state, self.pod, ask)

    def resized(self, count: int, **more: Any) -> ResizeDecision:
        decision = self.resize(count, **more)
        assert decision.feasible, decision.message
        self.state = settle_resize(self.state, self.pod, decision)
        self.pod = replace(
            self.pod, containers=(pod("x", count).containers[0], *self.pod.containers[1:])
        )
        return decision


def nodes_of(where: Node, held: CPUSet) -> set[int]:
    assert where.cpu_policy is not None
    return {where.cpu_policy.topology.by_cpu[cpu].numa_node for cpu in held}


def whole(where: Node, held: CPUSet) -> bool:
    assert where.cpu_policy is not None
    cores = where.cpu_policy.topology.cores.values()
    return all(core & held.mask in {0, core} for core in cores)


@given(
    st.sampled_from(permitted()),
    st.sampled_from(POLICIES),
    st.sampled_from(["container", "pod"]),
    st.tuples(
        st.lists(st.integers(1, 9), max_size=4),
        st.integers(1, 8),
        st.lists(st.integers(1, 14), min_size=1, max_size=4),
    ),
    st.data(),
)
@settings(max_examples=300)
def test_what_a_resize_keeps(
    options: dict[str, str],
    policy: str,
    scope: str,
    sizes: tuple[list[int], int, list[int]],
    data: st.DataObject,
) -> None:
    others, first, counts = sizes
    if policy == "single-numa-node" and "align-by-socket" in options:
        return  # no kubelet starts
    where, state = node(
        cpu_manager_policy_options=options,
        topology_manager_policy=policy,
        topology_manager_scope=scope,
    )
    for number, count in enumerate(others):
        state = settle(state, decide(where, state, pod(f"o{number}", count)))
    mine = pod("p", first, *data.draw(st.sampled_from([(), (2,)])))
    if not decide(where, state, mine).admitted:
        return
    run = Running(where, state, mine)
    assert run.baseline is not None
    for count in counts:
        ledger = run.state.ledger
        held = ledger.cpus_of("p", "c0")
        free = (ledger.default - ledger.limits.reserved) & ledger.limits.machine
        assert held is not None
        decision = run.resize(count)
        assert decision.before == held
        if not decision.feasible:
            assert decision.reason in RESIZE_REASONS
            assert decision.message
            assert decision.after == held
            assert settle_resize(run.state, run.pod, decision) is run.state
            continue
        assert len(decision.after) == count >= len(run.baseline)
        assert decision.after >= run.baseline == decision.baseline
        if count >= len(held):
            assert held <= decision.after <= held | free
        else:
            assert decision.after <= held
        if "full-pcpus-only" in options:
            assert whole(where, decision.after)
        if policy == "single-numa-node":
            assert len(nodes_of(where, decision.after)) == 1
        assert where.cpu_policy is not None
        near = where.cpu_policy.topology
        inside = sum(
            len(free & CPUSet.from_mask(near.numa_nodes[n])) for n in nodes_of(where, held)
        )
        if count - len(held) <= inside and "align-by-socket" not in options:
            assert nodes_of(where, decision.after) <= nodes_of(where, held), "affinity is kept"
        plan = plan_moves(ledger, [decision.wish(1.0)], MoveOptions(pool_may_be_empty=True))
        assert all(placed == decision.after for placed in plan.end.placed.values())
        run.resized(count)
        assert run.state.ledger.violations() == []


@given(
    st.sampled_from(permitted()),
    st.sampled_from(POLICIES),
    st.integers(1, 6),
    st.lists(st.integers(1, 14), min_size=2, max_size=4),
    st.data(),
)
def test_below_the_baseline_it_stays_within_it(
    options: dict[str, str], policy: str, first: int, counts: list[int], data: st.DataObject
) -> None:
    if policy == "single-numa-node" and "align-by-socket" in options:
        return  # no kubelet starts
    where, state = node(cpu_manager_policy_options=options, topology_manager_policy=policy)
    if not decide(where, state, pod("p", first)).admitted:
        return
    run = Running(where, state, pod("p", first))
    for count in counts:
        held, baseline = run.state.ledger.cpus_of("p", "c0"), run.baseline
        assert held is not None
        assert baseline is not None
        keep = CPUSet(data.draw(st.sets(st.sampled_from(sorted(held)), max_size=2)))
        decision = run.resize(count, below_baseline=True, keep=keep)
        if not decision.feasible:
            continue
        if count < len(held):
            assert keep <= decision.after <= held
        assert decision.after >= baseline or decision.after <= baseline | keep
        run.resized(count, below_baseline=True, keep=keep)
        run.baseline = decision.baseline


def test_there_are_combinations_to_hold_under() -> None:
    assert len(permitted()) == 28
    assert {} in permitted()


def test_growing_and_shrinking_by_the_example_of_the_proposal() -> None:
    run = Running(*node("1s6c2t", reserved_system_cpus=cpus("0")), pod("p", 4))
    first = run.baseline
    assert first is not None
    eight = run.resized(8).after
    assert eight > first
    six = run.resized(6).after
    assert first < six < eight
    back = run.resized(4)
    assert back.after == first
    assert run.state.requested["cpu"] == 4000


def test_below_the_baseline_only_where_it_is_allowed() -> None:
    run = Running(*node(), pod("p", 4))
    refused = run.resize(2)
    assert (refused.reason, refused.feasible) == (PROHIBITED, False)
    assert (
        refused.message
        == "container c0 was admitted with 4 CPUs (2-5) and keeps them; 2 are too few"
    )
    fewer = run.resize(2, below_baseline=True)
    assert fewer.after == fewer.baseline
    assert len(fewer.after) == 2
    assert run.baseline is not None
    first, second, third, _ = run.baseline
    these = CPUSet([first, third])
    assert run.resize(2, below_baseline=True, keep=these).after == these
    assert second in run.resize(3, below_baseline=True, keep=CPUSet([second])).after


def test_these_are_kept_where_that_is_wished() -> None:
    run = Running(*node(), pod("p", 2))
    grown = run.resized(6).after
    last = CPUSet([max(grown - run.baseline)]) if run.baseline else CPUSet()
    assert run.resize(3, keep=last).after == (run.baseline or CPUSet()) | last
    assert run.resize(4, keep=cpus("12")).reason == PROHIBITED
    over = run.resize(3, keep=grown - (run.baseline or CPUSet()))
    assert over.reason == PROHIBITED
    assert "are more than 3" in (over.message or "")


@pytest.mark.parametrize(
    ("what", "config", "count", "more", "reason", "words"),
    [
        (pod("p", "1500m"), {}, 2, {}, INCONSISTENT, "runs on the shared pool"),
        (pod("p", 2), {"cpu_manager_policy": "none"}, 4, {}, INCONSISTENT, "nobody has CPUs"),
        (pod("p", 2), {}, 0, {}, INCONSISTENT, "a whole number of them"),
        (pod("p", 2), {}, 4, {"baseline": None}, NO_BASELINE, "it is not known which CPUs"),
        (pod("p", 2), {}, 60, {}, NOT_ALLOCATED, "requested=60, available=30"),
        (
            pod("p", 2),
            {"cpu_manager_policy_options": {"full-pcpus-only": "true"}},
            3,
            {},
            NOT_ALLOCATED,
            "SMTAlignmentError: SMT Alignment Error: requested 3 cpus not multiple cpus per core",
        ),
        (
            pod("p", 2),
            {"topology_manager_policy": "single-numa-node"},
            10,
            {},
            NOT_ALLOCATED,
            "TopologyAffinityError: Resources cannot be allocated with Topology locality",
        ),
    ],
)
def test_what_is_infeasible(  # noqa: PLR0917 - a table
    what: Pod, config: dict[str, Any], count: int, more: dict[str, Any], reason: str, words: str
) -> None:
    run = Running(*node(**config), what)
    decision = run.resize(count, **more)
    assert decision.reason == reason
    assert words in (decision.message or "")
    assert decision.after == decision.before


def test_a_pod_with_resources_of_its_own_is_infeasible() -> None:
    run = Running(*node(), pod("p", 2))
    amounts = run.pod.containers[0].requests
    run.pod = replace(run.pod, resources=PodResources(amounts, amounts))
    assert run.resize(4).reason == INCONSISTENT


def test_memory_stays_aligned_or_the_resize_is_refused() -> None:
    memory = {
        "memory_manager_policy": "Static",
        "system_reserved": {"memory": Quantity.parse("1Gi")},
        "reserved_memory": ({"numaNode": 0, "limits": {"memory": Quantity.parse("1Gi")}},),
    }
    strict = Running(
        *node("2s2n8c2t@16Gi", topology_manager_policy="restricted", **memory), pod("p", 4)
    )
    assert strict.resize(6).feasible
    refused = strict.resize(12)
    assert refused.reason == NOT_ALLOCATED
    assert "TopologyAffinityError" in (refused.message or "")
    lax = Running(
        *node("2s2n8c2t@16Gi", topology_manager_policy="best-effort", **memory), pod("p", 4)
    )
    assert lax.resize(12).feasible


def test_the_node_has_to_have_room_for_the_request() -> None:
    run = Running(*node(), pod("p", 4))
    burst = Container("c0", {"cpu": Quantity.parse("24")})
    run.state = admitted(run.node, run.state, Pod(uid="b", name="b", containers=(burst,)))
    refused = run.resize(8)
    assert refused.reason == NOT_ALLOCATED
    assert refused.message == (
        "OutOfcpu: Node didn't have enough resource: cpu, requested: 4000, used: 28000, "
        "capacity: 30000"
    )
    assert run.resize(6).feasible


def test_a_further_resize_while_a_shrink_is_announced() -> None:
    run = Running(*node(), pod("p", 2))
    grown = run.resized(8).after
    assert run.baseline is not None
    coming = run.baseline | CPUSet(sorted(grown)[-3:])
    further = run.resize(3, coming=coming).after
    assert further < coming, "a second shrink is a part of what was announced"
    between = run.resize(6, coming=coming).after
    assert coming < between < grown, "what was announced stays"
    assert run.resize(9, coming=coming).after > grown
    assert run.resize(8, coming=coming).after == grown


def test_offline_cpus_are_given_to_nobody() -> None:
    run = Running(*node("1s4c2t", reserved_system_cpus=cpus("0-1")), pod("p", 2))
    free = run.state.ledger.default - cpus("0-1")
    run.state = replace(run.state, offline=free)
    assert run.resize(4).reason == NOT_ALLOCATED
