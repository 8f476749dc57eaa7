"""Pods that get CPUs as a whole: what they get, how it is divided, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.cpu.static_policy import (
    CPUAllocation,
    PodAllocation,
    PodTransaction,
    SMTAlignmentError,
    StaticPolicy,
)
from pinfold.core.kubelet.faults import KUBELET, SOUND, AllocationRules
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import Pod
from pinfold.core.pod.pod_level import cpu_budget, cpu_shortage, exclusive_cpus
from pinfold.core.topology_manager.hints import (
    AllocationError,
    EmptyPodSharedPoolError,
    TopologyHint,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from tests.scenes.pod_level_pods import container, whole_pod, whole_pods


def static(
    form: str = "1s2n16c2t", rules: AllocationRules = SOUND, *, full: bool = False
) -> StaticPolicy:
    return StaticPolicy.create(
        kubelet_view(parse_short_form(form)).topology,
        StaticPolicyOptions(full_pcpus_only=full),
        reserved_count=1,
        reserved_cpus=CPUSet([0]),
        rules=rules,
        pod_level=True,
    )


def fresh(policy: StaticPolicy) -> PodTransaction:
    return PodTransaction("u", policy.initial_default.mask)


def sets(given: PodAllocation | None) -> tuple[str, str, dict[str, str]]:
    assert given is not None
    parts = {name: str(one.cpus) for name, one in given.containers.items()}
    return str(given.bubble), str(given.pool), parts


SIDE = container("side", "2", "1Mi", sidecar=True)
SHARED_SIDE = container("log", sidecar=True)


def test_containers_have_parts_in_the_order_in_which_they_start() -> None:
    init = (container("first", "4", "1Mi"), container("sees-all"), SIDE, container("late"))
    asked = whole_pod(
        "7", "1Gi", container("a", "3", "1Mi"), container("s"), init=(*init, SHARED_SIDE)
    )
    policy = static("1s1n16c1t")
    draft = fresh(policy)
    bubble, pool, parts = sets(policy.allocate_pod(draft, asked))
    assert (bubble, pool) == ("1-7", "6-7")
    assert parts == {
        "first": "1-4",
        "sees-all": "1-7",
        "side": "1-2",
        "late": "3-7",
        "a": "3-5",
        "s": "6-7",
        "log": "6-7",
    }
    assert CPUSet.from_mask(draft.bubble) == CPUSet.parse("1-7")
    assert CPUSet.from_mask(draft.default) == CPUSet.parse("0,8-15")


def test_a_bubble_is_aligned_first_and_its_parts_are_taken_anywhere_in_it() -> None:
    policy = static("1s2n8c1t")
    asked = whole_pod("5", "1Gi", container("a", "2", "1Mi"), container("s"))
    given = policy.allocate_pod(fresh(policy), asked, TopologyHint(0b10, preferred=True))
    assert sets(given) == ("1,4-7", "5-7", {"a": "1,4", "s": "5-7"})


def test_who_is_not_served_as_a_whole() -> None:
    policy = static()
    fraction = whole_pod("3500m", "1Gi", container("a", "2", "1Mi"))
    burstable = whole_pod("3", "", container("a", "2", "1Mi"))
    ordinary = Pod("u", "u", containers=(container("a", "2", "1Mi"),))
    for asked in (fraction, burstable, ordinary):
        assert policy.allocate_pod(fresh(policy), asked) is None
    assert policy.pod_hints(fresh(policy), fraction) is None
    assert policy.pod_hints(fresh(policy), burstable) is None
    off = replace(policy, pod_level=False)
    whole = whole_pod("3", "1Gi", container("a", "2", "1Mi"))
    assert off.allocate_pod(fresh(off), whole) is None
    assert off.pod_hints(fresh(off), whole) is None
    assert off.allocate(fresh(off), whole, whole.containers[0]) is None


def test_outside_scope_pod_exclusive_containers_are_served_as_ordinary_ones() -> None:
    policy = static("1s1n8c1t")
    asked = whole_pod("3", "1Gi", container("a", "5", "1Mi"), container("s"))
    draft = fresh(policy)
    given = policy.allocate(draft, asked, asked.containers[0])
    assert given is not None
    assert str(given.cpus) == "1-5", "the budget is not looked at"
    assert policy.allocate(draft, asked, asked.containers[1]) is None
    assert draft.bubble == 0
    policy.remove(draft, "a")
    assert draft.default == policy.topology.all


def test_hints_are_for_the_budget() -> None:
    policy = static("1s2n8c1t")
    fits = whole_pod("4", "1Gi", container("a", "1", "1Mi"), container("s"))
    hints = policy.pod_hints(fresh(policy), fits)
    assert hints == [TopologyHint(0b10, preferred=True), TopologyHint(0b11, preferred=False)]
    unsound = whole_pod("1", "1Gi", container("a", "1", "1Mi"), container("s"))
    assert policy.pod_hints(fresh(policy), unsound) == []
    with pytest.raises(EmptyPodSharedPoolError, match="leaving no cpus for shared containers"):
        policy.allocate_pod(fresh(policy), unsound)


def test_whole_cores_are_asked_of_the_budget_alone() -> None:
    policy = static(full=True)
    odd = whole_pod("3", "1Gi", container("a", "2", "1Mi"), container("s"))
    with pytest.raises(SMTAlignmentError, match="requested 3 cpus not multiple"):
        policy.allocate_pod(fresh(policy), odd)
    even = whole_pod("4", "1Gi", container("a", "1", "1Mi"), container("s"))
    _, pool, parts = sets(policy.allocate_pod(fresh(policy), even))
    assert (len(CPUSet.parse(parts["a"])), len(CPUSet.parse(pool))) == (1, 3)


TOO_MUCH = whole_pod("4", "1Gi", container("a", "3", "1Mi"), container("b", "2", "1Mi"))


def test_a_kubelet_loses_the_bubble_whose_parts_do_not_fit() -> None:
    policy = static("1s1n8c1t", KUBELET)
    draft = fresh(policy)
    with pytest.raises(AllocationError, match="requested=2, available=1"):
        policy.allocate_pod(draft, TOO_MUCH)
    assert (CPUSet.from_mask(draft.bubble), draft.assigned) == (CPUSet.parse("1-4"), {})
    policy.remove(draft, "a")
    assert CPUSet.from_mask(draft.default) == CPUSet.parse("0,5-7"), "no container, no release"


def test_a_kubelet_gives_a_restored_pod_another_bubble() -> None:
    asked = whole_pod("2", "1Gi", container("a", "1", "1Mi"), container("b", "1", "1Mi"))
    for rules, again in ((KUBELET, "3-4"), (SOUND, "1-2")):
        policy = static("1s1n8c1t", rules)
        draft = fresh(policy)
        first = policy.allocate_pod(draft, asked)
        assert sets(first)[0] == "1-2"
        assert sets(policy.allocate_pod(draft, asked))[0] == again
        assert draft.default == policy.topology.all & ~(0b11110 if rules == KUBELET else 0b110)


def test_a_pod_that_has_a_bubble_keeps_it() -> None:
    policy = static()
    init = (container("first", "3", "1Mi"), SIDE, SHARED_SIDE)
    asked = whole_pod("7", "1Gi", container("a", "1", "1Mi"), container("s"), init=init)
    draft = fresh(policy)
    first = policy.allocate_pod(draft, asked)
    assert first is not None
    again = policy.allocate_pod(draft, asked, TopologyHint(0b10, preferred=True))
    assert sets(again) == sets(first)
    assert policy.pod_hints(draft, asked) == [
        TopologyHint(0b01, preferred=True),
        TopologyHint(0b11, preferred=False),
    ]
    kubelet = replace(policy, rules=KUBELET)
    assert kubelet.pod_hints(draft, asked) == [], "s has 4 CPUs, and its own request is 0"


@given(asked=whole_pods(), full=st.booleans(), free=st.integers(0, 0xFFFFFFFF), node=st.integers())
def test_bubbles(asked: Pod, free: int, node: int, *, full: bool) -> None:
    policy = static(full=full)
    draft = PodTransaction("u", policy.initial_default.mask & free)
    before, budget = replace(draft, assigned={}), cpu_budget(asked)
    affinity = TopologyHint(node % 3 + 1, preferred=True)
    try:
        given_out = policy.allocate_pod(draft, asked, affinity)
    except EmptyPodSharedPoolError:
        assert draft == before
        assert cpu_shortage(asked)
        return
    except AllocationError:
        assert draft == before
        return
    assert not budget or cpu_shortage(asked) is None
    if given_out is None:
        assert budget == 0
        assert draft == before
        return
    bubble = given_out.bubble
    assert len(bubble) == budget
    assert bubble.mask == draft.bubble == before.default & ~draft.default
    assert not given_out.not_free
    parts = {name: one.cpus for name, one in given_out.containers.items()}
    assert set(parts) == {one.name for one in asked.all_containers}
    assert {name: cpus.mask for name, cpus in parts.items()} == draft.assigned
    together = CPUSet()
    for one in asked.all_containers:
        assert parts[one.name]
        assert parts[one.name] <= bubble
        if exclusive_cpus(one):
            assert len(parts[one.name]) == exclusive_cpus(one)
        if exclusive_cpus(one) and (one.is_sidecar or one in asked.containers):
            assert not parts[one.name] & together, "who runs at one time shares nothing"
            together |= parts[one.name]
        elif one.is_sidecar or one in asked.containers:
            assert parts[one.name] == given_out.pool
    assert given_out.pool == bubble - together
    for name in list(draft.assigned):
        assert draft.default == before.default & ~bubble.mask
        policy.remove(draft, name)
    assert draft == before


@given(whole_pods())
def test_an_init_container_never_has_what_a_sidecar_before_it_has(asked: Pod) -> None:
    policy = static()
    try:
        given_out = policy.allocate_pod(fresh(policy), asked)
    except AllocationError:
        return
    sidecars = CPUSet()
    containers: dict[str, CPUAllocation] = {} if given_out is None else given_out.containers
    for init in asked.init_containers:
        if init.name not in containers:
            continue
        cpus = containers[init.name].cpus
        if not init.is_sidecar or exclusive_cpus(init):
            assert not cpus & sidecars
        if init.is_sidecar and exclusive_cpus(init):
            sidecars |= cpus


def test_only_exclusive_containers_have_hints() -> None:
    policy = static()
    one = container("c", "1500m", "1Mi")
    asked = whole_pod("3", "1Gi", one)
    assert policy.container_hints(fresh(policy), asked, one) is None
    more = {**one.requests, "cpu": Quantity(2)}
    whole = replace(one, requests=more, limits=more)
    assert policy.container_hints(fresh(policy), asked, whole)


@given(asked=whole_pods(), free=st.integers(0, 0xFFFFFFFF))
def test_both_rules_give_a_new_pod_the_same(asked: Pod, free: int) -> None:
    answers = []
    for rules in (KUBELET, SOUND):
        policy = static(rules=rules)
        draft = PodTransaction("u", policy.initial_default.mask & free)
        try:
            answers.append((policy.allocate_pod(draft, asked), "", draft.assigned))
        except AllocationError as error:
            answers.append((None, str(error), draft.assigned))
    assert answers[0] == answers[1]
