"""The ledger: its invariants under any changes, and the start of a policy on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Assign, AssignBubble, Bounds, InvariantError, Ledger, Release
from pinfold.state.startup import StartError, start_policy

MACHINE = CPUSet.parse("0-7")
BOUNDS = Bounds(MACHINE, CPUSet([0]))
FRESH = Ledger.fresh("static", BOUNDS)


def cpus(text: str) -> CPUSet:
    return CPUSet.parse(text)


def test_fresh_ledger_shares_everything() -> None:
    assert FRESH.default == MACHINE
    assert FRESH.exclusive == CPUSet()
    assert FRESH.violations() == []


def test_what_is_replaced_takes_no_owner_along() -> None:
    ledger = FRESH.with_assignment("p", "c", cpus("2-3"))
    assert replace(ledger, assignments={}).exclusive == CPUSet()
    other = replace(ledger, assignments={"q": {"c": cpus("5")}})
    assert other.exclusive == cpus("5")
    assert ledger.exclusive == cpus("2-3")


def test_limits_are_the_bounds_or_all_cpus_that_are_spoken_of() -> None:
    assert FRESH.limits == FRESH.bounds
    read = Ledger("static", cpus("0,5-7"), {"p": {"c": cpus("1-2")}})
    assert read.limits == Bounds(cpus("0-2,5-7"))


def test_strict_reservation_keeps_the_reserved_cpus_out_of_the_pool() -> None:
    ledger = Ledger.fresh("static", Bounds(MACHINE, CPUSet([0]), strict_cpu_reservation=True))
    assert ledger.default == cpus("1-7")
    assert ledger.with_assignment("p", "c", cpus("1-2")).default == cpus("3-7")


def test_assignment_leaves_the_pool_and_release_gives_it_back() -> None:
    given_out = FRESH.with_assignment("p", "c", cpus("2-3"))
    assert given_out.default == cpus("0-1,4-7")
    assert given_out.cpus_of("p", "c") == cpus("2-3")
    assert given_out.cpus_of("p", "other") is None
    assert given_out.without("p") == FRESH
    assert FRESH.assignments == {}, "the old value must not change"


def test_replacing_an_assignment_frees_what_it_had() -> None:
    ledger = FRESH.with_assignment("p", "c", cpus("2-3")).with_assignment("p", "c", cpus("3-4"))
    assert ledger.default == cpus("0-2,5-7")


@pytest.mark.parametrize(
    ("pod", "wanted", "words"),
    [
        ("q", "3-4", "CPUs 3 belong to another pod"),
        ("q", "0-1", "CPUs 0 are reserved"),
        ("q", "7-8", "CPUs 8 are not in the machine"),
        ("q", "", "no CPU to assign"),
    ],
)
def test_broken_invariants_are_refused(pod: str, wanted: str, words: str) -> None:
    ledger = FRESH.with_assignment("p", "c", cpus("2-3"))
    with pytest.raises(InvariantError, match=words):
        ledger.with_assignment(pod, "c", cpus(wanted))


def test_containers_of_one_pod_may_share() -> None:
    ledger = FRESH.with_assignment("p", "init", cpus("2-5")).with_assignment("p", "c", cpus("2-3"))
    assert ledger.violations() == []
    without_init = ledger.without("p", "init")
    assert without_init.default == cpus("0-1,4-7"), "the app container still has 2-3"


def test_with_pod_sets_all_containers_at_once() -> None:
    ledger = FRESH.with_pod("p", {"a": cpus("1"), "b": cpus("2-3")})
    assert ledger.cpus_of_pod("p") == cpus("1-3")
    assert ledger.with_pod("p", {}) == FRESH
    with pytest.raises(InvariantError, match="'b': no CPU"):
        FRESH.with_pod("p", {"a": cpus("1"), "b": CPUSet()})


def test_apply_is_all_or_nothing() -> None:
    changes: list[Assign | Release] = [
        Assign("p", "c", cpus("1-2")),
        Release("p"),
        Assign("q", "c", cpus("1")),
    ]
    assert FRESH.apply(changes).default == cpus("0,2-7")
    with pytest.raises(InvariantError):
        FRESH.apply([Assign("p", "c", cpus("1-2")), Assign("q", "c", cpus("2"))])


def test_a_ledger_from_a_file_tells_what_is_wrong() -> None:
    ledger = Ledger(
        "static",
        cpus("0,4-9"),
        {"p": {"a": cpus("0-2")}, "q": {"b": cpus("2-3"), "empty": CPUSet()}},
        BOUNDS,
    )
    told = "\n".join(ledger.violations())
    assert "'empty': the assigned set is empty" in told
    assert "CPUs 2 belong to pods 'p' and 'q'" in told
    assert "CPUs 0 are assigned and in the shared pool too" in told
    assert "CPUs 8-9 are not in the machine (0-7)" in told
    assert "reserved CPUs 0 are assigned" in told
    with pytest.raises(InvariantError):
        Ledger("static", cpus("1"), {"p": {"a": cpus("0")}}).bound(BOUNDS)


def test_a_pool_that_lacks_cpus_is_a_violation() -> None:
    assert Ledger("static", cpus("0-5"), bounds=BOUNDS).violations() == [
        "the shared pool is 0-5, and should be 0-7"
    ]


BUBBLE = FRESH.with_bubble("p", cpus("2-5"), {"a": cpus("2-3"), "s": cpus("4")})


def test_a_bubble_is_owned_as_a_whole() -> None:
    assert BUBBLE.bubble_of("p") == cpus("2-5")
    assert BUBBLE.bubble_of("q") is None
    assert BUBBLE.default == cpus("0-1,6-7")
    assert BUBBLE.exclusive == cpus("2-5"), "CPU 5 is nobody's part"
    assert BUBBLE.cpus_of_pod("p") == cpus("2-4")
    assert BUBBLE.violations() == []
    with pytest.raises(InvariantError, match="CPUs 5 belong to another pod"):
        BUBBLE.with_assignment("q", "c", cpus("5-6"))
    with pytest.raises(InvariantError, match="CPUs 5 belong to another pod"):
        BUBBLE.with_bubble("q", cpus("5-6"), {})


def test_a_bubble_is_given_back_with_the_last_container() -> None:
    first = BUBBLE.without("p", "a")
    assert first.default == BUBBLE.default
    assert first.assignments == {"p": {"s": cpus("4")}}
    assert first.without("p", "s") == FRESH
    assert BUBBLE.without("p") == FRESH
    assert BUBBLE.without("p", "other") is BUBBLE
    nobody = FRESH.with_bubble("p", cpus("2-5"), {})
    assert nobody.exclusive == cpus("2-5")
    assert nobody.without("p", "a") is nobody
    assert nobody.without("p") == FRESH


def test_the_parts_of_a_bubble_stay_in_it() -> None:
    moved = BUBBLE.with_assignment("p", "a", cpus("3,5"))
    assert (moved.default, moved.bubble_of("p")) == (BUBBLE.default, cpus("2-5"))
    assert BUBBLE.with_pod("p", {"s": cpus("2-5")}).exclusive == cpus("2-5")
    outside = r"CPUs 6 are not in the pod's 2-5"
    with pytest.raises(InvariantError, match=outside):
        BUBBLE.with_assignment("p", "a", cpus("5-6"))
    with pytest.raises(InvariantError, match=outside):
        BUBBLE.with_pod("p", {"a": cpus("2"), "s": cpus("6")})
    with pytest.raises(InvariantError, match=outside):
        FRESH.with_bubble("p", cpus("2-5"), {"a": cpus("5-6")})
    with pytest.raises(InvariantError, match="its bubble: no CPU to assign"):
        FRESH.with_bubble("p", CPUSet(), {})
    with pytest.raises(InvariantError, match="CPUs 0 are reserved"):
        FRESH.with_bubble("p", cpus("0-1"), {})


def test_a_bubble_takes_the_place_of_what_the_pod_has() -> None:
    ledger = FRESH.with_assignment("p", "c", cpus("2-3"))
    changed = ledger.apply([AssignBubble("p", cpus("3-4"), {"a": cpus("4")})])
    assert changed.default == cpus("0-2,5-7")
    assert changed.assignments == {"p": {"a": cpus("4")}}
    assert changed.apply([AssignBubble("p", cpus("6"), {}), Release("p")]) == FRESH


def test_a_ledger_from_a_file_tells_what_is_wrong_with_its_bubbles() -> None:
    ledger = Ledger(
        "static",
        cpus("0,5-7"),
        {"p": {"a": cpus("1-2")}, "q": {"b": cpus("4")}},
        BOUNDS,
        bubbles={"p": cpus("2-4"), "r": cpus("5"), "s": CPUSet()},
    )
    assert ledger.violations() == [
        "pod 'p', container 'a': CPUs 1 are not in the pod's 2-4",
        "pod 's': the bubble is empty",
        "CPUs 4 belong to pods 'p' and 'q'",
        "CPUs 5 are assigned and in the shared pool too",
        "the shared pool is 0,5-7, and should be 0,6-7",
    ]


class Admissions(RuleBasedStateMachine):
    """Whatever is asked of it, a ledger stays sound and accounts for every CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = FRESH

    @rule(
        pod=st.sampled_from("pqr"),
        container=st.sampled_from("abc"),
        mask=st.integers(0, 0x3FF),
    )
    def assign(self, pod: str, container: str, mask: int) -> None:
        before = self.ledger
        try:
            self.ledger = before.with_assignment(pod, container, CPUSet.from_mask(mask))
        except InvariantError:
            assert self.ledger is before

    @rule(
        pod=st.sampled_from("pqr"),
        mask=st.integers(0, 0x3FF),
        parts=st.dictionaries(st.sampled_from("abc"), st.integers(1, 0x3FF)),
    )
    def assign_bubble(self, pod: str, mask: int, parts: dict[str, int]) -> None:
        before = self.ledger
        containers = {name: CPUSet.from_mask(part & mask or part) for name, part in parts.items()}
        try:
            self.ledger = before.with_bubble(pod, CPUSet.from_mask(mask), containers)
        except InvariantError:
            assert self.ledger is before
        else:
            assert self.ledger.bubbles[pod].mask == mask

    @precondition(lambda self: self.ledger.assignments or self.ledger.bubbles)
    @rule(pod=st.sampled_from("pqr"), container=st.sampled_from(["a", "b", "c", None]))
    def release(self, pod: str, container: str | None) -> None:
        self.ledger = self.ledger.without(pod, container)

    @invariant()
    def sound(self) -> None:
        assert self.ledger.violations() == []
        assert self.ledger.known == MACHINE
        ledger = self.ledger
        rebuilt = replace(ledger, default=ledger.default)  # counts anew who owns what
        assert rebuilt.exclusive == ledger.exclusive
        for uid, bubble in ledger.bubbles.items():
            assert all(part <= bubble for part in ledger.assignments.get(uid, {}).values())
            assert not bubble & ledger.default


TestAdmissions = Admissions.TestCase


TOPOLOGY = CPUTopology.from_rows((cpu, cpu & ~1, 0, 0, 0) for cpu in range(8))
PLAIN = StaticPolicyOptions()
STRICT = StaticPolicyOptions(strict_cpu_reservation=True)


def test_start_fills_an_empty_ledger() -> None:
    empty = Ledger("static", CPUSet())
    assert start_policy(empty, TOPOLOGY, CPUSet([0]), PLAIN).default == MACHINE
    assert start_policy(empty, TOPOLOGY, CPUSet([0]), STRICT).default == cpus("1-7")
    assert start_policy(Ledger("none", CPUSet()), TOPOLOGY, CPUSet([0]), PLAIN).default == CPUSet()


def test_observed_refusals_at_start() -> None:
    two = CPUTopology.from_rows([(0, 0, 0, 0, 0), (1, 0, 0, 0, 0)])
    grown = Ledger("static", cpus("0"), {"p": {"c": cpus("1")}})
    with pytest.raises(StartError) as refusal:
        start_policy(grown, two, cpus("0-1"), PLAIN)
    assert str(refusal.value) == 'not all reserved cpus: "0-1" are present in defaultCpuSet: "0"'
    with pytest.raises(StartError) as refusal:
        start_policy(Ledger("static", cpus("0-15")), two, cpus("0"), PLAIN)
    assert str(refusal.value) == (
        'current set of available CPUs "0-1" doesn\'t match with CPUs in state "0-15"'
    )
    # It starts normally when nothing is assigned.
    start_policy(Ledger("static", cpus("0-1")), two, cpus("0-1"), PLAIN)


def test_strictly_reserved_cpus_are_in_no_set_of_a_state() -> None:
    written = Ledger("static", cpus("3-7"), {"p": {"c": cpus("1-2")}})
    assert start_policy(written, TOPOLOGY, CPUSet([0]), STRICT).violations() == []
    short = Ledger("static", cpus("3-6"), {"p": {"c": cpus("1-2")}})
    with pytest.raises(StartError, match=r'available CPUs "1-7" doesn.t match .* state "1-6"'):
        start_policy(short, TOPOLOGY, CPUSet([0]), STRICT)


def test_an_empty_pool_with_assignments_is_refused() -> None:
    ledger = Ledger("static", CPUSet(), {"p": {"c": MACHINE}})
    with pytest.raises(StartError, match=r"^default cpuset cannot be empty$"):
        start_policy(ledger, TOPOLOGY, CPUSet(), PLAIN)


@given(default=st.integers(0, 255), assigned=st.integers(0, 255), strict=st.booleans())
def test_a_started_policy_has_a_sound_ledger(default: int, assigned: int, *, strict: bool) -> None:
    ledger = Ledger(
        "static",
        CPUSet.from_mask(default),
        {"p": {"c": CPUSet.from_mask(assigned)}} if assigned else {},
    )
    options = StaticPolicyOptions(strict_cpu_reservation=strict)
    try:
        started = start_policy(ledger, TOPOLOGY, CPUSet([0]), options)
    except StartError:
        return
    assert [v for v in started.violations() if "reserved" not in v] == []
