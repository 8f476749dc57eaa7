"""Suppression: never above the rule, still under steady load, at once down and slowly up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.controllers.proposals import Rank
from pinfold.core.controllers.seen import Seen, SeenContainer
from pinfold.core.controllers.suppression import Cap, Suppressed, Suppression
from pinfold.core.kubelet.own_policies import SuppressionOptions
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet

CPUS = 20
ALL = CPUSet(range(CPUS))
OPTIONS = SuppressionOptions(
    use=True, threshold="65%", margin="5%", hold="5s", step_up="10%", least_cpus=2
)
"""13 CPUs for all, of them one of margin; steps of two."""
ROOM, MARGIN, STEP, LEAST, HOLD = 13.0, 1.0, 2.0, 2.0, 5.0
CONTROLLER = Suppression(OPTIONS)


class Reading(Struct, frozen=True):
    """What is known at a look; None is not."""

    sensitive: float | None
    borrowed: float | None = 0.0
    system: float | None = 0.0


def look(at: float, reading: Reading, cap: float | None) -> Seen:
    busy = None
    if reading.system is not None:
        busy = (reading.sensitive or 0.0) + (reading.borrowed or 0.0) + reading.system
    return Seen(
        at,
        ALL,
        ALL,
        {} if busy is None else dict.fromkeys(ALL, max(0.0, 1.0 - busy / CPUS)),
        {
            Owner("sensitive", "main"): SeenContainer(
                CPUSet(), QOSClass.BURSTABLE, _load(reading.sensitive)
            ),
            Owner("batch", "main"): SeenContainer(
                CPUSet(), QOSClass.BEST_EFFORT, _load(reading.borrowed), borrows=True
            ),
        },
        cap=cap,
    )


def _load(usage: float | None) -> Load | None:
    return None if usage is None else Load(1.0, usage)


class Step(Struct, frozen=True):
    """A look, what cap it had, and what was proposed (None: nothing)."""

    seen: Seen
    proposed: float | None


def run(
    looks: Iterable[tuple[float, Reading]],
    controller: Suppression = CONTROLLER,
    granted: Sequence[bool] = (),
) -> list[Step]:
    """Ask the controller, and carry out what it wishes, but where that is refused."""
    memory, cap, found = Suppressed(), None, []
    for number, (at, reading) in enumerate(looks):
        seen = look(at, reading, cap)
        memory, proposals = controller.step(memory, seen)
        quota = None
        for one in proposals:
            assert isinstance(one, Cap)
            assert (one.rank, one.moves, one.owners, one.cpus) == (
                Rank.SUPPRESSION,
                0,
                frozenset(),
                CPUSet(),
            )
            assert one.why
            quota = one.quota
        found.append(Step(seen, quota))
        if quota is not None and (number >= len(granted) or granted[number]):
            cap = quota
    return found


AMOUNTS = st.floats(0, CPUS)
READINGS = st.builds(Reading, st.none() | AMOUNTS, st.none() | AMOUNTS, st.none() | AMOUNTS)
JUMPS = st.sampled_from([0.0, 0.05, 0.3, 1.0, 1.0, 1.0, 7.0, 3600.0, -2.0, -1e6])
LOOKS = st.lists(st.tuples(JUMPS, READINGS), max_size=40).map(
    lambda pairs: [
        (sum(jump for jump, _ in pairs[: number + 1]), reading)
        for number, (_, reading) in enumerate(pairs)
    ]
)


@given(LOOKS, st.lists(st.booleans(), max_size=40))
@example([(0.0, Reading(None, None, None)), (1.0, Reading(None, None, None))], [])
def test_no_cap_is_above_the_rule_or_below_the_least(
    looks: list[tuple[float, Reading]], granted: list[bool]
) -> None:
    """Whatever is missing, however the clock jumps, and whatever is refused."""
    raised: list[float] = []
    for step in run(looks, granted=granted):
        if step.proposed is None:
            continue
        cap, allowed = step.seen.cap, CONTROLLER.allowed(step.seen)
        assert LEAST <= step.proposed <= max(LEAST, allowed.most)
        if cap is not None and step.proposed > cap:
            assert step.proposed <= cap + STEP + 1e-9
            assert step.proposed <= allowed.least, "only what is known raises it"
            raised.append(step.seen.at)
    assert all(not 0 < after - before < 1.0 for before, after in pairwise(raised))


@given(
    st.floats(0, CPUS),
    st.lists(st.floats(0, MARGIN * 0.99), min_size=2, max_size=60),
    st.sampled_from([0.05, 1.0, 10.0]),
)
def test_a_load_that_wavers_by_less_than_the_margin_moves_nothing(
    level: float, noise: list[float], period: float
) -> None:
    looks = [(n * period, Reading(level + more)) for n, more in enumerate(noise)]
    proposed = [step for step in run(looks) if step.proposed is not None]
    assert len(proposed) == 1
    assert proposed[0].seen.at == 0.0


@given(st.floats(0, 3.9), st.floats(5, CPUS), st.floats(0.05, 3))
def test_a_rise_is_answered_at_the_next_look(low: float, high: float, period: float) -> None:
    steps = run([(0.0, Reading(low)), (period, Reading(high))])
    assert steps[1].proposed == pytest.approx(max(LEAST, ROOM - high - MARGIN))


@given(st.floats(6, CPUS), st.floats(0, 3))
def test_when_the_load_is_gone_more_is_given_by_steps(high: float, low: float) -> None:
    """After the time to hold, a step a second, up to the margin below what is allowed."""
    looks = [(0.0, Reading(high))] + [(1.0 + n, Reading(low)) for n in range(30)]
    steps = run(looks)
    caps = [step.proposed for step in steps if step.proposed is not None]
    first = next(step.seen.at for step in steps[1:] if step.proposed is not None)
    assert first == 1.0 + HOLD - 1.0 or first == HOLD + 1.0
    assert all(0 < after - before <= STEP + 1e-9 for before, after in pairwise(caps))
    assert ROOM - low - 2 * MARGIN < caps[-1] <= ROOM - low - MARGIN
    assert len(caps) <= 1 + (ROOM - low) / MARGIN


def test_a_dip_shorter_than_the_hold_raises_nothing() -> None:
    """A load that is low for four seconds of five is answered once, not each time."""
    looks = [(float(n), Reading(9.0 if n % 5 == 0 else 1.0)) for n in range(100)]
    assert [step.proposed for step in run(looks) if step.proposed is not None] == [3.0]


def test_a_new_container_that_is_not_known_yet_is_no_load() -> None:
    """One that just began has no figures: what it uses is not taken for the others'."""
    steps = run(
        [(0.0, Reading(2.0, 8.0)), (1.0, Reading(2.0, None, 8.0)), (2.0, Reading(2.0, 8.0))]
    )
    assert [step.proposed for step in steps] == [10.0, None, None]


def test_the_system_counts_beyond_what_is_reserved() -> None:
    controller = Suppression(OPTIONS, reserved=3.0)
    assert controller.allowed(look(0.0, Reading(2.0, 1.0, 1.0), None)).least == ROOM - 2.0 - 3.0
    allowed = controller.allowed(look(0.0, Reading(2.0, 1.0, 4.0), None))
    assert allowed.least == allowed.most == pytest.approx(ROOM - 2.0 - 4.0)


def test_what_is_refused_is_proposed_again() -> None:
    looks = [(float(n), Reading(2.0)) for n in range(3)]
    steps = run(looks, granted=[False, True])
    assert [step.proposed for step in steps] == [10.0, 10.0, None]


def test_without_borrowers_there_is_no_cap() -> None:
    seen = look(0.0, Reading(2.0), None)
    others = {owner: replace(one, borrows=False) for owner, one in seen.containers.items()}
    empty = replace(seen, containers=others)
    assert CONTROLLER.step(Suppressed(), empty)[1] == ()
    (lifted,) = CONTROLLER.step(Suppressed(), replace(empty, cap=3.0))[1]
    assert isinstance(lifted, Cap)
    assert lifted.quota is None


def test_the_same_look_twice_is_one() -> None:
    seen = look(1.0, Reading(2.0), None)
    memory, first = CONTROLLER.step(Suppressed(), seen)
    assert len(first) == 1
    assert CONTROLLER.step(memory, seen) == (memory, ())
