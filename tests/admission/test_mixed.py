"""Mixed containers: what of them is exclusive, who may be one, and that nobody else is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import Node, decide
from pinfold.admission.container import decide_container
from pinfold.admission.decision import Decision
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.settling import settle
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import (
    Container,
    Pod,
    PodResources,
    guaranteed_cpus,
    pod_guaranteed_cpus,
    unmixed,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity

KEY = "mixed-cpus.pinfold.dev"
MACHINE = parse_short_form("1s4c2t")
CPUS = CPUSet(range(8))


def amounts(milli: int) -> dict[str, Quantity]:
    return {"cpu": Quantity(milli, -3), "memory": Quantity(1 << 30)}


def container(name: str, milli: int, *, limited: bool = True) -> Container:
    return Container(name, amounts(milli), amounts(milli) if limited else {})


def pod(*containers: Container, **annotations: str) -> Pod:
    said = {f"{KEY}/{holder.replace('_', '.')}": value for holder, value in annotations.items()}
    return Pod("uid-1", "p", containers=containers, annotations=said)


def node(*, own: bool = True, policy: str = "static", scope: str = "container") -> Node:
    config = NodeConfig(
        cpu_manager_policy=policy,
        reserved_system_cpus=CPUSet([0]),
        topology_manager_policy="single-numa-node",
        topology_manager_scope=scope,
        own=OwnPolicies() if own else None,
    )
    return build_node(MACHINE, config)


def answer(subject: Pod, on: Node | None = None) -> Decision:
    on = on or node()
    return decide(on, empty_state(on, CPUS), subject)


@pytest.mark.parametrize("milli", [1000, 1001, 1999, 2000, 2500, 3999])
@pytest.mark.parametrize("scope", ["container", "pod"])
def test_the_whole_part_of_the_request_is_exclusive(milli: int, scope: str) -> None:
    subject = pod(container("main", milli), container("side", 500), container_main="true")
    decision = answer(subject, node(scope=scope))
    assert decision.admitted
    assert {name: len(one.cpus) for name, one in decision.allocations.items()} == {
        "main": milli // 1000
    }
    assert decision.pod.mixed == {"main"}
    assert decision.requests["cpu"] == milli + 500, "the node counts all that is asked for"


def test_the_exclusive_part_is_that_of_a_whole_request() -> None:
    """Hints, alignment and the choice of CPUs: all of it follows the exclusive part."""
    on, whole = node(), pod(container("main", 2000))
    mixed = answer(pod(container("main", 2900), pod="true"), on)
    plain = answer(whole, on)
    assert mixed.allocations == plain.allocations
    assert mixed.affinities == plain.affinities
    state = settle(empty_state(on, CPUS), mixed)
    assert state.ledger == settle(empty_state(on, CPUS), plain).ledger


@pytest.mark.parametrize(
    ("subject", "told"),
    [
        (pod(container("main", 999), container_main="true"), "main does not ask for a whole CPU"),
        (pod(container("main", 999), pod="true"), "no container of the pod asks"),
        (pod(container("main", 2000, limited=False), pod="true"), "this one is Burstable"),
        (pod(Container("main"), pod="true"), "this one is BestEffort"),
        (pod(container("main", 2000), container_other="true"), "the pod has no container 'other'"),
        (pod(container("main", 2000), pod="yes"), "must be true or false"),
        (
            replace(
                pod(container("main", 2000), pod="true"),
                resources=PodResources(amounts(4000), amounts(4000)),
            ),
            "resources of its own",
        ),
    ],
)
def test_who_cannot_be_mixed_is_rejected(subject: Pod, told: str) -> None:
    decision = answer(subject)
    assert not decision.admitted
    assert decision.message is not None
    assert f"annotation {KEY}/" in decision.message
    assert told in decision.message
    invalid = "must" in told or "no container '" in told
    assert decision.reason == ("InvalidAnnotation" if invalid else "UnexpectedAdmissionError")


def test_a_node_without_exclusive_cpus_has_none_to_mix() -> None:
    decision = answer(pod(container("main", 2500), pod="true"), node(policy="none"))
    assert not decision.admitted
    assert "cpuManagerPolicy: static" in (decision.message or "")


def test_of_a_whole_pod_those_are_mixed_that_can_be() -> None:
    decision = answer(pod(container("main", 1500), container("side", 500), pod="true"))
    assert decision.admitted
    assert decision.allocations.keys() == {"main"}


def test_said_of_one_container_it_is_not_of_the_others() -> None:
    subject = pod(
        container("main", 1500), container("side", 2500), pod="true", container_side="false"
    )
    assert subject.mixed == {"main"}
    assert answer(subject).allocations.keys() == {"main"}


def test_without_the_section_it_is_a_kubelets_pod() -> None:
    on = node(own=False)
    decision = answer(pod(container("main", 2500), pod="perhaps", container_main="true"), on)
    assert decision.admitted
    assert decision.allocations == {}
    assert decision.pod.mixed == frozenset()
    assert answer(pod(container("main", 2000), pod="true"), on).allocations.keys() == {"main"}


def test_an_agent_heeds_it_without_the_section_too() -> None:
    config = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
    on = build_node(MACHINE, config, rules=SOUND)
    assert answer(pod(container("main", 2500), pod="true"), on).allocations.keys() == {"main"}


@given(st.integers(0, 5000), st.sampled_from(["true", "false", "junk", ""]))
def test_a_pod_that_says_nothing_is_as_ever(milli: int, said: str) -> None:
    """What a kubelet sees of a pod has no trace of the annotation."""
    plain = replace(pod(container("main", milli)), annotations={"a": "b"})
    subject = replace(plain, annotations={"a": "b", f"{KEY}/pod": said})
    whole = 0 if milli % 1000 else milli // 1000
    assert guaranteed_cpus(plain, plain.containers[0]) == whole
    wanted = milli // 1000 if said == "true" else whole
    assert guaranteed_cpus(subject, subject.containers[0]) == wanted
    assert pod_guaranteed_cpus(subject) == wanted
    assert guaranteed_cpus(unmixed(subject), subject.containers[0]) == whole
    assert unmixed(subject) == (plain if said == "true" else subject)


# ------------------------------------------------------------------ of a kubelet's containers


def test_one_container_of_a_kubelets_pod() -> None:
    on = node()
    state = empty_state(on, CPUS)
    subject = pod(container("main", 2500), container("side", 500), pod="true")
    assert len(decide_container(on, state, subject, "main", {}).allocations["main"].cpus) == 2
    side = decide_container(on, state, subject, "side", {})
    assert side.admitted
    assert side.allocations == {}
    named = pod(container("side", 500), container_side="true", container_main="true")
    refused = decide_container(on, state, named, "side", {})
    assert not refused.admitted
    assert "side does not ask for a whole CPU" in (refused.message or "")
