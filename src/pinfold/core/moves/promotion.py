"""An owner that comes from the shared pool, and one that goes there: plans like all others.

While it shares it claims nothing; in a plan its CPUs are none then.  What it is to own is taken out
of the pool before it comes, and it has left what goes back.
"""

from __future__ import annotations

from pinfold.core.moves.owners import Holdings, MoveError, Owner, Refusal
from pinfold.core.moves.steps import (
    Announce,
    GiveBack,
    MovePlan,
    MoveState,
    Narrow,
    ShrinkPool,
    Step,
    Wait,
    Widen,
)
from pinfold.core.values.cpuset import CPUSet

_NONE = CPUSet()


def promote(holdings: Holdings, owner: Owner, cpus: CPUSet, mixed: frozenset[Owner]) -> MovePlan:
    """The steps after which somebody who shares has CPUs of his own.

    Args:
        holdings: who has what now.
        owner: who shares.
        cpus: CPUs of the shared pool.
        mixed: all owners whose cpusets follow the pool.

    Raises:
        MoveError: he has some already, or they are not free.
    """
    if _held(holdings, owner) is not None:
        raise MoveError(Refusal.TWICE, f"{owner} has CPUs of its own", "move or resize it")
    if not cpus or not cpus <= holdings.default - holdings.limits.reserved:
        raise MoveError(
            Refusal.OUTSIDE,
            f"{owner} is to get CPUs {cpus or 'of nobody'}, which are reserved, or not in the "
            "shared pool",
            "choose others",
        )
    start = MoveState({owner: _NONE}, {owner: _NONE}, holdings.default)
    steps: tuple[Step, ...] = (
        ShrinkPool({owner: cpus}),
        Widen(owner, _NONE, cpus),
        Announce(owner, _NONE, cpus),
    )
    return MovePlan(start, steps, mixed)


def demote(
    holdings: Holdings, owner: Owner, mixed: frozenset[Owner], delay: float = 0.0
) -> MovePlan:
    """The steps after which an owner shares, and its CPUs are in the pool.

    Args:
        holdings: who has what now.
        owner: who has CPUs of his own.
        mixed: all owners whose cpusets follow the pool.
        delay: seconds for which he is told before.

    Raises:
        MoveError: he has none.
    """
    cpus = _held(holdings, owner)
    if cpus is None:
        raise MoveError(Refusal.UNKNOWN_OWNER, f"{owner} has no CPUs of its own", "it shares")
    start = MoveState({owner: cpus}, {owner: cpus}, holdings.default)
    steps: list[Step] = [Announce(owner, cpus, _NONE, delay)]
    if delay:
        steps.append(Wait(owner, delay))
    # What others of its pod use, too, stays theirs.
    others = CPUSet.union_of(
        held
        for name, held in holdings.assignments[owner.pod_uid].items()
        if name != owner.container
    )
    steps += [Narrow(owner, cpus, _NONE), GiveBack(cpus - others)]
    delays = {owner: delay} if delay else {}
    return MovePlan(start, tuple(steps), mixed, delays)


def _held(holdings: Holdings, owner: Owner) -> CPUSet | None:
    return holdings.assignments.get(owner.pod_uid, {}).get(owner.container)
