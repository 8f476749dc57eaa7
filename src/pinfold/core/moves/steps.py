"""The steps of a move, and what holds after each of them: the algebra of moves.

Three things are kept apart.  ``claims`` is who owns what on record (the ledger), ``placed`` what
the kernel lets an owner run on, ``pool`` where everybody else runs.  Before and after every step:
what is placed is claimed, claims of different owners are disjoint, and the pool is nobody's claim.
So no CPU has two owners at any instant, and a record that is read after a crash is right whichever
step was under way; everybody is then put where ``placed`` says, and the plan goes on or back.

The claims after step *n* (:func:`after`) are written down *before* step *n* is made.  All values
are absolute, so a step may be made again.  A plan takes everything that it needs from the pool in
its first step and gives back what it frees in its last: in between nobody else can have any of it,
and it can be undone from everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.core.moves.owners import MoveError, Owner, Refusal
from pinfold.core.values.cpuset import CPUSet

_NONE: Final = CPUSet()


class ShrinkPool(Struct, frozen=True):
    """Take CPUs out of the shared pool, for these owners, and see the kernel confirm it.

    Mixed owners are narrowed like the pool, before it counts as confirmed.
    """

    claims: Mapping[Owner, CPUSet]

    @property
    def cpus(self) -> CPUSet:
        """All that leaves the pool."""
        return CPUSet.union_of(self.claims.values())


class Widen(Struct, frozen=True):
    """Let an owner run on its old CPUs and the new ones; ``mems`` None leaves ``cpuset.mems``."""

    owner: Owner
    was: CPUSet
    now: CPUSet
    mems_was: CPUSet | None = None
    mems: CPUSet | None = None


class Announce(Struct, frozen=True):
    """Tell the owner what it will have; no sooner than in ``seconds`` anything is taken."""

    owner: Owner
    previous: CPUSet
    coming: CPUSet
    seconds: float = 0.0


class Wait(Struct, frozen=True):
    """Wait until ``seconds`` after the announcement, or until the owner acknowledges it."""

    owner: Owner
    seconds: float


class Narrow(Struct, frozen=True):
    """Take CPUs from an owner, and see the kernel confirm it."""

    owner: Owner
    was: CPUSet
    now: CPUSet


class MigrateMemory(Struct, frozen=True):
    """Narrow ``cpuset.mems``, and have the owner's pages moved."""

    owner: Owner
    was: CPUSet
    now: CPUSet


class GiveBack(Struct, frozen=True):
    """Let go of all that no owner is placed on; ``cpus`` go to the shared pool."""

    cpus: CPUSet


Step: TypeAlias = ShrinkPool | Widen | Announce | Wait | Narrow | MigrateMemory | GiveBack

_TOLD_FIRST: Final[Mapping[type, int]] = {Announce: 0, Wait: 1, Narrow: 2}


class MoveState(Struct, frozen=True):
    """What holds between two steps, of those who move; see the module.

    Attributes:
        claims: the CPUs that each owns on record.
        placed: the CPUs that the kernel lets each run on (a mixed owner on the pool besides); none
            of one that comes from the pool, or goes there: it is in it.
        pool: the shared pool, as far as the plan changes it.
        mems: ``cpuset.mems`` of those whose memory the plan touches.
        coming: what was announced last.
    """

    claims: Mapping[Owner, CPUSet]
    placed: Mapping[Owner, CPUSet]
    pool: CPUSet
    mems: Mapping[Owner, CPUSet] = field(default_factory=dict)
    coming: Mapping[Owner, CPUSet] = field(default_factory=dict)

    @property
    def is_settled(self) -> bool:
        """Whether everybody owns what it runs on, and no more."""
        return self.claims == self.placed


class MovePlan(Struct, frozen=True):
    """Where some owners go from ``start``, step by step.

    Attributes:
        start: what holds before the first step.
        steps: in their order.
        mixed: all owners whose cpusets follow the pool, those that do not move too.
        delays: seconds for which an owner is told before anything is taken.
        back: whether it is the way back from another plan.
    """

    start: MoveState
    steps: tuple[Step, ...]
    mixed: frozenset[Owner] = frozenset()
    delays: Mapping[Owner, float] = field(default_factory=dict)
    back: bool = False

    @property
    def end(self) -> MoveState:
        """What holds after the last step."""
        return after(self, len(self.steps))

    @property
    def moved(self) -> tuple[Owner, ...]:
        """The owners that have other CPUs at the end."""
        end = self.end.placed
        return tuple(owner for owner, cpus in self.start.placed.items() if end[owner] != cpus)


def after(plan: MovePlan, count: int) -> MoveState:
    """What holds once the first ``count`` steps are made.

    Its claims are what is to be on record before the last of these is made.
    """
    made = _Made(plan.start)
    for step in plan.steps[:count]:
        made.make(step)
    return made.state()


def states(plan: MovePlan) -> Iterator[MoveState]:
    """What holds before the first step, and after each."""
    made = _Made(plan.start)
    yield plan.start
    for step in plan.steps:
        made.make(step)
        yield made.state()


def undo(plan: MovePlan, written: int) -> MovePlan:
    """The way back from a plan of which ``written`` steps are on record; a plan like any other.

    The last of these may have been made, in part or not at all.

    Raises:
        MoveError: CPUs have gone back to the shared pool, and may be anybody's by now; or the plan
            is a way back itself.
    """
    if any(isinstance(step, GiveBack) for step in plan.steps[:written]):
        raise MoveError(
            Refusal.FINISHED,
            "the plan has given CPUs back to the shared pool, and cannot be undone",
            "go on with it, and plan the way back as a new one",
        )
    if plan.back:
        raise MoveError(
            Refusal.FINISHED,
            "the plan is the way back from another one, and cannot be undone",
            "go on with it, and plan what is wanted as a new one",
        )
    start = after(plan, written)
    steps: list[Step] = []
    for step in reversed(plan.steps[:written]):
        steps += _inverse(plan, start, step)
    # All are told first, so that they wait together.
    steps = [
        step
        for _, run in groupby(steps, key=lambda s: isinstance(s, Announce | Wait | Narrow))
        for step in sorted(run, key=lambda s: _TOLD_FIRST.get(type(s), 0))
    ]
    back = replace(plan, start=start, steps=tuple(steps), back=True)
    if back.end.is_settled:
        return back
    return replace(back, steps=(*steps, GiveBack(_NONE)))


def stopped(plan: MovePlan, refused: int, written: int) -> MovePlan:
    """What is left of a way back whose step number ``refused`` cannot be made.

    Nobody gets any more: who was to be widened stays as he is, from whom was to be taken keeps it.
    Who can leave what he has beyond that leaves it, after his time.  Of ``written`` steps on record
    those from the refused one on may have been made, in part or not at all.
    """
    state = after(plan, refused)
    placed = dict(state.placed)
    steps: list[Step] = []
    for step in plan.steps[refused:written]:
        if isinstance(step, Widen) and not step.now <= placed[step.owner]:
            placed[step.owner] |= step.now
            steps.append(Narrow(step.owner, placed[step.owner], state.placed[step.owner]))
    start = replace(after(plan, written), placed=placed)
    steps += _leaving(plan.steps[refused:], state.placed)
    rest = replace(plan, start=start, steps=tuple(steps))
    freed = CPUSet.union_of(start.claims.values()) - CPUSet.union_of(rest.end.placed.values())
    return replace(rest, steps=(*steps, GiveBack(freed)))


def _leaving(steps: Sequence[Step], placed: Mapping[Owner, CPUSet]) -> list[Step]:
    """Of steps whose first one is refused, those of owners who only leave CPUs.

    Whose turn to be widened comes goes no further: where he would go then is not free.
    """
    refused, *later = steps
    stays: set[Owner] = {refused.owner} if isinstance(refused, Widen) else set()
    left: list[Announce | Wait | Narrow] = []
    for step in later:
        if isinstance(step, Widen):
            stays.add(step.owner)
        elif isinstance(step, Announce | Wait | Narrow) and step.owner not in stays:
            left.append(step)
    leaves = {
        step.owner for step in left if isinstance(step, Narrow) and step.now < placed[step.owner]
    }
    return [step for step in left if step.owner in leaves]


class _Made:
    """What holds while steps are made one after the other."""

    def __init__(self, start: MoveState) -> None:
        self.claims, self.placed = dict(start.claims), dict(start.placed)
        self.mems, self.coming = dict(start.mems), dict(start.coming)
        self.pool = start.pool

    def state(self) -> MoveState:
        """What holds now, and stays so whatever is made after it."""
        claims, placed = dict(self.claims), dict(self.placed)
        return MoveState(claims, placed, self.pool, dict(self.mems), dict(self.coming))

    def make(self, step: Step) -> None:
        """One more step."""
        match step:
            case ShrinkPool(claims):
                for owner in claims.keys() & self.claims.keys():
                    self.claims[owner] |= claims[owner]
                self.pool -= step.cpus
            case Widen(owner, _, now):
                # Who left a CPU keeps its claim until somebody else needs it.
                for other, cpus in self.claims.items():
                    if cpus is not self.placed[other] and not cpus.isdisjoint(now):
                        self.claims[other] = cpus - (now - self.placed[other])
                self.claims[owner] |= now
                self.placed[owner] = now
                if step.mems is not None:
                    self.mems[owner] = step.mems
            case Narrow(owner, _, now):
                self.placed[owner] = now
            case MigrateMemory(owner, _, now):
                self.mems[owner] = now
            case Announce(owner, _, coming):
                self.coming[owner] = coming
            case GiveBack(cpus):
                self.claims = dict(self.placed)
                self.pool |= cpus
            case Wait():
                pass


def _inverse(plan: MovePlan, end: MoveState, step: Step) -> list[Step]:
    match step:
        case ShrinkPool():
            return [GiveBack(step.cpus)]
        case Widen(owner, was, now, mems_was, mems):
            back: list[Step] = []
            if now != was:
                delay = plan.delays.get(owner, 0.0)
                back.append(Announce(owner, now, was, delay))
                back += [Wait(owner, delay)] if delay else []
                back.append(Narrow(owner, now, was))
            if mems is not None and mems_was is not None:
                back.append(MigrateMemory(owner, mems, mems_was))
            return back
        case Narrow(owner, was, now):
            return [Widen(owner, now, was)]
        case MigrateMemory(owner, was, now):
            cpus = end.placed[owner]
            return [Widen(owner, cpus, cpus, now, was)]
        case Announce(owner, previous, coming) if coming <= previous:
            # Who was given something as well is told when that is taken.
            return [Announce(owner, coming, previous)]
        case _:
            return []
