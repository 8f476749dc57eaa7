"""What an owner has used just now of the CPUs that it has lent, from bare counters.

Idle time is counted in whole ticks, looks come late, and counters go back: what is known all the
same is told here, and what follows from it is the controller's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import Owner
from pinfold.core.values.cpuset import CPUSet

_WINDOW: Final = 0.06
"""Seconds that a quick look judges by, or one period where that is longer."""

_LONG: Final = 0.5
"""Seconds of looks that are remembered, to tell a change from a tick."""

_TICK: Final = 0.01
"""Seconds that idle time is counted in."""

_MICRO: Final = 1e-6


class QuickLook(Struct, frozen=True):
    """Counters at one moment: microseconds of CPU time by owner, and of idle time by CPU.

    Who could not be read is left out.  ``busy``: see :func:`remembered`.
    """

    at: float
    used: Mapping[Owner, int]
    idle: Mapping[int, int]
    busy: Mapping[int, float] = field(default_factory=dict)


class Holding(Struct, frozen=True):
    """What the quick look has to know of an owner: its CPUs, which are lent, if they are cores."""

    own: CPUSet
    lent: CPUSet
    has_siblings: bool = False


def remembered(looks: Sequence[QuickLook], look: QuickLook) -> tuple[QuickLook, ...]:
    """The looks that are needed from now on; all before one of an earlier clock are not.

    Idle time is counted in whole ticks: between two looks it errs by one for each CPU, which would
    hide what is used of a lent one where there are many.  So of each CPU the most is kept that it
    was busy for until now.  That stands still while the CPU is idle, goes with the time while it is
    busy, and errs by less than a tick else.
    """
    looks = () if looks and look.at <= looks[-1].at else looks
    before, busy = looks[-1].busy if looks else {}, {}
    for cpu, idle in look.idle.items():
        busy[cpu] = max(look.at - idle * _MICRO, before.get(cpu, -math.inf))
    look = replace(look, busy=busy)
    later = [one for one in looks if one.at >= look.at - _LONG]
    return (*(later or looks[-1:]), look)


def used_there(
    owner: Owner, holding: Holding, looks: Sequence[QuickLook], period: float
) -> float | None:
    """CPUs' worth of time that an owner has used of what it has lent, by the newest look.

    None: nobody knows, as it was not read, or its counter has gone back.  It is 0 where there is no
    look of before.

    Args:
        owner: whom it is about.
        holding: what it has lent.
        looks: those that are remembered.
        period: seconds between two of them.
    """
    newest = looks[-1]
    if owner not in newest.used:
        return None
    known = [one for one in looks[:-1] if owner in one.used]
    if not known:
        return 0.0
    window = period * max(1, math.floor(_WINDOW / period + _MICRO))
    # A timer is late now and then, never early.
    oldest = newest.at - window - period / 2
    first, before = known[0], next((one for one in known if one.at >= oldest), known[-1])
    passed = newest.at - before.at
    used = (newest.used[owner] - before.used[owner]) * _MICRO
    if used < 0:
        return None
    # So busy were its other CPUs: what is more, it has used of those that are lent.
    for cpu in holding.own - holding.lent:
        if cpu in before.busy and cpu in newest.busy:
            used -= _busy_for(cpu, passed, first, before, newest)
    return used / passed


def _busy_for(
    cpu: int, passed: float, first: QuickLook, before: QuickLook, newest: QuickLook
) -> float:
    """Seconds for which a CPU was busy between the last two.

    One that is busy for a part of the time is taken for as busy as usual where ticks may be all the
    difference: else what many are wrong by would look like use of what is lent.
    """
    busy = min(passed, newest.busy[cpu] - before.busy[cpu])
    if cpu not in first.busy or busy >= passed:
        return busy
    usual = (newest.busy[cpu] - first.busy[cpu]) * passed / (newest.at - first.at)
    return usual if usual > _TICK > abs(busy - usual) else busy


def has_siblings(cpus: CPUSet, topology: CPUTopology | None) -> bool:
    """Whether any of these CPUs is one of several threads of a core."""
    return topology is not None and any(
        len(topology.whole_cores(CPUSet([cpu]))) > 1 for cpu in cpus
    )


def holdings(
    owners: Iterable[tuple[Owner, CPUSet]], lent: CPUSet, topology: CPUTopology | None
) -> dict[Owner, Holding]:
    """Those of the owners who have lent something."""
    return {
        owner: Holding(own, own & lent, has_siblings(own & lent, topology))
        for owner, own in owners
        if own & lent
    }
