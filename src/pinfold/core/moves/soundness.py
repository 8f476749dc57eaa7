"""Whether a plan of moves that was read from somewhere can be carried out."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pinfold.core.moves.owners import Owner
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
    states,
)


def unsound(plan: MovePlan) -> str:
    """What of a plan is none of this node's making; "" where nothing is.

    In every state that it goes through no CPU may have two owners (of two pods; what containers of
    one pod have in common is theirs to share), nor be anybody's and in the pool.
    """
    told: set[Owner] = set()
    for number, step in enumerate(plan.steps, 1):
        for owner in _owners(step):
            if owner not in plan.start.placed:
                return f"step {number} names {owner}, who has no part in it"
        if isinstance(step, Announce) and step.seconds > 0:
            told.add(step.owner)
        if isinstance(step, Wait) and step.owner not in told:
            return f"step {number} waits for {step.owner}, who was told nothing"
    before = plan.start
    shares = {one for one in before.placed if not (before.placed[one] and plan.end.placed[one])}
    for number, state in enumerate(states(plan)):
        if number and not _follows(plan.steps[number - 1], before, back=plan.back):
            return f"step {number} does not begin where the one before it ends"
        if problem := _conflict(state, shares):
            return f"after step {number} {problem}"
        before = state
    return "" if before.is_settled else "it ends before everybody has what he claims"


def _owners(step: Step) -> Iterable[Owner]:
    match step:
        case ShrinkPool(claims):
            return claims.keys()
        case GiveBack():
            return ()
        case _:
            return (step.owner,)


def _follows(step: Step, before: MoveState, *, back: bool) -> bool:
    match step:
        case ShrinkPool():
            return step.cpus <= before.pool
        case Widen(owner, was, now):
            return before.placed[owner] <= now and (back or was == before.placed[owner])
        case Narrow(owner, was, now):
            # On the way back somebody may never have got what was to be taken from him.
            return now <= before.placed[owner] and (back or was == before.placed[owner])
        case _:
            return True


def _conflict(state: MoveState, shares: Collection[Owner]) -> str:
    pods: dict[str, int] = {}
    for owner, cpus in state.claims.items():
        placed = state.placed[owner]
        if not (placed or owner in shares) or not placed <= cpus:
            return f"{owner} is on CPUs {placed or 'of nobody'}, and claims {cpus or 'none'}"
        pods[owner.pod_uid] = pods.get(owner.pod_uid, 0) | cpus.mask
    taken = state.pool.mask
    for uid, mask in pods.items():
        if taken & mask:
            return f"CPUs of pod {uid!r} are also another pod's, or in the shared pool"
        taken |= mask
    return ""
