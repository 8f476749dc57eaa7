"""Better places on a node, and room for pods that it rejects."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.moves import with_claims
from pinfold.admission.rebalance import make_room_for, options_of, rebalance, who_may_move
from pinfold.admission.settling import release, settle
from pinfold.core.devices.devices import DeviceInventory
from pinfold.core.devices.state import DeviceState
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.machine import PCIFunction
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.owners import MoveError, Owner
from pinfold.core.moves.rebalance import RebalanceOptions
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from tests.scenes.resource_world import listed

ANY = RebalanceOptions()


def node(form: str = "2s4c1t@16Gi", **config: Any) -> tuple[Node, NodeState]:
    machine = parse_short_form(form)
    usual: dict[str, Any] = {
        "cpu_manager_policy": "static",
        "reserved_system_cpus": CPUSet([0]),
        "topology_manager_policy": "single-numa-node",
        "eviction_hard": {},
    }
    built = build_node(machine, NodeConfig(**usual | config))
    return built, empty_state(built, machine.online)


def pod(uid: str, *cpus: int, **more: str) -> Pod:
    both = [
        {name: Quantity.parse(str(n)) for name, n in {"cpu": c, "memory": "1Gi", **more}.items()}
        for c in cpus
    ]
    containers = tuple(Container(f"c{n}", each, each) for n, each in enumerate(both))
    return Pod(uid=uid, name=uid, containers=containers)


def after(where: Node, state: NodeState, *pods: Pod) -> NodeState:
    for each in pods:
        decision = decide(where, state, each)
        assert decision.admitted, decision.message
        state = settle(state, decision)
    return state


def fragmented(**config: Any) -> tuple[Node, NodeState]:
    """Two CPUs free at each of two NUMA nodes."""
    where, state = node(**config)
    ones = [pod(f"p{n}", 1) for n in range(7)]
    state = after(where, state, *ones)
    by_node: dict[bool, list[Pod]] = {False: [], True: []}
    for one in ones:
        by_node[min(state.ledger.cpus_of_pod(one.uid)) >= 4].append(one)
    for pods, count in ((by_node[False], 2), (by_node[True], 2)):
        for one in pods[:count]:
            state = release(state, one)
    return where, state


def test_a_pod_that_is_rejected_is_admitted_after_moves() -> None:
    where, state = fragmented()
    asked = pod("big", 3)
    refused = decide(where, state, asked)
    assert refused.reason == "TopologyAffinityError"
    found = make_room_for(where, state, asked, ANY)
    assert len(found.wishes) == 1
    moved = replace(state, ledger=with_claims(state.ledger, found.plan.end))
    assert decide(where, moved, asked).admitted


def test_containers_get_room_one_after_the_other() -> None:
    where, state = node("2s5c1t@16Gi")
    ones = [pod(f"p{n}", 1) for n in range(9)]
    state = after(where, state, *ones)
    for one in ones:
        if min(state.ledger.cpus_of_pod(one.uid)) in {1, 2, 3, 5, 6, 7}:
            state = release(state, one)
    asked = pod("two", 4, 2)
    assert not decide(where, state, asked).admitted
    found = make_room_for(where, state, asked, ANY)
    moved = replace(state, ledger=with_claims(state.ledger, found.plan.end))
    assert decide(where, moved, asked).admitted


def test_room_that_cannot_be_made_is_refused() -> None:
    where, state = fragmented()
    with pytest.raises(MoveError, match="no moves make room for pod 'big'; end or shrink"):
        make_room_for(where, state, pod("big", 5), ANY)
    stay = RebalanceOptions(fixed={Owner(uid, "c0"): "" for uid in state.ledger.assignments})
    with pytest.raises(MoveError, match="no moves"):
        make_room_for(where, state, pod("big", 3), stay)


def test_memory_keeps_its_owner_under_a_strict_policy() -> None:
    where, state = fragmented(
        memory_manager_policy="Static",
        system_reserved={"memory": Quantity.parse("1Gi")},
        reserved_memory=({"numaNode": 0, "limits": {"memory": Quantity.parse("1Gi")}},),
    )
    with pytest.raises(MoveError, match="no moves"):
        make_room_for(where, state, pod("big", 3), ANY)
    here = {Owner(uid, "c0"): CPUSet([0]) for uid in state.ledger.assignments}
    along = RebalanceOptions(mems=here)
    with_memory = options_of(where, state, along)
    assert with_memory.within == {}
    assert rebalance(where, state, along).wishes == ()


def test_a_container_goes_to_its_device() -> None:
    inventory: DeviceInventory = listed(gpu=[(1,)])
    where, state = node(topology_manager_policy="none")
    state = replace(state, devices=DeviceState(inventory))
    asked = pod("p", 2, **{"example.com/gpu": "1"})
    state = after(where, state, asked)
    assert max(state.ledger.cpus_of_pod("p")) < 4, "nobody has aligned it"
    found = rebalance(where, state, ANY)
    assert found.before == (0, 0, 0, 0, 20, 0)
    assert found.after == (0, 0, 0, 0, 0, 0)
    assert min(found.wishes[0].cpus) >= 4


def test_what_the_policy_spreads_is_not_held_against_it() -> None:
    gates = {"CPUManagerPolicyAlphaOptions": True}
    where, state = node(
        "2s4c2t",
        topology_manager_policy="none",
        cpu_manager_policy_options={"distribute-cpus-across-cores": "true"},
        feature_gates=gates,
    )
    state = after(where, state, pod("p", 2))
    assert options_of(where, state, ANY).levels == (
        *("numa-nodes", "sockets", "uncore-caches", "distance", "parked"),
    )
    assert rebalance(where, state, ANY).wishes == ()


def test_policy_none_has_nothing_to_move() -> None:
    where, state = node(cpu_manager_policy="none")
    with pytest.raises(MoveError, match="set cpuManagerPolicy to dynamic"):
        rebalance(where, state, ANY)


@given(st.lists(st.integers(1, 4), max_size=8), st.sets(st.integers(0, 7)), st.integers(1, 4))
def test_whatever_room_is_made_admits_the_pod(sizes: list[int], gone: set[int], count: int) -> None:
    where, state = node("2s6c1t@16Gi")
    for number, size in enumerate(sizes):
        state = settle(state, decide(where, state, pod(f"p{number}", size)))
    for number in gone:
        if f"p{number}" in state.ledger.assignments:
            state = release(state, pod(f"p{number}", sizes[number]))
    asked = pod("big", count)
    try:
        found = make_room_for(where, state, asked, ANY)
    except MoveError:
        assert not decide(where, state, asked).admitted
        return
    assert bool(found.wishes) != decide(where, state, asked).admitted


@given(
    st.sampled_from(["2s4c2t", "4s2c2t", "2s2n4c2t"]),
    st.sampled_from(["single-numa-node", "restricted"]),
    st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), min_size=4, max_size=9),
    st.sets(st.integers(0, 8)),
    st.integers(1, 4),
)
@settings(max_examples=150)
def test_a_strict_policy_holds_for_pods_as_a_whole(
    form: str, policy: str, pods: list[list[int]], gone: set[int], count: int
) -> None:
    where, state = node(form, topology_manager_policy=policy, topology_manager_scope="pod")
    for number, sizes in enumerate(pods):
        state = settle(state, decide(where, state, pod(f"p{number}", *sizes)))
    for number in gone:
        if f"p{number}" in state.ledger.assignments:
            state = release(state, pod(f"p{number}", *pods[number]))
    found = []
    for plan in (rebalance, partial(make_room_for, pod=pod("big", count, 1))):
        with suppress(MoveError):
            found.append(plan(where, state, options=ANY))
    for each in found:
        moved = with_claims(state.ledger, each.plan.end)
        for uid in moved.assignments:
            assert nodes_of(where, moved.cpus_of_pod(uid)) <= nodes_of(
                where, state.ledger.cpus_of_pod(uid)
            )


def nodes_of(where: Node, cpus: CPUSet) -> int:
    assert where.cpu_policy is not None
    nodes = where.cpu_policy.topology.numa_nodes.values()
    return sum(bool(members & cpus.mask) for members in nodes)


def test_a_pod_makes_room_as_a_whole_where_it_is_judged_so() -> None:
    where, state = node("2s4c1t@16Gi", topology_manager_scope="pod")
    first, pair = pod("first", 3), pod("pair", 1, 1)
    state = release(after(where, state, first, pair), first)
    assert min(state.ledger.cpus_of_pod("pair")) >= 4
    asked = pod("big", 4)
    assert not decide(where, state, asked).admitted
    found = make_room_for(where, state, asked, ANY)
    assert {wish.owner.container for wish in found.wishes} == {"c0", "c1"}
    limited = replace(ANY, most_moved=1)
    with pytest.raises(MoveError):
        make_room_for(where, state, asked, limited)


def cards() -> tuple[Node, NodeState]:
    """A network card at each of two NUMA nodes; CPU 0 is reserved."""
    machine = parse_short_form("2s4c1t")
    functions = tuple(
        PCIFunction(f"0000:{16 + at:02x}:00.0", "0x020000", one.id, one.cpus, (f"eth{at}",))
        for at, one in enumerate(machine.numa_nodes)
    )
    machine = replace(machine, pci=functions)
    config = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
    built = build_node(machine, config, rules=SOUND)
    return built, empty_state(built, machine.online)


def wishing(uid: str, card: str, policy: str, *cpus: int) -> Pod:
    said = {"near.pinfold.dev/pod": card, "near-policy.pinfold.dev/pod": policy}
    return replace(pod(uid, *cpus), annotations=said)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.sampled_from(["eth0", "eth1", ""]),
            st.sampled_from(["required", "preferred"]),
            st.booleans(),
        ),
        max_size=7,
    ),
    st.integers(1, 4),
)
@settings(max_examples=150)
def test_who_is_to_be_near_a_device_stays_there(
    rows: list[tuple[int, str, str, bool]], count: int
) -> None:
    where, state = cards()
    pods = [
        (wishing(f"p{n}", card, policy, size) if card else pod(f"p{n}", size), stays)
        for n, (size, card, policy, stays) in enumerate(rows)
    ]
    for one, _ in pods:
        state = settle(state, decide(where, state, one))
    admitted = [(one, stays) for one, stays in pods if one.uid in state.ledger.assignments]
    for one, _ in (row for row in admitted if not row[1]):
        state = release(state, one)
    running = [one for one, stays in admitted if stays]
    options = who_may_move(where, state, running)
    found = [rebalance(where, state, options)]
    asked = wishing("big", "eth1", "required", count)
    with suppress(MoveError):
        room = make_room_for(where, state, asked, options)
        assert room.room <= CPUSet(range(4, 8))
        found.append(room)
    for each in found:
        moved = with_claims(state.ledger, each.plan.end)
        for one in running:
            card = one.annotations.get("near.pinfold.dev/pod", "")
            here = CPUSet(range(4) if card == "eth0" else range(4, 8))
            if one.annotations.get("near-policy.pinfold.dev/pod") == "required":
                assert moved.cpus_of_pod(one.uid) <= here


def test_who_prefers_to_be_near_a_device_goes_there() -> None:
    where, state = cards()
    first, friend = pod("first", 3), wishing("friend", "eth0", "preferred", 2)
    state = release(after(where, state, first, friend), first)
    assert min(state.ledger.cpus_of_pod("friend")) >= 4
    found = rebalance(where, state, who_may_move(where, state, [friend]))
    assert found.before == (0, 0, 0, 0, 20, 0)
    assert [max(wish.cpus) < 4 for wish in found.wishes] == [True]
