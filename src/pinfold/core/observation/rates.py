"""The kernel's counters of a container or a CPU, and what two readings of them say.

Counters are microseconds since the cgroup was made or the machine was started; None is what this
kernel does not tell.  Rates are seconds in each second, so 1.5 is one and a half CPUs in use.
Source: the kernel's ``cgroup-v2.rst``, ``accounting/psi.rst`` and ``scheduler/sched-stats.rst``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from pinfold.core.observation.history import History, Sample

_MICROSECONDS: Final = 1_000_000


class Stalls(Struct, frozen=True):
    """How long ``some`` or all (``full``) tasks have been stalled for want of something (PSI).

    Kernels before 5.13 have no ``full`` for the CPU.
    """

    some: int
    full: int | None = None


class Counters(Struct, frozen=True):
    """What the kernel has counted for a container.

    Attributes:
        incarnation: which cgroup it was; one that is made anew counts from 0.
        usage: CPU time.
        wait: time for which it was ready to run and no CPU was free for it.
        periods: quota periods in which it wanted to run.
        throttled_periods: those in which its quota was used up.
        throttled: for how long it was kept from running by that.
        pressure: by what there was too little of: ``cpu``, ``memory``, ``io``.
    """

    incarnation: int
    usage: int | None = None
    wait: int | None = None
    periods: int | None = None
    throttled_periods: int | None = None
    throttled: int | None = None
    pressure: Mapping[str, Stalls] = field(default_factory=dict)


class Pressure(Struct, frozen=True):
    """Shares of the time, 0 to 1, for which some or all tasks were stalled."""

    some: float
    full: float | None = None


class Load(Struct, frozen=True):
    """What a container did on average in the ``seconds`` between two readings.

    ``throttled_periods`` is a share of its quota periods, None where there were none.
    """

    seconds: float
    usage: float | None = None
    wait: float | None = None
    throttled: float | None = None
    throttled_periods: float | None = None
    pressure: Mapping[str, Pressure] = field(default_factory=dict)


def is_continued(before: Counters, after: Counters) -> bool:
    """Whether a reading counts on from another: the same cgroup, and nothing has gone back."""
    # Hundreds are compared each second; who rests has told the very same.
    return before is after or (
        before.incarnation == after.incarnation
        and _grows(before.usage, after.usage)
        and _grows(before.wait, after.wait)
        and _grows(before.periods, after.periods)
        and _grows(before.throttled_periods, after.throttled_periods)
        and _grows(before.throttled, after.throttled)
        and (
            not before.pressure
            or all(is_stalled_on(old, new) for _, old, new in _common(before, after))
        )
    )


def is_stalled_on(before: Stalls, after: Stalls) -> bool:
    """The same of stalls."""
    return before.some <= after.some and _grows(before.full, after.full)


def _grows(before: int | None, after: int | None) -> bool:
    return before is None or after is None or before <= after


def _common(before: Counters, after: Counters) -> Sequence[tuple[str, Stalls, Stalls]]:
    new = after.pressure
    if not before.pressure:
        return ()
    return [(what, old, new[what]) for what, old in before.pressure.items() if what in new]


def load_between(before: Sample[Counters], after: Sample[Counters]) -> Load:
    """The rates between two readings of one history; what either lacks is None."""
    seconds, old, new = after.at - before.at, before.value, after.value
    return Load(
        seconds=seconds,
        usage=_rate(old.usage, new.usage, seconds),
        wait=_rate(old.wait, new.wait, seconds),
        throttled=_rate(old.throttled, new.throttled, seconds),
        throttled_periods=_share(old, new),
        pressure={
            what: pressure_between(was, now, seconds) for what, was, now in _common(old, new)
        },
    )


def pressure_between(before: Stalls, after: Stalls, seconds: float) -> Pressure:
    """The shares of so many seconds; the kernel reads another clock, so they are cut at 1."""
    some = _rate(before.some, after.some, seconds) or 0.0
    full = _rate(before.full, after.full, seconds)
    return Pressure(min(1.0, some), None if full is None else min(1.0, full))


def idle_between(before: Sample[int], after: Sample[int]) -> float:
    """The share of the time, 0 to 1, for which a CPU had nothing to do.

    The kernel counts it in ticks, mostly of 10 ms, so it is cut at 1.
    """
    return min(1.0, (after.value - before.value) / _MICROSECONDS / (after.at - before.at))


def container_history() -> History[Counters]:
    """A history of a container."""
    return History(is_continued)


def counter_history() -> History[int]:
    """A history of one number, such as the idle time of a CPU."""
    return History(int.__le__)


def _rate(before: int | None, after: int | None, seconds: float) -> float | None:
    if before is None or after is None:
        return None
    return (after - before) / _MICROSECONDS / seconds


def _share(old: Counters, new: Counters) -> float | None:
    if old.periods is None or new.periods is None or old.periods == new.periods:
        return None
    if old.throttled_periods is None or new.throttled_periods is None:
        return None
    throttled = new.throttled_periods - old.throttled_periods
    return min(1.0, throttled / (new.periods - old.periods))
