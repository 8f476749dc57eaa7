"""CPUs of one's own by load: stability, bounds, and what a clock or a reader may do."""

from __future__ import annotations

import math
import random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.controllers.load_driven import Demote, LoadDriven, Promote, Watches
from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.kubelet.own_policies import LoadDrivenOptions
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load, Pressure
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.load_driven_node import SimulatedNode, Work

QUICK = LoadDrivenOptions(use=True)
OWNER = Owner("a", "c")


def seen(
    at: float,
    cpus: str = "",
    load: Load | None = None,
    count: int = 2,
    *,
    promoted_with: float | None = None,
    settled: float = 0.0,
) -> Seen:
    one = SeenContainer(
        CPUSet.parse(cpus),
        QOSClass.GUARANTEED,
        load,
        load_driven=count,
        promoted_with=promoted_with,
        settled=settled,
    )
    return Seen(at, CPUSet(range(8)), CPUSet(range(8)), containers={OWNER: one})


def looks(options: LoadDrivenOptions, *them: Seen) -> tuple[Watches, list[tuple[float, str]]]:
    """The memory after some looks, and who was to move in which of them."""
    memory: Watches = {}
    found = []
    used = None
    for one in them:
        shown = one.containers[OWNER]
        if used is not None:
            shown = replace(shown, promoted_with=used)
        look = replace(one, containers={OWNER: shown})
        memory, proposals = LoadDriven(options).step(memory, look)
        found += [(one.at, type(proposal).__name__) for proposal in proposals]
        used = next((p.used for p in proposals if isinstance(p, Promote)), used)
    return memory, found


def test_a_busy_container_is_promoted_after_its_times_and_told_why() -> None:
    memory, found = looks(QUICK, *(seen(at, load=Load(1.0, usage=1.8)) for at in range(11)))
    assert found == [(10, "Promote")]
    assert memory[OWNER].why == "it uses 1.80 of 2 CPUs (90%), promoteUsage is 70%"
    memory, _ = looks(QUICK, *(seen(at, load=Load(1.0, usage=1.8)) for at in range(6)))
    assert memory[OWNER].why.endswith("; it is there for 5s of minShared 10s")


def test_a_container_at_rest_is_demoted_after_its_times() -> None:
    _, found = looks(QUICK, *(seen(at, "2-3", Load(1.0, usage=0.01)) for at in range(61)))
    assert found == [(60, "Demote")]
    _, proposals = LoadDriven(QUICK).step(
        looks(QUICK, *(seen(at, "2-3", Load(1.0, usage=0.01)) for at in range(60)))[0],
        seen(60, "2-3", Load(1.0, usage=0.01)),
    )
    (demote,) = proposals
    assert isinstance(demote, Demote)
    assert (demote.cpus, demote.moves) == (CPUSet([2, 3]), 1)
    assert demote.owners == {OWNER}


@pytest.mark.parametrize(
    ("load", "is_promoted"),
    [
        (Load(1.0, usage=1.4), True),
        (Load(1.0, usage=1.39), False),
        (Load(1.0, usage=0.5, wait=0.2), True),
        (Load(1.0, usage=0.5, wait=0.19), False),
        # On cgroup v2 a wait is the share of the time, and has a bound of its own.
        (Load(1.0, usage=0.5, wait=0.25, pressure={"cpu": Pressure(0.25)}), True),
        (Load(1.0, usage=0.5, wait=0.19, pressure={"cpu": Pressure(0.19)}), False),
        (Load(1.0, usage=0.5, throttled_periods=0.2), True),
        (Load(1.0, usage=0.5, throttled_periods=0.1), False),
        # Who hardly runs is at rest, whatever it waits for.
        (Load(1.0, usage=0.03, wait=0.9), False),
        (Load(1.0, usage=None, wait=0.9), False),
        (None, False),
    ],
)
def test_each_threshold(load: Load | None, is_promoted: bool) -> None:
    _, found = looks(QUICK, *(seen(at, load=load) for at in range(30)))
    assert bool(found) is is_promoted


@given(st.lists(st.booleans(), max_size=60))
def test_a_missing_reading_begins_anew(known: list[bool]) -> None:
    busy = Load(1.0, usage=2.0)
    them = [seen(at, load=busy if one else None) for at, one in enumerate(known)]
    _, found = looks(QUICK, *them)
    for at, _ in found:
        assert all(known[int(at) - 2 : int(at) + 1])
        assert at >= 10


@given(st.lists(st.floats(-1e6, 1e6), max_size=40))
def test_no_jump_of_the_clock_makes_a_time_longer(steps: list[float]) -> None:
    at, them, seconds = 0.0, [], 0.0
    for step in steps:
        at += step
        seconds += step if 0 <= step <= 10 else 0.0
        them.append(seen(at, "2-3", Load(1.0, usage=0.0)))
        _, found = looks(QUICK, *them)
        assert not found or seconds >= 60
        if found:
            break


@given(
    st.integers(1, 4),
    st.integers(0, 6),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), min_size=1, max_size=8),
)
def test_bounds_hold(per_pod: int, per_node: int, asking: list[tuple[str, int]]) -> None:
    options = replace(QUICK, most_cpus_per_pod=per_pod, most_cpus=per_node)
    containers = {
        Owner(uid, f"c{at}"): SeenContainer(
            CPUSet(), QOSClass.GUARANTEED, Load(1.0, usage=9.0), load_driven=count
        )
        for at, (uid, count) in enumerate(asking)
    }
    memory: Watches = {}
    given_to: dict[Owner, int] = {}
    for at in range(20):
        look = Seen(at, CPUSet(range(64)), CPUSet(range(64)), containers=containers)
        memory, proposals = LoadDriven(options).step(memory, look)
        for one in proposals:
            assert isinstance(one, Promote)
            (owner,) = one.owners
            given_to[owner] = one.count
            containers[owner] = replace(containers[owner], cpus=CPUSet(range(one.count)))
        for uid in "abc":
            assert sum(n for o, n in given_to.items() if o.pod_uid == uid) <= per_pod
        assert not per_node or sum(given_to.values()) <= per_node
    for owner, watch in memory.items():
        if owner not in given_to:
            assert "most" in watch.why


LOADS = st.floats(0.0, 1.0)


@given(LOADS, st.floats(0.0, 0.4), st.floats(0.0, 8.0), st.integers(0, 2**32))
def test_under_steady_load_nobody_moves_back_and_forth(
    demand: float, noise: float, crowd: float, seed: int
) -> None:
    """In the shared pool it starves and waits, on its own CPUs neither: the loop is closed."""
    node = SimulatedNode(QUICK, cpus=8, seed=seed)
    node.start(OWNER, Work(2, lambda _: demand * 2, noise))
    node.crowd = crowd
    node.run(1800)
    assert len(node.moves) <= 1


@given(st.integers(0, 2**32))
def test_containers_come_and_go_and_bounds_hold(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a simulation
    node = SimulatedNode(replace(QUICK, most_cpus=6), cpus=8, seed=seed)
    for at in range(300):
        if chance.random() < 0.05:
            owner = Owner(f"p{at}", "c")
            node.start(owner, Work(chance.randint(1, 3), lambda _: 2.0, 0.2))
        if node.works and chance.random() < 0.03:
            node.end(chance.choice(list(node.works)))
        if chance.random() < 0.03:
            node.skip(chance.uniform(-50, 5000))
        node.run(1)
        assert sum(map(len, node.own.values())) <= 6
        assert node.memory.keys() == node.works.keys()


WAITS = Load(1.0, usage=0.4, wait=0.5)
"""The load of a container that is promoted because it waits."""


def test_a_look_without_a_wish_before_the_cpus_come_does_not_forget_the_usage() -> None:
    """A promotion takes some looks; in one of them the load was below the bound, or not known."""
    calm = Load(1.0, usage=0.4, wait=0.0)
    for between in (calm, None):
        asked = [seen(at, load=WAITS) for at in range(11)]
        late = [seen(11, load=between), *(seen(at, "2-3", calm) for at in range(12, 300))]
        _, found = looks(QUICK, *asked, *late)
        assert found == [(10, "Promote")]


@given(st.floats(0.18, 1.0), st.floats(0.0, 0.1), st.integers(0, 2**32), st.booleans())
@example(demand=0.2, noise=0.1, seed=0, known=False)
@settings(max_examples=30, deadline=None)
def test_a_restart_moves_nobody_back_and_forth(
    demand: float, noise: float, seed: int, known: bool
) -> None:
    """Who has its CPUs because it waited does not wait any more, and not all is on record."""
    node = SimulatedNode(QUICK, cpus=8, seed=seed)
    node.start(OWNER, Work(2, lambda _: demand * 2, noise))
    node.crowd = 24.0
    node.run(300)
    for _ in range(3):
        node.restart() if known else node.forget()
        node.run(300)
    assert [what for _, _, what in node.moves] == ["Promote"]


@given(st.floats(0.7, 1.0), st.floats(0.0, 0.29), st.integers(1, 59), st.integers(0, 2**32))
def test_who_has_gone_quiet_is_demoted_after_a_restart_as_without_one(
    busy: float, quiet: float, after: int, seed: int
) -> None:
    """Neither is it waited for that it is busy again, nor do its times begin anew."""
    moves = []
    for restarts in (False, True):
        node = SimulatedNode(QUICK, cpus=8, seed=seed)
        node.start(OWNER, Work(2, lambda at: 2 * (busy if at < 30 else quiet)))
        node.run(30 + after)
        if restarts:
            node.restart()
        node.run(90)
        moves.append(node.moves)
    without, with_one = ([(what, at) for at, _, what in one] for one in moves)
    assert [what for what, _ in without] == ["Promote", "Demote"]
    assert with_one[0] == without[0]
    # What its load asks for has to last anew, and a first look only begins to count: so the record
    # knows of a second more.
    (what, at), (_, would) = with_one[1], without[1]
    assert what == "Demote"
    if 30 + after < would:
        assert at == max(would - 1, 30 + after + 31)


def test_minimum_times_hold_over_a_restart() -> None:
    busy, idle = Load(1.0, usage=2.0), Load(1.0, usage=0.0)
    assert looks(QUICK, *(seen(at, load=busy, settled=7.0) for at in range(9)))[1][0][0] == 3
    assert looks(QUICK, *(seen(at, load=busy, settled=2.0) for at in range(9)))[1][0][0] == 8
    quiet = [seen(at, "2-3", idle, promoted_with=1.5, settled=20.0) for at in range(61)]
    assert looks(QUICK, *quiet)[1][0] == (40, "Demote")


def test_after_a_restart_a_load_that_falls_is_still_demoted() -> None:
    busy = [seen(at, "2-3", Load(1.0, usage=1.5)) for at in range(100)]
    quiet = [seen(at, "2-3", Load(1.0, usage=0.3)) for at in range(100, 200)]
    memory, found = looks(QUICK, *busy, *quiet)
    assert found[:1] == [(129, "Demote")]
    assert "half of the 1.50 that it was seen to use" in memory[OWNER].why
    at_rest = [seen(at, "2-3", Load(1.0, usage=0.01)) for at in range(200)]
    assert looks(QUICK, *at_rest)[1][0] == (60, "Demote")


def test_long_periods_are_no_breaks() -> None:
    them = [replace(seen(at, load=Load(99.0, usage=1.8)), period=99.0) for at in range(0, 400, 99)]
    assert looks(QUICK, *them)[1][0] == (99, "Promote")


def test_a_load_by_day_and_night_moves_twice_a_day() -> None:
    day = 3600.0
    node = SimulatedNode(QUICK, cpus=8, seed=1)
    node.start(OWNER, Work(2, lambda at: 1.0 + 0.95 * math.sin(at / day * math.tau), 0.1))
    node.run(round(4 * day))
    assert len(node.moves) <= 9
    assert len(node.moves) >= 8


def test_thresholds_without_a_dead_band_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="demoteUsage 70% must be less"):
        msgspec.convert({"demoteUsage": "70%"}, LoadDrivenOptions)
    msgspec.convert({"demoteUsage": "69%"}, LoadDrivenOptions)


def test_what_changes_it_is_said_in_the_options_words() -> None:
    options = LoadDrivenOptions(use=True, promote_throttled="0%", most_cpus=8)
    controller = LoadDriven(options)
    assert controller.promoted_at(2, "schedstat") == (
        "CPUs of its own once it uses 1.40 of its 2 CPUs (promoteUsage 70%), or its threads wait "
        "for a CPU so long in each second (promoteWait 200ms), for promoteAfter 3s and after "
        "minShared 10s, within mostCpus 8"
    )
    pressure = LoadDriven(LoadDrivenOptions(use=True)).promoted_at(2, "cpu.pressure")
    assert "promotePressure 20%" in pressure
    assert "promoteThrottled 20%" in pressure
    assert "promoteWait" not in pressure
    assert "wait" not in controller.promoted_at(2, "")
    assert controller.demoted_at(2, 1.9) == (
        "the shared pool once it uses less than 0.60 of its 2 CPUs (demoteUsage 30%, and half of "
        "the 1.90 with which it was promoted), for demoteAfter 30s and after minExclusive 1m"
    )
    assert "half of what it was seen to use" in controller.demoted_at(2, None)


@pytest.mark.parametrize(("busy", "back_below"), [(3.6, 1.2), (3.0, 1.2), (2.0, 1.0)])
def test_it_moves_at_the_figures_that_are_said(busy: float, back_below: float) -> None:
    options = LoadDrivenOptions(use=True, promote_usage="50%")
    assert "uses 2.00 of its 4 CPUs" in LoadDriven(options).promoted_at(4, "")
    assert f"less than {back_below:.2f} of its 4" in LoadDriven(options).demoted_at(4, busy)
    for last, sides in ((back_below + 0.05, 1), (back_below - 0.05, 2)):
        node = SimulatedNode(options, 8, seed=1)
        demand = {0: 1.95, 100: busy, 200: last}

        def wants(at: float, demand: dict[int, float] = demand) -> float:
            return demand[max(begin for begin in demand if begin <= at)]

        node.start(Owner("a", "c"), Work(4, wants))
        node.run(100)
        assert node.moves == []
        node.run(400)
        assert len(node.moves) == sides, node.moves
