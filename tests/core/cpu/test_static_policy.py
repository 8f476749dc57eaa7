"""The static policy: what it gives, what it keeps back, what it refuses and in which words."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.cpu.choice import ReservationError
from pinfold.core.cpu.static_policy import (
    PodTransaction,
    SMTAlignmentError,
    StaticPolicy,
)
from pinfold.core.kubelet.faults import SOUND
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.pod import Container, Pod, PodResources
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from tests.scenes.strategies import topologies

ANYWHERE = TopologyHint(None, preferred=True)


def container(name: str, cpu: str | int, restart_policy: str | None = None) -> Container:
    both = {"cpu": Quantity.parse(str(cpu)), "memory": Quantity(1)}
    return Container(name, both, both, restart_policy)


def pod(uid: str, *cpus: str | int, init: tuple[Container, ...] = ()) -> Pod:
    containers = tuple(container(f"c{i}", cpu) for i, cpu in enumerate(cpus))
    return Pod(uid=uid, name=uid, init_containers=init, containers=containers)


def machine(form: str) -> CPUTopology:
    return kubelet_view(parse_short_form(form)).topology


def static(form: str, reserved: str = "0", **options: bool) -> StaticPolicy:
    cpus = CPUSet.parse(reserved)
    return StaticPolicy.create(
        machine(form),
        StaticPolicyOptions(**options),
        reserved_count=len(cpus),
        reserved_cpus=cpus,
    )


def fresh(policy: StaticPolicy, uid: str = "p") -> PodTransaction:
    return PodTransaction(uid, policy.initial_default.mask)


@dataclass(slots=True)
class Walk:
    """Admits one pod after the other, as a node does."""

    policy: StaticPolicy
    default: int
    pods: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, subject: Pod) -> bool:
        draft = PodTransaction(subject.uid, self.default)
        try:
            for each in subject.all_containers:
                self.policy.allocate(draft, subject, each, ANYWHERE)
        except AllocationError:
            return False
        self.default, self.pods[subject.uid] = draft.default, draft.assigned
        return True

    def remove(self, uid: str) -> None:
        draft = PodTransaction(uid, self.default, self.pods.pop(uid))
        for name in list(draft.assigned):
            self.policy.remove(draft, name)
        self.default = draft.default

    @property
    def owned(self) -> list[int]:
        return [cpus for containers in self.pods.values() for cpus in containers.values()]


OPTIONS = st.sampled_from(
    [
        StaticPolicyOptions(),
        StaticPolicyOptions(full_pcpus_only=True),
        StaticPolicyOptions(strict_cpu_reservation=True),
        StaticPolicyOptions(distribute_cpus_across_numa=True),
        StaticPolicyOptions(distribute_cpus_across_cores=True),
        StaticPolicyOptions(prefer_align_cpus_by_uncorecache=True),
        StaticPolicyOptions(full_pcpus_only=True, prefer_align_cpus_by_uncorecache=True),
    ]
)


@st.composite
def policies(draw: st.DrawFn, options: st.SearchStrategy[StaticPolicyOptions]) -> StaticPolicy:
    """A policy on an even machine with some CPUs reserved, by sound rules."""
    topology = draw(topologies(even=True))
    cpus = [row.cpu for row in topology.rows]
    reserved = CPUSet(draw(st.sets(st.sampled_from(cpus), min_size=1, max_size=4)))
    return StaticPolicy.create(
        topology,
        draw(options),
        reserved_count=len(reserved),
        reserved_cpus=reserved,
        rules=SOUND,
    )


pod_sizes = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=3), max_size=6)


@given(policies(OPTIONS), pod_sizes)
def test_every_cpu_has_one_owner(policy: StaticPolicy, sizes: list[list[int]]) -> None:
    """Disjoint, never reserved, as many as asked for; all back in the end."""
    walk = Walk(policy, policy.initial_default.mask)
    for number, cpus in enumerate(sizes):
        before = walk.default
        if not walk.add(pod(f"p{number}", *cpus)):
            assert walk.default == before
            continue
        given_sizes = [mask.bit_count() for mask in walk.pods[f"p{number}"].values()]
        assert given_sizes == cpus
        everything = sum(mask.bit_count() for mask in walk.owned)
        union = 0
        for mask in walk.owned:
            union |= mask
        assert union.bit_count() == everything
        assert union & policy.reserved.mask == 0
        assert union | walk.default == policy.initial_default.mask
        assert union & walk.default == 0
    for uid in list(walk.pods):
        walk.remove(uid)
    assert walk.default == policy.initial_default.mask


@given(policies(st.just(StaticPolicyOptions(full_pcpus_only=True))), pod_sizes)
def test_whole_cores_only(policy: StaticPolicy, sizes: list[list[int]]) -> None:
    walk = Walk(policy, policy.initial_default.mask)
    for number, cpus in enumerate(sizes):
        walk.add(pod(f"p{number}", *cpus))
    cores = policy.topology.cores.values()
    for mask in walk.owned:
        assert all(mask & core in (0, core) for core in cores)
        assert mask & policy.reserved_cores.mask == 0


@given(policies(OPTIONS), st.integers(0, 6), st.integers(1, 8))
def test_a_hint_can_be_kept(policy: StaticPolicy, taken: int, asked: int) -> None:
    """Allocating with a hint stays within its nodes; without a hint there is no allocation."""
    walk = Walk(policy, policy.initial_default.mask)
    walk.add(pod("other", taken))
    subject = pod("p", asked)
    hints = policy.container_hints(
        PodTransaction("p", walk.default), subject, subject.containers[0]
    )
    assert hints is not None
    free = walk.default & ~policy.reserved.mask
    assert bool(hints) == (free.bit_count() >= asked)
    for hint in hints:
        assert hint.mask is not None
        draft = PodTransaction("p", walk.default)
        try:
            allocation = policy.allocate(draft, subject, subject.containers[0], hint)
        except SMTAlignmentError:
            assert policy.options.full_pcpus_only
            continue
        assert allocation is not None
        nodes = {policy.topology.by_cpu[cpu].numa_node for cpu in allocation.cpus}
        assert all(hint.mask >> node & 1 for node in nodes)
        assert not allocation.not_free


@given(policies(OPTIONS), st.integers(1, 8))
def test_the_hints_of_what_is_assigned_are_those_that_hold_it(
    policy: StaticPolicy, asked: int
) -> None:
    subject = pod("p", asked)
    (only,) = subject.containers
    draft = fresh(policy)
    try:
        policy.allocate(draft, subject, only, ANYWHERE)
    except AllocationError:
        return
    nodes = {
        policy.topology.by_cpu[cpu].numa_node for cpu in CPUSet.from_mask(draft.assigned[only.name])
    }
    hints = policy.container_hints(draft, subject, only)
    assert hints == policy.pod_hints(draft, subject)
    assert hints
    assert all(hint.mask and all(hint.mask >> node & 1 for node in nodes) for hint in hints)


def test_an_affinity_is_kept_as_far_as_it_goes() -> None:
    policy = static("2s2c2t", "0")
    subject = pod("p", 5)
    draft = fresh(policy)
    allocation = policy.allocate(
        draft, subject, subject.containers[0], TopologyHint(0b10, preferred=False)
    )
    assert allocation is not None
    assert str(allocation.cpus) == "1,4-7"


@pytest.mark.parametrize("affinity", [None, ANYWHERE, TopologyHint(None, preferred=False)])
def test_no_affinity_is_anywhere(affinity: TopologyHint | None) -> None:
    policy = static("2s2c2t", "0")
    subject = pod("p", 2)
    allocation = policy.allocate(fresh(policy), subject, subject.containers[0], affinity)
    assert allocation is not None
    assert str(allocation.cpus) == "2-3"


@pytest.mark.parametrize("cpu", ["500m", "1500m", "0"])
def test_who_uses_the_shared_pool(cpu: str) -> None:
    policy = static("2s2c2t")
    subject = pod("p", cpu)
    draft = fresh(policy)
    assert policy.container_hints(draft, subject, subject.containers[0]) is None
    assert policy.pod_hints(draft, subject) is None
    assert policy.allocate(draft, subject, subject.containers[0]) is None
    assert draft == fresh(policy)


def test_a_pod_with_resources_of_its_own_uses_the_shared_pool() -> None:
    policy = static("2s2c2t")
    (only,) = pod("p", 2).containers
    whole = PodResources(only.requests, only.limits)
    subject = Pod(uid="p", name="p", containers=(only,), resources=whole)
    draft = fresh(policy)
    assert policy.container_hints(draft, subject, only) is None
    assert policy.pod_hints(draft, subject) is None
    assert policy.allocate(draft, subject, only) is None


def test_too_few_cpus() -> None:
    policy = static("1s2c2t")
    subject = pod("p", 4)
    draft = fresh(policy)
    with pytest.raises(AllocationError) as error:
        policy.allocate(draft, subject, subject.containers[0])
    assert str(error.value) == (
        "not enough cpus available to satisfy request: requested=4, available=3"
    )
    assert draft == fresh(policy)


def test_a_request_that_is_no_whole_core() -> None:
    policy = static("1s4c2t", full_pcpus_only=True)
    subject = pod("p", 3)
    with pytest.raises(SMTAlignmentError) as error:
        policy.allocate(fresh(policy), subject, subject.containers[0])
    assert str(error.value) == (
        "SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    )
    assert error.value.reason == "SMTAlignmentError"


def test_too_few_whole_cores() -> None:
    """The sibling of a reserved CPU is free, but is no whole core."""
    policy = static("1s2c2t", "0", full_pcpus_only=True)
    subject = pod("p", 4)
    with pytest.raises(SMTAlignmentError) as error:
        policy.allocate(fresh(policy), subject, subject.containers[0])
    assert str(error.value) == (
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, "
        "requested CPUs = 4, CPUs per core = 2"
    )


def test_an_init_containers_cpus_are_used_again() -> None:
    policy = static("1s8c1t")
    subject = pod("p", 2, 3, init=(container("i", 4),))
    draft = fresh(policy)
    given_cpus = {}
    for each in subject.all_containers:
        allocation = policy.allocate(draft, subject, each, ANYWHERE)
        assert allocation is not None
        given_cpus[each.name] = str(allocation.cpus)
    assert given_cpus == {"i": "1-4", "c0": "1-2", "c1": "3-5"}
    assert str(CPUSet.from_mask(draft.default)) == "0,6-7"


def test_an_init_container_that_has_its_cpus_passes_them_on() -> None:
    policy = static("1s8c1t")
    subject = pod("p", 2, init=(container("i", 4),))
    before = fresh(policy)
    policy.allocate(before, subject, subject.init_containers[0], ANYWHERE)
    # Asked again, as after a restart: what was reusable is not on record.
    draft = PodTransaction("p", before.default, dict(before.assigned))
    for each in subject.all_containers:
        policy.allocate(draft, subject, each, ANYWHERE)
    assert {name: str(CPUSet.from_mask(m)) for name, m in draft.assigned.items()} == {
        "i": "1-4",
        "c0": "1-2",
    }
    assert draft.default == before.default


def test_a_sidecars_cpus_are_its_own() -> None:
    policy = static("1s8c1t")
    subject = pod("p", 2, init=(container("s", 2, "Always"), container("i", 2)))
    draft = fresh(policy)
    for each in subject.all_containers:
        policy.allocate(draft, subject, each, ANYWHERE)
    assert {name: str(CPUSet.from_mask(m)) for name, m in draft.assigned.items()} == {
        "s": "1-2",
        "i": "3-4",
        "c0": "3-4",
    }
    policy.remove(draft, "i")
    assert str(CPUSet.from_mask(draft.default)) == "0,5-7"


def test_a_container_keeps_what_it_has() -> None:
    policy = static("1s8c1t")
    subject = pod("p", 2)
    draft = fresh(policy)
    first = policy.allocate(draft, subject, subject.containers[0])
    again = policy.allocate(draft, subject, subject.containers[0])
    assert first is not None
    assert again is not None
    assert again.cpus == first.cpus


def test_hints_are_impossible_where_another_number_is_assigned() -> None:
    policy = static("1s8c1t")
    subject = pod("p", 2)
    draft = PodTransaction("p", 0b11110000, {"c0": 0b0111})
    assert policy.container_hints(draft, subject, subject.containers[0]) == []
    assert policy.pod_hints(draft, subject) == []


def test_reserved_cpus_are_chosen_like_an_allocation() -> None:
    policy = StaticPolicy.create(machine("2s4c2t"), StaticPolicyOptions(), reserved_count=3)
    assert str(policy.reserved) == "0-2"
    assert str(policy.reserved_cores) == "0-3"
    assert str(policy.assignable) == "3-15"
    assert str(policy.initial_default) == "0-15"


def test_strict_reservation_keeps_the_shared_pool_off_them() -> None:
    policy = static("1s4c1t", "0,3", strict_cpu_reservation=True)
    assert str(policy.initial_default) == "1-2"


@pytest.mark.parametrize(
    ("count", "cpus", "words"),
    [
        (2, "0", "unable to reserve the required amount of CPUs (size of 0 did not equal 2)"),
        (5, "", "unable to reserve the required amount of CPUs (size of  did not equal 5)"),
        (1, "9", "unable to build the reserved physical CPUs from the reserved set: unknown CPU"),
    ],
)
def test_cpus_that_cannot_be_reserved(count: int, cpus: str, words: str) -> None:
    with pytest.raises(ReservationError) as error:
        StaticPolicy.create(
            machine("1s4c1t"),
            StaticPolicyOptions(),
            reserved_count=count,
            reserved_cpus=CPUSet.parse(cpus),
        )
    assert str(error.value).startswith(f"[cpumanager] {words}")
