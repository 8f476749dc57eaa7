"""A resize never breaks what an admission keeps, whatever the options, scopes and policies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.resize import Resize, decide_resize, settle_resize
from pinfold.admission.settling import settle
from pinfold.core.cpu.hints import least_nodes
from pinfold.core.moves.resize import NOT_ALLOCATED, ResizeDecision, resized
from pinfold.core.pod.pod import Pod, pod_guaranteed_cpus
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.planned_pods import planned_pod
from tests.scenes.resized_nodes import POLICIES, admitted, cpus, node, permitted

MACHINES = ["1s4c2t", "2s3c2t", "4s2c2t", "2s2n4c2t", "2s4c1t"]


def running(pod: Pod) -> set[str]:
    """Without init containers: these have ended."""
    return {one.name for one in pod.all_containers} - {
        one.name for one in pod.init_containers if not one.is_sidecar
    }


def broken(where: Node, state: NodeState, pods: dict[str, Pod], config: dict[str, Any]) -> set[str]:
    """What does not hold of what the node was configured to keep."""
    assert where.cpu_policy is not None
    topology = where.cpu_policy.topology
    found: set[str] = set()
    if state.ledger.violations():
        found.add("ledger")
    policy, options = config["topology_manager_policy"], config["cpu_manager_policy_options"]

    def judge(name: str, held: int, asked: int) -> None:
        nodes = sum(bool(node & held) for node in topology.numa_nodes.values())
        if policy == "single-numa-node" and nodes > 1:
            found.add(name)
        strict = policy == "restricted" and "align-by-socket" not in options
        if strict and nodes > least_nodes(topology, asked):
            found.add(name)

    for uid, pod in pods.items():
        all_of_it = 0
        for name, held in state.ledger.used_by(uid).items():
            if name not in running(pod):
                continue
            all_of_it |= held.mask
            cores = topology.cores.values()
            if "full-pcpus-only" in options and any(
                core & held.mask not in {0, core} for core in cores
            ):
                found.add("cores")
            if config["topology_manager_scope"] == "container":
                judge("container", held.mask, len(held))
        if config["topology_manager_scope"] == "pod":
            judge("pod", all_of_it, pod_guaranteed_cpus(pod))
    return found


AMOUNTS = st.integers(1, 4)


@given(
    st.sampled_from(MACHINES),
    st.sampled_from(permitted()),
    st.sampled_from(POLICIES),
    st.sampled_from(["container", "pod"]),
    st.sets(st.integers(0, 7), min_size=1, max_size=2),
    st.lists(
        st.fixed_dictionaries(
            {"c0": AMOUNTS}, optional={"init_": AMOUNTS, "side": AMOUNTS, "c1": AMOUNTS}
        ),
        min_size=1,
        max_size=4,
    ),
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["c0", "side", "c1"]), st.integers(1, 8)),
        min_size=1,
        max_size=5,
    ),
)
@settings(max_examples=600)
def test_a_resize_keeps_what_an_admission_keeps(  # noqa: PLR0917 - what is drawn
    machine: str,
    options: dict[str, str],
    policy: str,
    scope: str,
    reserved: set[int],
    asked: list[dict[str, Any]],
    resizes: list[tuple[int, str, int]],
) -> None:
    if policy == "single-numa-node" and "align-by-socket" in options:
        return  # no kubelet starts
    config = {
        "cpu_manager_policy_options": options,
        "topology_manager_policy": policy,
        "topology_manager_scope": scope,
    }
    where, state = node(machine, reserved_system_cpus=CPUSet(reserved), **config)
    # Odd numbers would be refused at once.
    width = 2 if "full-pcpus-only" in options and machine.endswith("2t") else 1
    pods: dict[str, Pod] = {}
    for number, sizes in enumerate(asked):
        pod = planned_pod(f"p{number}", **{name: width * size for name, size in sizes.items()})
        decision = decide(where, state, pod)
        if decision.admitted:
            state, pods[pod.uid] = settle(state, decision), pod
    before = broken(where, state, pods, config)
    baselines = {uid: state.ledger.used_by(uid) for uid in pods}
    for number, name, count in resizes:
        pod_now = pods.get(f"uid-p{number}")
        if pod_now is None or name not in running(pod_now):
            continue
        baseline = baselines[pod_now.uid].get(name)
        count *= width  # noqa: PLW2901 - as above
        answer = decide_resize(where, state, pod_now, Resize(name, count, baseline))
        event("feasible" if answer.feasible else str(answer.reason))
        if answer.feasible:
            state = settle_resize(state, pod_now, answer)
            pods[pod_now.uid] = resized(pod_now, name, count)
        assert broken(where, state, pods, config) <= before


def asked_of(where: Node, state: NodeState, pod: Pod, count: int) -> ResizeDecision:
    state = admitted(where, state, pod)
    baseline = state.ledger.cpus_of(pod.uid, "c0")
    return decide_resize(where, state, pod, Resize("c0", count, baseline))


@pytest.mark.parametrize(
    ("machine", "reserved", "count", "after"),
    [("2s3c2t", "0", 6, "2-7"), ("4s2c2t", "5,9", 6, "0-3,6-7")],
)
def test_cores_that_are_reserved_in_part_are_not_taken(
    machine: str, reserved: str, count: int, after: str
) -> None:
    where, state = node(
        machine,
        reserved_system_cpus=cpus(reserved),
        cpu_manager_policy_options={"full-pcpus-only": "true"},
    )
    grown = asked_of(where, state, planned_pod("p", c0=2), count)
    assert grown.feasible, grown.message
    assert str(grown.after) == after


def test_an_init_container_that_has_ended_makes_no_room_in_a_numa_node() -> None:
    where, state = node(
        "4s2c2t",
        reserved_system_cpus=cpus("0"),
        topology_manager_policy="single-numa-node",
        topology_manager_scope="pod",
    )
    answer = asked_of(where, state, planned_pod("p", init_=4, c0=1), 4)
    assert answer.reason == NOT_ALLOCATED
    assert "TopologyAffinityError" in (answer.message or "")


@pytest.mark.parametrize(("count", "milli"), [(2, 2500), (3, 3500)])
def test_a_mixed_container_keeps_its_part_of_the_shared_pool(count: int, milli: int) -> None:
    where, state = node()
    where = replace(where, mixes=True)
    pod = planned_pod("p", annotations={"mixed-cpus.pinfold.dev/pod": "true"}, c0="2500m")
    state = admitted(where, state, pod)
    held = state.ledger.cpus_of(pod.uid, "c0")
    decision = decide_resize(where, state, pod, Resize("c0", count, held))
    assert decision.feasible, decision.message
    after = settle_resize(state, pod, decision)
    assert after.requested["cpu"] == milli
    assert len(decision.after) == count


def test_what_is_to_be_kept_in_a_shrink_says_nothing_of_a_grow() -> None:
    where, state = node()
    pod = planned_pod("p", c0=2)
    state = admitted(where, state, pod)
    held = state.ledger.cpus_of(pod.uid, "c0")
    grown = decide_resize(where, state, pod, Resize("c0", 4, held, keep=cpus("3,9")))
    assert grown.feasible, grown.message
    assert held is not None
    assert grown.after > held
