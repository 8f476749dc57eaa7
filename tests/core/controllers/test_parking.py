"""When work is gathered, and when it may be everywhere again."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.controllers.parking import Park, Parking, Quiet, Unpark
from pinfold.core.controllers.seen import Seen
from pinfold.core.kubelet.own_policies import ParkingOptions
from pinfold.core.values.cpuset import CPUSet

OPTIONS = ParkingOptions(use=True, park_after="1m")
ALL = CPUSet(range(16))


class Pool:
    """A pool whose work is spread evenly over its CPUs."""

    def __init__(self) -> None:
        self.memory: Quiet | None = None
        self.parked = CPUSet()
        self.at = 0.0
        self.changes = 0

    def look(self, used: float) -> None:
        self.at += 1
        pool = ALL - self.parked
        idle = dict.fromkeys(pool, max(0.0, 1.0 - used / len(pool)))
        seen = Seen(self.at, ALL, pool, idle, parked=self.parked)
        self.memory, proposals = Parking(OPTIONS).step(self.memory, seen)
        for one in proposals:
            parked = ALL - CPUSet(range(one.need)) if isinstance(one, Park) else CPUSet()
            self.changes += parked != self.parked
            self.parked = parked


def test_long_periods_are_no_breaks() -> None:
    memory: Quiet | None = None
    for at in (0.0, 99.0):
        seen = Seen(at, ALL, ALL, dict.fromkeys(ALL, 1.0), period=99.0)
        memory, proposals = Parking(OPTIONS).step(memory, seen)
    assert [type(one) for one in proposals] == [Park]


def test_it_is_gathered_when_little_was_used_for_a_while() -> None:
    pool = Pool()
    for _ in range(61):
        pool.look(1.9)
    assert str(ALL - pool.parked) == "0-4"
    for _ in range(600):
        pool.look(1.9)
    assert pool.changes == 1
    pool.look(3.6)
    assert not pool.parked


@given(st.floats(0.0, 16.0), st.floats(0.0, 0.3), st.integers(0, 2**32))
def test_under_steady_load_it_changes_no_more(used: float, noise: float, seed: int) -> None:
    chance, pool = random.Random(seed), Pool()  # noqa: S311 - a simulation
    for _ in range(900):
        pool.look(min(16.0, used * (1 + chance.uniform(-noise, noise))))
    settled = pool.changes
    for _ in range(900):
        pool.look(min(16.0, used * (1 + chance.uniform(-noise, noise))))
    # Within the noise it may find that a CPU less will do.
    assert pool.changes - settled <= 15
    assert bool(pool.parked) or settled == pool.changes == 0 or used > 3


def test_what_is_not_known_is_not_little() -> None:
    memory: Quiet | None = None
    for at in range(200):
        known = dict.fromkeys(ALL, 1.0) if at % 50 else {}
        memory, proposals = Parking(OPTIONS).step(memory, Seen(float(at), ALL, ALL, known))
        assert not proposals
    memory, proposals = Parking(OPTIONS).step(
        Quiet(0.0, 59.0), Seen(1e6, ALL, ALL, dict.fromkeys(ALL, 1.0))
    )
    assert (memory.lasted, proposals) == (0.0, ())


def test_busy_is_spread_at_once() -> None:
    parked = CPUSet(range(8, 16))
    seen = Seen(1.0, ALL, ALL - parked, dict.fromkeys(ALL, 0.2), parked=parked)
    _, (one,) = Parking(OPTIONS).step(None, seen)
    assert isinstance(one, Unpark)
    assert one.why == "the shared pool uses 6.40 of 8 CPUs (80%), unparkFrom is 70%"


def test_thresholds_without_a_dead_band_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unparkFrom 40% must be more"):
        msgspec.convert({"unparkFrom": "40%"}, ParkingOptions)
