"""Load-driven containers: admitted as static would, shared at first, and charged all the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, charged, decide, place
from pinfold.admission.decision import Decision
from pinfold.admission.model import build_node, empty_state
from pinfold.admission.resize import Resize, decide_resize
from pinfold.admission.settling import recount, release, resume, settle
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import LoadDrivenOptions, OwnPolicies, SMTIsolate
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.resize import resized
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity

KEY = "load-driven.pinfold.dev/pod"
MACHINE = parse_short_form("2s4c2t")
CPUS = CPUSet(range(16))
POLICIES = st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"])


def pod(uid: str, *counts: int, init: int = 0, **annotations: str) -> Pod:
    def container(name: str, count: int) -> Container:
        amounts = {"cpu": Quantity(count, 0), "memory": Quantity(1 << 20)}
        return Container(name, amounts, amounts)

    said = {KEY: "true"} | {
        f"{key.replace('_', '-')}.pinfold.dev/pod": v for key, v in annotations.items()
    }
    return Pod(
        uid,
        uid,
        containers=tuple(container(f"c{at}", count) for at, count in enumerate(counts)),
        init_containers=(container("init", init),) if init else (),
        annotations={key: value for key, value in said.items() if value},
    )


def static(subject: Pod) -> Pod:
    return replace(subject, annotations={})


def node(policy: str = "none", scope: str = "container", *, smt: bool = False) -> Node:
    config = NodeConfig(
        cpu_manager_policy="dynamic",
        reserved_system_cpus=CPUSet([0]),
        topology_manager_policy=policy,
        topology_manager_scope=scope,
        own=OwnPolicies(load_driven=LoadDrivenOptions(use=True), smt_isolate=SMTIsolate(use=smt)),
    )
    return build_node(MACHINE, config, rules=SOUND)


def admitted(on: Node, state: NodeState, subject: Pod) -> tuple[Decision, NodeState]:
    decision = decide(on, state, subject)
    return decision, settle(state, decision)


def charges(state: NodeState) -> int:
    """What load-driven containers may have, and do not own."""
    return sum(
        count
        for uid, one in state.load_driven.items()
        for name, count in one.counts().items()
        if state.ledger.cpus_of(uid, name) is None
    )


def test_it_starts_in_the_shared_pool_and_its_cpus_are_charged() -> None:
    on = node()
    decision, state = admitted(on, empty_state(on, CPUS), pod("a", 10))
    assert decision.admitted
    assert not decision.allocations
    assert [len(one.cpus) for one in decision.load_driven.values()] == [10]
    assert state.ledger.default == CPUS
    assert state.requested["cpu"] == 10_000
    refused, _ = admitted(on, state, static(pod("b", 6)))
    assert refused.reason == "UnexpectedAdmissionError"
    assert refused.message is not None
    assert (
        "not enough cpus available to satisfy request: requested=6, available=5" in refused.message
    )
    fits, _ = admitted(on, state, static(pod("b", 5)))
    assert fits.admitted


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 6), min_size=1, max_size=2), st.booleans())),
    st.sampled_from(["none", "best-effort"]),
)
def test_admission_answers_as_static_would(pods: list[tuple[list[int], bool]], policy: str) -> None:
    on = node(policy)
    by_load = as_static = empty_state(on, CPUS)
    for at, (counts, is_load_driven) in enumerate(pods):
        subject = pod(f"p{at}", *counts)
        asked = subject if is_load_driven else static(subject)
        one, by_load = admitted(on, by_load, asked)
        other, as_static = admitted(on, as_static, static(subject))
        assert (one.admitted, one.reason, one.message) == (
            other.admitted,
            other.reason,
            other.message,
        )
        assert one.requests == other.requests
        assert by_load.requested == as_static.requested


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(1, 4), min_size=1, max_size=2),
            st.sampled_from(["by-load", "static", "promote", "demote", "end"]),
        ),
        max_size=16,
    ),
    POLICIES,
    st.sampled_from(["container", "pod"]),
)
def test_what_is_charged_is_always_there(
    steps: list[tuple[list[int], str]], policy: str, scope: str
) -> None:
    """Whoever comes, goes, is promoted or demoted: by its number everybody has what he asks for."""
    on = node(policy, scope)
    assert on.cpu_policy is not None
    state = empty_state(on, CPUS)
    for at, (counts, kind) in enumerate(steps):
        containers = [(uid, name) for uid, one in state.load_driven.items() for name in one.names]
        owning = [one for one in containers if state.ledger.cpus_of(*one) is not None]
        sharing = [one for one in containers if one not in owning]
        if kind in {"by-load", "static"}:
            subject = pod(f"p{at}", *counts)
            _, state = admitted(on, state, subject if kind == "by-load" else static(subject))
        elif kind == "promote" and sharing:
            uid, name = sharing[counts[0] % len(sharing)]
            seen = charged(on, state, Owner(uid, name))
            found = place(on, seen, state.load_driven[uid].pod, name)
            if found.admitted:
                claim = found.allocations[name].claim
                assert len(claim) == state.load_driven[uid].counts()[name]
                ledger = state.ledger.with_assignment(uid, name, claim)
                state = replace(state, ledger=ledger)
        elif kind == "demote" and owning:
            ledger = state.ledger.without(*owning[counts[0] % len(owning)])
            state = replace(state, ledger=ledger)
        elif kind == "end" and state.load_driven:
            one = next(iter(state.load_driven.values()))
            state = release(state, one.pod)
        free = state.ledger.default & on.cpu_policy.assignable
        assert charges(state) <= len(free)
        seen = charged(on, state)
        assert len(seen.ledger.default & on.cpu_policy.assignable) == len(free) - charges(state)
        assert not seen.ledger.violations()
        assert state.requested.get("cpu", 0) <= 15_000


def test_an_init_container_has_its_own_and_is_counted_once() -> None:
    on = node()
    decision, state = admitted(on, empty_state(on, CPUS), pod("a", 3, init=5))
    assert set(decision.allocations) == {"init"}
    assert set(decision.load_driven) == {"c0"}
    _, state = admitted(on, state, static(pod("b", 10)))
    assert state.pods == 2
    ended = replace(state, ledger=state.ledger.without("a", "init"))
    assert len(charged(on, ended).ledger.cpus_of("a", "c0") or ()) == 3


def test_a_resize_of_it_is_charged_and_its_end_is_not() -> None:
    on = node()
    _, state = admitted(on, empty_state(on, CPUS), pod("a", 4))
    grown = resized(pod("a", 4), "c0", 7)
    state = recount(state, pod("a", 4), grown)
    assert charges(state) == 7
    assert charges(release(state, grown)) == 0


def test_who_shares_by_load_is_told_when_it_can_be_resized() -> None:
    on = node()
    subject = pod("a", 4)
    _, state = admitted(on, empty_state(on, CPUS), subject)
    decision = decide_resize(on, state, subject, Resize("c0", 6, None))
    assert not decision.feasible
    assert decision.message is not None
    assert "has its CPUs by load, and shares the pool now, charged with 4" in decision.message
    found = place(on, charged(on, state, Owner("a", "c0")), subject, "c0")
    claim = found.allocations["c0"].claim
    owning = replace(state, ledger=state.ledger.with_assignment("a", "c0", claim))
    grown = decide_resize(on, owning, subject, Resize("c0", 6, claim))
    assert (grown.feasible, len(grown.after)) == (True, 6)


def test_it_is_charged_after_a_restart_whatever_its_annotation_says() -> None:
    on = node()
    state = resume(empty_state(on, CPUS), static(pod("a", 4)), ["c0"])
    assert charges(state) == 4
    assert len(charged(on, state).ledger.exclusive) == 4


def test_what_cannot_be_both_is_refused() -> None:
    on = node()
    empty = empty_state(on, CPUS)
    mixed = decide(on, empty, pod("a", 2, mixed_cpus="true"))
    assert mixed.message is not None
    assert "cannot be mixed as well" in mixed.message
    alone = decide(node(smt=True), empty, pod("a", 2))
    assert alone.message is not None
    assert "cannot be SMT-isolated as well" in alone.message
    unread = decide(on, empty, replace(pod("a", 2), annotations={KEY: "yes"}))
    assert not unread.admitted


@pytest.mark.parametrize("use", [False, True])
def test_without_the_option_it_is_static(use: bool) -> None:
    on = replace(node(), load_driven=use)
    decision = decide(on, empty_state(on, CPUS), pod("a", 2))
    assert bool(decision.allocations) is not use
