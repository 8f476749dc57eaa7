"""Decisions about pods: CPUs first, capacity after them, and the kubelet's exact words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, decide
from pinfold.admission.decision import Decision
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.settling import settle
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity

CRITICAL = 2_000_000_000
NOT_ENOUGH = (
    "Allocate failed due to not enough cpus available to satisfy request: "
    "requested=4, available=3, which is unexpected"
)
NOBODY_TO_PUSH_OUT = (
    "Unexpected error while attempting to recover from admission failure: preemption: "
    "error finding a set of pods to preempt: no set of running pods found to reclaim "
    "resources: [(res: cpu, q: 250), ]"
)


def amounts(**texts: str) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity.parse(text) for name, text in texts.items()}


def container(name: str, restart_policy: str | None = None, **texts: str) -> Container:
    return Container(name, amounts(**texts), amounts(**texts), restart_policy)


def pod(name: str, *containers: Container, init: tuple[Container, ...] = ()) -> Pod:
    return Pod(uid=name, name=name, init_containers=init, containers=containers)


def guaranteed(name: str, cpu: str) -> Pod:
    return pod(name, container("c", cpu=cpu, memory="64Mi"))


def burstable(name: str, cpu: str) -> Pod:
    return pod(name, Container("c", amounts(cpu=cpu)))


def node(
    form: str = "1s4c1t",
    reserved: str = "0",
    *,
    policy: str = "static",
    options: dict[str, str] | None = None,
    **more: Any,
) -> tuple[Node, NodeState]:
    machine = parse_short_form(form)
    config = NodeConfig(
        cpu_manager_policy=policy,
        reserved_system_cpus=CPUSet.parse(reserved),
        cpu_manager_policy_options=options or {},
        **more,
    )
    built = build_node(machine, config)
    return built, empty_state(built, machine.online)


def walk(where: tuple[Node, NodeState], *pods: Pod) -> tuple[list[Decision], NodeState]:
    subject, state = where
    decisions = []
    for each in pods:
        decision = decide(subject, state, each)
        state = settle(state, decision)
        decisions.append(decision)
    return decisions, state


def answer(decision: Decision) -> tuple[bool, str | None, str | None]:
    return decision.admitted, decision.reason, decision.message


def test_out_of_cpu() -> None:
    decisions, _ = walk(node(), burstable("a", "2"), burstable("b", "4"))
    assert answer(decisions[0]) == (True, None, None)
    assert answer(decisions[1]) == (
        False,
        "OutOfcpu",
        "Node didn't have enough resource: cpu, requested: 4000, used: 2000, capacity: 3000",
    )


def test_out_of_memory() -> None:
    large = pod("a", container("c", memory="1Ti"))
    (decision,), _ = walk(node("1s4c1t@1Gi"), large)
    assert (decision.admitted, decision.reason) == (False, "OutOfmemory")
    assert str(decision.message).startswith(
        "Node didn't have enough resource: memory, requested: 1099511627776, used: 0, capacity: "
    )


def test_out_of_pods() -> None:
    pods = [pod(str(i), Container("c")) for i in range(3)]
    decisions, state = walk(node(max_pods=2), *pods)
    assert [d.admitted for d in decisions] == [True, True, False]
    assert answer(decisions[2])[1:] == (
        "OutOfpods",
        "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2",
    )
    assert state.pods == 2


def test_exclusive_cpus_come_before_capacity() -> None:
    """Too many exclusive CPUs are the CPU manager's refusal, though capacity lacks too."""
    (decision,), _ = walk(node(), guaranteed("a", "4"))
    assert answer(decision) == (
        False,
        UNEXPECTED_ADMISSION_ERROR,
        NOT_ENOUGH,
    )
    assert walk(node(policy="none"), guaranteed("a", "4"))[0][0].reason == "OutOfcpu"


def test_capacity_that_burstable_pods_took() -> None:
    """The CPUs are there to give, but not the capacity."""
    decisions, state = walk(node(), burstable("a", "2"), guaranteed("b", "3"))
    assert decisions[1].reason == "OutOfcpu"
    assert decisions[1].changes == ()
    assert state.ledger == node()[1].ledger


def test_smt_alignment() -> None:
    options = {"full-pcpus-only": "true"}
    (decision,), _ = walk(node("1s4c2t", options=options), guaranteed("a", "1"))
    assert answer(decision) == (
        False,
        "SMTAlignmentError",
        "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2",
    )


def test_topology_affinity() -> None:
    where = node("2s4c1t", topology_manager_policy="single-numa-node")
    decisions, _ = walk(where, guaranteed("a", "4"), guaranteed("b", "4"))
    assert decisions[0].admitted
    assert answer(decisions[1]) == (
        False,
        "TopologyAffinityError",
        "Resources cannot be allocated with Topology locality",
    )


@pytest.mark.parametrize("change", [{"static": True}, {"priority": CRITICAL}])
def test_critical_pods_find_nobody_to_push_out(change: dict[str, Any]) -> None:
    critical = replace(burstable("b", "1250m"), **change)
    decisions, _ = walk(node(), burstable("a", "2"), critical)
    assert answer(decisions[1]) == (
        False,
        "UnexpectedAdmissionError",
        NOBODY_TO_PUSH_OUT,
    )


def test_a_critical_pod_of_which_there_are_too_many() -> None:
    critical = replace(pod("b", Container("c")), static=True)
    decisions, _ = walk(node(max_pods=1), pod("a", Container("c")), critical)
    assert str(decisions[1].message).endswith("resources: [(res: pods, q: 1), ]")


def test_a_high_priority_alone_changes_nothing() -> None:
    high = replace(burstable("b", "4"), priority=CRITICAL - 1)
    assert walk(node(), high)[0][0].reason == "OutOfcpu"


def test_a_rejected_pod_holds_nothing() -> None:
    """Though its first container could have had its CPUs."""
    options = {"full-pcpus-only": "true"}
    two_steps = pod(
        "a", container("x", cpu="2", memory="1Mi"), container("y", cpu="1", memory="1Mi")
    )
    where = node("1s4c2t", options=options)
    (refused, next_one), state = walk(where, two_steps, guaranteed("b", "2"))
    assert (refused.admitted, refused.failed_container) == (False, "y")
    assert (refused.changes, dict(refused.allocations)) == ((), {})
    assert next_one.admitted
    assert str(state.ledger.cpus_of("b", "c")) == "2-3"
    assert (state.pods, dict(state.requested)) == (1, {"cpu": 2000, "memory": 64 << 20})


def test_init_containers_lend_their_cpus() -> None:
    subject = pod(
        "a",
        container("c", cpu="2", memory="1Mi"),
        init=(container("i", cpu="3", memory="1Mi"), container("j", cpu="1", memory="1Mi")),
    )
    (decision,), state = walk(node(), subject)
    given_cpus = {name: str(a.cpus) for name, a in decision.allocations.items()}
    assert given_cpus == {"i": "1-3", "j": "1", "c": "1-2"}
    assert str(state.ledger.default) == "0"


def test_resources_that_nobody_manages_are_left_out() -> None:
    asks = pod("a", Container("c", amounts(cpu="1") | {"example.com/gpu": Quantity(1)}))
    assert walk(node(), asks)[0][0].admitted
    pages = pod("a", container("c", hugepages_2Mi="2Mi"))
    assert walk(node(), pages)[0][0].reason == "OutOfhugepages-2Mi"


def test_a_pod_that_asks_for_nothing_fits_a_full_node() -> None:
    decisions, _ = walk(node(), burstable("a", "3"), pod("b", Container("c")))
    assert [d.admitted for d in decisions] == [True, True]


sizes = st.lists(
    st.tuples(st.sampled_from(["1", "2", "3", "500m", "1500m"]), st.booleans()), max_size=8
)


@given(sizes, st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]))
def test_what_is_admitted_fits_and_what_is_not_changes_nothing(
    asked: list[tuple[str, bool]], policy: str
) -> None:
    subject, state = node("2s4c1t", "0", topology_manager_policy=policy)
    for number, (cpu, exclusive) in enumerate(asked):
        name = str(number)
        each = guaranteed(name, cpu) if exclusive else burstable(name, cpu)
        decision = decide(subject, state, each)
        after = settle(state, decision)
        assert (decision.reason is None) == (decision.message is None) == decision.admitted
        if not decision.admitted:
            assert after == state
        state = after
        assert state.requested.get("cpu", 0) <= subject.allocatable["cpu"]
        assert not state.ledger.violations()
