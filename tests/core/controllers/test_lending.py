"""Lending on a simulated node: what is lent, what never is, and how soon it is back."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.core.controllers.lending import Lend, Return
from pinfold.core.controllers.quick_look import QuickLook, holdings
from pinfold.core.kubelet.own_policies import LendingOptions
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.lending_node import OWNER, LendingNode, Use

CALM = LendingOptions(use=True)
RATES = st.sampled_from([f"{rate}Hz" for rate in (20, 25, 33, 40, 50)])


def steady(use: float) -> Use:
    return lambda _at, _cpu: use


def node_with(use: float, count: int = 2, **more: Any) -> LendingNode:
    return LendingNode(steady(use), count, **more)


def kinds(node: LendingNode) -> list[type]:
    return [kind for _, kind, _, _ in node.events]


def test_an_idle_cpu_is_lent_after_its_time_and_told_why() -> None:
    node = node_with(0.05)
    node.run(60)
    ((at, kind, cpus, why),) = node.events
    assert (kind, cpus, why) == (Lend, CPUSet([1]), "container main uses 5% of a CPU there")
    assert 2.0 < at <= 4.0
    assert node.given / node.unused > 0.9


@given(st.floats(0.0, 1.0), st.integers(2, 5), RATES, st.booleans())
@settings(max_examples=30, deadline=None)
def test_under_steady_load_nothing_goes_back_and_forth(
    use: float, count: int, rate: str, threads: bool
) -> None:
    options = LendingOptions(use=True, look_rate=rate)
    node = node_with(use, count * (1 + threads), threads=1 + threads, options=options, apart=0.0037)
    node.run(30)
    assert Return not in kinds(node)
    if use * len(node.own) <= (0.1 if threads else 0.7) - 0.02:
        assert node.lent == node.own


@given(
    RATES,
    st.floats(0.0, 0.05),
    st.integers(2, 4),
    st.integers(0, 3),
    st.floats(0.92, 1.0),
)
@settings(max_examples=40, deadline=None)
def test_it_is_back_within_100_ms_of_the_owners_load(
    rate: str, offset: float, count: int, busy: int, rises_to: float
) -> None:
    """Whatever moment it comes at, though its other CPUs are busy, or have been."""
    rise = 10.0 + offset

    def use(at: float, cpu: int) -> float:
        if cpu == 1:
            return rises_to if at >= rise else 0.0
        return 1.0 if cpu - 2 < busy else 0.0

    options = LendingOptions(use=True, look_rate=rate)
    node = LendingNode(use, count, options=options)
    node.run(9.9)
    assert 1 in node.lent
    idle_others = [cpu for cpu in node.own if cpu != 1 and use(0.0, cpu) == 0.0]
    assert not (node.own - CPUSet([1, *idle_others])) & node.lent
    node.run(0.5)
    backs = [at for at, kind, cpus, _ in node.events if kind is Return and 1 in cpus]
    # The simulation goes on in steps of 5 ms; what the kernel takes is measured live.
    assert backs
    assert backs[0] <= rise + 0.095
    assert not node.lent & CPUSet([1])


@given(
    RATES,
    st.floats(0.0, 0.05),
    st.sampled_from([3, 7, 9, 17]),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.02, 1.0]),
)
@settings(max_examples=15, deadline=None)
def test_nor_is_it_hidden_by_many_cpus_that_are_not_lent(
    rate: str, offset: float, count: int, most: int, others: float
) -> None:
    """Their idle times are rounded, each by a tick."""
    rise = 5.2 + offset
    lent: list[int] = []

    def use(at: float, cpu: int) -> float:
        if cpu in lent:
            return 1.0 if at >= rise else 0.0
        # Each goes on at its own time.
        return 0.0 if at < 4.2 else float((at + cpu * 0.0137) % 0.1 < 0.1 * others)

    options = LendingOptions(use=True, look_rate=rate, most_cpus=most)
    node = LendingNode(use, count, options=options)
    node.run(4.1)
    lent.extend(node.lent)
    assert len(lent) == min(most, count - 1)
    node.run(1.4)
    backs = [at for at, kind, _, _ in node.events if kind is Return]
    assert backs
    assert rise < backs[0] <= rise + 0.095


@pytest.mark.parametrize("count", [3, 6])
def test_what_many_use_at_times_takes_nothing_back(count: int) -> None:
    """Ticks fall otherwise at each; 30% of each CPU are used, and nothing of what is lent."""
    lent: list[int] = []

    def use(at: float, cpu: int) -> float:
        return 0.0 if cpu in lent or at < 5 else float((at * (1 + cpu / 40)) % 0.05 < 0.015)

    node = LendingNode(use, count, options=LendingOptions(use=True, most_cpus=1))
    node.run(4.5)
    lent.extend(node.lent)
    node.run(15.0)
    assert kinds(node) == [Lend]


def test_a_container_that_says_nothing_lends_nothing() -> None:
    for says in (None, "false", "nonsense"):
        node = node_with(0.0, 4, says=says)
        node.run(20)
        assert node.events == []


@pytest.mark.parametrize("what", ["mixed", "partition", "in_bubble"])
def test_what_cannot_be_lent(what: str) -> None:
    node = node_with(0.0, 4, **{what: True})
    node.run(20)
    assert node.events == []
    assert node.memory.owners[OWNER].why_not


@given(st.integers(1, 5), st.integers(1, 5))
def test_never_more_than_node_and_container_allow(said: int, of_node: int) -> None:
    node = node_with(0.0, 6, says=str(said), options=LendingOptions(use=True, most_cpus=of_node))
    node.run(10)
    assert len(node.lent) == min(said, of_node, 5)
    if len(node.lent) < len(node.own):
        assert node.memory.owners[OWNER].why_not.startswith("no more than")


def test_siblings_of_busy_cpus_are_not_lent() -> None:
    """Cores 2-3 and 4-5 are its own; of one core a thread is busy."""
    node = LendingNode(lambda _at, cpu: 0.3 if cpu == 2 else 0.0, 6, threads=2)
    node.run(20)
    assert node.lent == CPUSet([4, 5])
    assert "10%" in node.memory.owners[OWNER].why_not or "idle" in node.memory.owners[OWNER].why_not


def test_nothing_of_a_core_that_is_somebody_elses_too() -> None:
    node = node_with(0.0, 6, threads=2)
    node.own -= CPUSet([5])
    node.run(20)
    assert node.lent == CPUSet([2, 3])
    assert node.memory.owners[OWNER].why_not == "CPUs 5 of the same core are not its own"


def test_what_lies_beside_somebody_new_is_taken_back_and_not_lent_again() -> None:
    node = node_with(0.0, 6, threads=2)
    node.own, node.pool = CPUSet([2, 3, 4]), CPUSet([0, 1, 5])
    node.run(20)
    assert node.lent == CPUSet([2, 3, 4])
    node.pool = CPUSet([0, 1])
    node.run(60)
    assert node.lent == CPUSet([2, 3])
    (_, kind, cpus, why) = node.events[-1]
    assert (kind, cpus) == (Return, CPUSet([4]))
    assert why == "container main: CPUs 5 of the same core are not its own"


def test_on_a_core_of_two_threads_less_is_enough_to_take_it_back() -> None:
    node = LendingNode(lambda at, cpu: 0.45 if at > 10 and cpu == 2 else 0.0, 4, threads=2)
    node.run(9)
    assert node.lent == CPUSet([2, 3])
    node.run(3)
    assert node.lent == CPUSet()


@pytest.mark.parametrize("wait", [0.06, None])
def test_nothing_is_lent_while_the_owner_waits_or_nobody_knows(wait: float | None) -> None:
    node = node_with(0.0)
    node.wait = wait
    node.run(20)
    assert node.events == []
    assert "wait" in node.memory.owners[OWNER].why_not


def test_all_is_taken_back_while_the_owner_waits() -> None:
    node = node_with(0.0)
    node.run(10)
    node.wait = 0.2
    node.run(1)
    assert not node.lent
    assert node.events[-1][3] == "container main: it waits for a CPU 20% of the time"


@pytest.mark.parametrize("what", ["is_known", "is_shown", "borrows"])
def test_what_is_not_there_any_more_is_taken_back(what: str) -> None:
    node = node_with(0.0)
    node.run(10)
    assert node.lent
    setattr(node, what, False)
    node.run(1)
    assert not node.lent
    node.run(10)
    assert kinds(node) == [Lend, Return]


def test_who_lends_no_more_gets_it_back() -> None:
    node = node_with(0.0)
    node.run(10)
    node.annotations = {}
    node.run(1)
    assert not node.lent


def test_a_load_that_flaps_is_left_alone_for_longer_and_longer() -> None:
    options = LendingOptions(use=True, pause="5s")
    node = LendingNode(lambda at, _cpu: 1.0 if at % 8 >= 6 else 0.0, options=options)
    node.run(1200)
    lends = [at for at, kind, _, _ in node.events if kind is Lend]
    gaps = [later - earlier for earlier, later in pairwise(lends)]
    assert len(lends) < 20
    assert max(gaps) > 100
    # It is forgiven once it has been calm for long.
    node.use = lambda _at, _cpu: 0.0
    node.run(300)
    assert node.lent
    node.use = lambda _at, _cpu: 1.0
    node.run(1)
    node.use = lambda _at, _cpu: 0.0
    node.run(12)
    assert node.lent


def test_bursts_that_are_longer_apart_than_the_first_pause_are_no_reason_to_be_left_alone() -> None:
    node = LendingNode(lambda at, _cpu: 1.0 if at % 8 >= 6 else 0.0)
    node.run(600)
    assert node.given / node.unused > 0.5
    lends = [at for at, kind, _, _ in node.events if kind is Lend]
    assert max(later - earlier for earlier, later in pairwise(lends)) < 17


@pytest.mark.parametrize(("own", "is_lent"), [(0.09, True), (0.3, False)])
def test_what_it_waits_for_by_itself_is_not_held_against_borrowers(
    own: float, is_lent: bool
) -> None:
    """Two threads on one CPU that wait for each other: the bound is at most twice as high."""
    node = node_with(0.3)
    node.wait = own
    node.run(10)
    assert bool(node.lent) is is_lent
    node.wait = own + 0.11
    node.run(1.2)
    assert not node.lent
    if is_lent:
        (_, kind, _, why) = node.events[-1]
        assert kind is Return
        assert why.endswith("waits for a CPU 20% of the time, of which 45% are its own doing")


def test_what_it_waits_for_while_something_is_lent_is_never_its_own() -> None:
    node = node_with(0.3)
    node.run(10)
    for wait in (0.08, 0.09, 0.1):
        node.wait = wait
        node.run(60)
        assert node.lent
    node.wait = 0.11
    node.run(1.2)
    assert not node.lent


def test_half_of_what_stands_idle_by_phases_is_used() -> None:
    node = LendingNode(lambda at, _cpu: 0.95 if at % 120 >= 90 else 0.1)
    node.run(1200)
    assert node.given / node.unused > 0.5


@given(st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_whatever_the_clock_and_the_readings_do(seed: int) -> None:
    """Never what must not be lent, and never for long what is needed."""
    rng = random.Random(seed)  # noqa: S311 - a load that can be had again
    node = node_with(0.0, rng.randint(2, 4), says=rng.choice(["true", "1", "2"]))
    most = {"true": 100, "1": 1, "2": 2}[node.annotations["lend-cpus.pinfold.dev/pod"]]
    for _ in range(20):
        use = rng.choice([0.0, 0.1, 0.6, 1.0])
        node.use = steady(use)
        node.jump += rng.choice([0.0, 0.0, 3600.0, -5.0])
        node.is_known = rng.random() > 0.1
        node.wait = rng.choice([0.0, 0.0, 0.0, 0.5, None])
        node.run(rng.uniform(1.2, 6.0))
        assert node.lent <= node.own
        assert len(node.lent) <= most
        if use == 1.0 or not node.is_known or node.wait != 0.0:
            assert not node.lent


def test_a_first_quick_look_takes_nothing_back_and_one_that_goes_back_begins_anew() -> None:
    lending = LendingNode(lambda _at, _cpu: 0.0).controller
    found = holdings([(OWNER, CPUSet([1]))], CPUSet([1]), None)
    first = QuickLook(10.0, {OWNER: 0}, {1: 0})
    assert lending.returns(lending.remembered((), first), found) == ()
    looks = lending.remembered((first,), QuickLook(9.0, {OWNER: 10**6}, {1: 0}))
    assert len(looks) == 1
    assert lending.returns(looks, found) == ()
    gone_back = lending.remembered((first,), QuickLook(10.02, {OWNER: -5}, {1: 0}))
    (proposal,) = lending.returns(gone_back, found)
    assert proposal.why.endswith("nobody knows what it uses")


@pytest.mark.parametrize(
    ("below", "above", "problem"),
    [("50%", "50%", "lendBelow 50% must be less"), ("50%", "95%", "must not be more than 90%")],
)
def test_options_that_cannot_be(below: str, above: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        LendingOptions(lend_below=below, return_above=above)
