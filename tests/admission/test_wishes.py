"""Pods whose containers wish for different CPUs: what a kubelet promises of their place holds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import decide
from pinfold.admission.decision import Decision
from pinfold.admission.settling import settle
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import IsolatedCPUs, OwnPolicies, SMTIsolate
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import Pod, guaranteed_cpus
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.planner import Planner
from tests.scenes.manager_harness import isolating
from tests.scenes.planned_pods import planned_pod

SINGLE = {"topology_manager_policy": "single-numa-node", "topology_manager_scope": "pod"}
WHOLE = {"cpu_manager_policy_options": {"full-pcpus-only": "true"}}
WISHES = {
    "isolated-cpus": ["never", "prefer", "require"],
    "smt-isolate": ["true", "false"],
    "mixed-cpus": ["true"],
}


def planner(
    form: str, isolated: str | CPUSet, use: Any, *, alone: Any = False, **config: Any
) -> Planner:
    machine = parse_short_form(form)
    found = CPUSet.parse(isolated) if isinstance(isolated, str) else isolated & machine.online
    own = OwnPolicies(isolated_cpus=IsolatedCPUs(use), smt_isolate=SMTIsolate(use=alone))
    # A reserved core is reserved as a whole: else a kubelet itself may tear it.
    core = next(one for one in machine.cores if 0 in one)
    reserved = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=core, own=own)
    return Planner(isolating(machine, found), replace(reserved, **config))


def placed(decision: Decision) -> dict[str, str]:
    return {name: str(one.cpus) for name, one in decision.allocations.items()}


def of_container(name: str, wish: str) -> dict[str, str]:
    return {f"isolated-cpus.pinfold.dev/container.{name}": wish}


def test_one_wish_of_a_pod_that_is_aligned_as_a_whole() -> None:
    """Each container is shown what the pod was aligned by, though it needs less than the pod."""
    node = planner("2s4c1t", "4-5", "prefer", **SINGLE)
    decision = decide(node.node, node.empty, planned_pod("a", side1=1, c0=2))
    assert placed(decision) == {"side1": "1", "c0": "2-3"}
    assert decision.notes == (
        "not on isolated CPUs: too few of 4-5 were free for container side1",
        "not on isolated CPUs: too few of 4-5 were free for container c0",
    )


def test_different_wishes_in_a_pod_that_is_aligned_as_a_whole() -> None:
    node = planner("2s4c1t", "2-5", "prefer", **SINGLE)
    asking = planned_pod("a", annotations=of_container("a", "never"), a=2, b=1)
    decision = decide(node.node, node.empty, asking)
    # What is only preferred costs nothing.
    assert placed(decision) == {"a": "1-2", "b": "3"}
    assert decision.notes == ()
    both = planned_pod("a", annotations=of_container("a", "require"), a=1, b=1)
    assert placed(decide(node.node, node.empty, both)) == {"a": "2", "b": "3"}
    node = planner("2s4c1t", "2-5", "never", **SINGLE)
    asking = planned_pod("a", annotations=of_container("a", "require"), a=3, b=1)
    decision = decide(node.node, node.empty, asking)
    assert (decision.admitted, decision.reason) == (False, "UnexpectedAdmissionError")
    assert decision.message == (
        "topologyManagerScope: pod aligns all containers of a pod at once, and only some of them "
        "are to have isolated CPUs; say isolated-cpus.pinfold.dev/pod for all of them, or use "
        "scope container"
    )


def test_what_is_preferred_and_cannot_be_aligned_is_noted() -> None:
    node = planner("2s4c1t", "3,7", "prefer", topology_manager_policy="single-numa-node")
    decision = decide(node.node, node.empty, planned_pod("a", c0=2))
    assert placed(decision) == {"c0": "1-2"}
    assert decision.notes == ("not on isolated CPUs: 3,7 did not do for container c0",)


@pytest.mark.parametrize(
    ("use", "isolated", "cpus"),
    [
        ("prefer", "2,4,6-7", "2-5"),
        ("prefer", "2-5", "2-5"),
        ("prefer", "2-3", "4-7"),
        ("require", "2-3,6-7", "2-3,6-7"),
    ],
)
def test_whole_cores_are_isolated_as_a_whole(use: str, isolated: str, cpus: str) -> None:
    node = planner("1s4c2t", isolated, use, **WHOLE)
    assert placed(decide(node.node, node.empty, planned_pod("a", c0=4))) == {"c0": cpus}


def test_half_cores_are_not_what_full_pcpus_only_requires() -> None:
    node = planner("1s4c2t", "2,4,6-7", "require", **WHOLE)
    decision = decide(node.node, node.empty, planned_pod("a", c0=4))
    assert (decision.admitted, decision.reason) == (False, "SMTAlignmentError")
    assert "available physical CPUs = 2, requested CPUs = 4" in (decision.message or "")


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    cpus: dict[str, Any] = {}
    for name in draw(st.sampled_from([(), ("first_",), ("side",), ("first_", "side")])):
        cpus[name] = draw(st.integers(1, 4))
    for name in ("c0", "c1")[: draw(st.integers(1, 2))]:
        cpus[name] = draw(st.sampled_from([1, 2, 2, 3, 4, "500m", "2500m"]))
    said = {}
    for wish, values in WISHES.items():
        for name in draw(st.lists(st.sampled_from(["", *cpus]), max_size=2, unique=True)):
            holder = f"container.{name.rstrip('_')}" if name else "pod"
            said[f"{wish}.pinfold.dev/{holder}"] = draw(st.sampled_from(values))
    return planned_pod(draw(st.sampled_from("abcdefgh")), annotations=said, **cpus)


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(["2s4c1t", "2s4c2t", "4s2c2t", "2s2n2c2t"]),
    st.frozensets(st.integers(0, 15), min_size=1),
    st.sampled_from(["never", "prefer", "require"]),
    st.booleans(),
    st.sampled_from(["restricted", "single-numa-node"]),
    st.sampled_from(["container", "pod"]),
    st.sampled_from([{}, WHOLE]),
    st.lists(pods(), min_size=1, max_size=4, unique_by=lambda pod: pod.uid),
)
def test_strict_policies_hold_for_everybody(  # noqa: PLR0917 - a world
    form: str,
    isolated: frozenset[int],
    use: str,
    alone: bool,
    policy: str,
    scope: str,
    options: dict[str, Any],
    wanted: list[Pod],
) -> None:
    aligned = {"topology_manager_policy": policy, "topology_manager_scope": scope}
    node = planner(form, CPUSet(isolated), use, alone=alone, **aligned, **options)
    topology, state = node.view.topology, node.empty
    for pod in wanted:
        decision = decide(node.node, state, pod)
        state = settle(state, decision)
        for name, given_to in decision.allocations.items():
            affinity = decision.affinity[name]
            assert affinity.preferred
            nodes = [n for n, cpus in topology.numa_nodes.items() if cpus & given_to.cpus.mask]
            if affinity.mask is not None:
                assert all(affinity.mask >> number & 1 for number in nodes)
            if policy == "single-numa-node":
                assert len(nodes) == 1
            asked = next(one for one in pod.all_containers if one.name == name)
            assert len(given_to.cpus) == guaranteed_cpus(decision.pod, asked)
            for core in topology.cores.values():
                if options and given_to.idle is None and core & given_to.cpus.mask:
                    assert not core & ~given_to.cpus.mask
        if policy == "single-numa-node" and scope == "pod" and decision.allocations:
            assert len({decision.affinity[name].mask for name in decision.allocations}) == 1
