"""Rates over counters that restart, vanish or go back, and a clock that jumps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.observation.history import History
from pinfold.core.observation.rates import (
    Counters,
    Pressure,
    Stalls,
    container_history,
    counter_history,
    idle_between,
    load_between,
    pressure_between,
)

SECOND = 1_000_000
GAPS = st.floats(0.01, 100.0)
SAMPLES = st.lists(
    st.tuples(st.floats(-5.0, 50.0), st.integers(-5, 200) | st.just(0)), min_size=1, max_size=90
)


@given(SAMPLES)
def test_what_is_in_a_history_belongs_together(steps: list[tuple[float, int]]) -> None:
    """The clock and the counter may do anything: every interval goes on, and none is negative."""
    history, at, value = counter_history(), 100.0, 1000
    for gap, more in steps:
        at, value = at + gap, value + more
        history.add(at, value)
    for before, after in history.steps():
        assert before.at < after.at
        assert before.value <= after.value
    assert history.newest is not None
    assert (history.newest.at, history.newest.value) == (at, value)
    assert len(list(history.steps())) <= 60


@given(st.lists(st.tuples(GAPS, st.integers(0, 10 * SECOND)), min_size=2, max_size=60))
def test_a_rate_over_a_window_is_the_mean_of_its_intervals(steps: list[tuple[float, int]]) -> None:
    history, at, value = counter_history(), 0.0, 0
    for gap, more in steps:
        at, value = at + gap, value + more
        history.add(at, value)
    for wanted in (0.0, 1.0, 10.0, 60.0, 1e6):
        span = history.span(wanted)
        assert span is not None
        before, after = span
        inside = [(a, b) for a, b in history.steps() if a.at >= before.at]
        assert sum(b.value - a.value for a, b in inside) == after.value - before.value
        # No other window is nearer to what was asked for.
        off = abs(after.at - before.at - wanted)
        assert all(abs(after.at - a.at - wanted) >= off for a, _ in history.steps())


def test_one_reading_is_no_rate_and_less_is_told_where_there_is_no_more() -> None:
    history = counter_history()
    assert history.span() is None
    history.add(0.0, 0)
    assert history.span(10.0) is None
    history.add(2.0, SECOND)
    span = history.span(10.0)
    assert span is not None
    assert span[1].at - span[0].at == 2.0
    assert idle_between(*span) == 0.5


def test_a_clock_that_stands_or_goes_back_begins_anew() -> None:
    for jump in (0.0, -3600.0):
        history = counter_history()
        history.add(10.0, 1)
        history.add(10.0 + jump, 2)
        assert history.span() is None
        history.add(11.0 + jump, 3)
        assert history.span() is not None


def test_a_gap_is_one_interval_with_its_own_length() -> None:
    """An agent that was stopped for an hour: nothing is made up for it."""
    history = counter_history()
    history.add(0.0, 0)
    history.add(3600.0, 1800 * SECOND)
    span = history.span()
    assert span is not None
    assert idle_between(*span) == 0.5


def counters(**changes: object) -> Counters:
    whole = Counters(
        incarnation=7,
        usage=10 * SECOND,
        wait=2 * SECOND,
        periods=100,
        throttled_periods=10,
        throttled=SECOND,
        pressure={"cpu": Stalls(2 * SECOND, 1 * SECOND), "io": Stalls(5)},
    )
    return replace(whole, **changes)


def rates(before: Counters, after: Counters, seconds: float = 2.0) -> History[Counters]:
    history = container_history()
    history.add(1.0, before)
    history.add(1.0 + seconds, after)
    return history


def test_the_rates_of_a_container() -> None:
    after = counters(
        usage=13 * SECOND,
        wait=3 * SECOND,
        periods=120,
        throttled_periods=15,
        throttled=2 * SECOND,
        pressure={"cpu": Stalls(3 * SECOND, 1 * SECOND), "io": Stalls(5), "memory": Stalls(9, 9)},
    )
    span = rates(counters(), after).span()
    assert span is not None
    load = load_between(*span)
    assert (load.seconds, load.usage, load.wait, load.throttled) == (2.0, 1.5, 0.5, 0.5)
    assert load.throttled_periods == 0.25
    # What one of the two readings lacks is no rate.
    assert load.pressure == {"cpu": Pressure(0.5, 0.0), "io": Pressure(0.0, None)}


def test_what_a_kernel_does_not_tell_is_not_zero() -> None:
    span = rates(Counters(incarnation=1), Counters(incarnation=1, usage=5, periods=4)).span()
    assert span is not None
    load = load_between(*span)
    assert (load.usage, load.wait, load.throttled, load.throttled_periods) == (None,) * 4
    same = rates(counters(), counters()).span()
    assert same is not None
    assert load_between(*same).throttled_periods is None  # there was no quota period
    assert load_between(*same).usage == 0.0


def test_a_cgroup_made_anew_and_any_counter_that_goes_back_begin_anew() -> None:
    goes_back = (
        {"incarnation": 8, "usage": 99 * SECOND},
        {"usage": 0},
        {"wait": 0},
        {"periods": 0},
        {"throttled_periods": 0},
        {"throttled": 0},
        {"pressure": {"cpu": Stalls(0, SECOND)}},
        {"pressure": {"cpu": Stalls(2 * SECOND, 0)}},
    )
    for change in goes_back:
        history = rates(counters(), counters(**change))
        assert history.span() is None, change
        history.add(9.0, counters(**change))
        assert history.span() is not None, change


def test_shares_are_cut_at_one() -> None:
    """The kernel counts by another clock, and in ticks: a share above 1 is an error of rounding."""
    history = counter_history()
    history.add(0.0, 0)
    history.add(1.0, SECOND + 10_000)
    span = history.span()
    assert span is not None
    assert idle_between(*span) == 1.0
    assert pressure_between(Stalls(0, 0), Stalls(SECOND + 1, SECOND + 1), 1.0) == Pressure(1.0, 1.0)
    assert pressure_between(Stalls(0, 0), Stalls(SECOND, 100_000), 1.0).full == pytest.approx(0.1)
    late = rates(counters(), counters(periods=101, throttled_periods=12)).span()
    assert late is not None
    assert load_between(*late).throttled_periods == 1.0
