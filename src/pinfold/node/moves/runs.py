"""Which steps of a plan are made together, and what else there is to a step; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pinfold.core.moves.gone import is_gone
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import (
    Announce,
    MigrateMemory,
    MovePlan,
    Narrow,
    ShrinkPool,
    Step,
    Wait,
    Widen,
    after,
)
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import PendingMove


def is_told(step: Step) -> bool:
    """Whether a step is an announcement that a deadline begins with; others are told beside."""
    return isinstance(step, Announce) and step.seconds > 0


def run_end(plan: MovePlan, first: int) -> int:
    """The number of the step behind the run that begins with a step.

    The steps of a run are written down at once, and then made one after the other.  All of them
    leave the same claims, so the record is right whichever of them is under way, and whoever reads
    it makes them in an order as good: the shared pool first.  A wait, a migration, and an
    announcement from which a deadline is counted, end a run.
    """
    steps = plan.steps
    if is_told(steps[first]):
        end = first + 1
        while end < len(steps) and is_told(steps[end]):
            end += 1
        return end
    if isinstance(steps[first], Wait | MigrateMemory):
        return first + 1
    end = first + 1
    claims = after(plan, end).claims
    while end < len(steps) and not (
        is_told(steps[end])
        or isinstance(steps[end], Wait | MigrateMemory)
        or after(plan, end + 1).claims != claims
    ):
        end += 1
    return end


def last_run(plan: MovePlan, written: int) -> int:
    """The number of the first step of the last run that is on record, which is made again."""
    first = 0
    while (end := run_end(plan, first)) < written:
        first = end
    return first


def is_over(move: PendingMove) -> bool:
    """Whether nothing is left to be made but news, which are told from the books anyway."""
    left = move.plan.steps[move.made :]
    return all(isinstance(step, Announce) and not is_told(step) for step in left)


def keys_of(*steps: Step) -> Iterator[ContainerKey]:
    """The containers that these steps touch in the kernel."""
    for step in steps:
        if isinstance(step, Widen | Narrow | MigrateMemory) and not is_gone(step.owner):
            yield key_of(step.owner)


def key_of(owner: Owner) -> ContainerKey:
    """The container that owns, for ports."""
    return ContainerKey(*owner)


def still_for(
    run: Sequence[Step], keys: Collection[ContainerKey]
) -> list[Collection[ContainerKey] | None]:
    """What has to be still while a run is made: those who share the pool, and its owners."""
    shared: list[Collection[ContainerKey] | None] = []
    if any(isinstance(step, ShrinkPool) for step in run):
        shared.append(None)
    return [*shared, keys] if keys else shared
