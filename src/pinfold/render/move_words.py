"""A plan of moves in words: who goes where, in which steps, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from pinfold.core.moves.objective import (
    CORES,
    DISTANCE,
    NUMA_NODES,
    PARKED,
    SOCKETS,
    UNCORE_CACHES,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import (
    MAKE_ROOM,
    REBALANCE,
    RESIZE,
    MoveOwner,
    MovePlan,
    MoveStep,
    MovingOwner,
)

_LEVELS: Final = {
    NUMA_NODES: "NUMA nodes beyond need",
    SOCKETS: "sockets beyond need",
    UNCORE_CACHES: "uncore caches beyond need",
    CORES: "cores beyond need",
    DISTANCE: "distance to memory and devices",
    PARKED: "CPUs outside of what work is gathered on",
}
_POOL: Final = "shared"
_NOTHING: Final = {
    REBALANCE: "nothing moves: no better placement can be had",
    MAKE_ROOM: "nothing has to move: there is room",
}


def owner_name(owner: MoveOwner) -> str:
    """``namespace/name container``; a pod of which no name is known by its uid."""
    pod = owner.pod or owner.uid
    return pod if owner.container is None else f"{pod} {owner.container}"


def moving(plan: MovePlan) -> tuple[MovingOwner, ...]:
    """Those that have other CPUs at the end."""
    return tuple(owner for owner in plan.owners if owner.before != owner.after)


def headline(plan: MovePlan) -> str:
    """``2 containers move, 6 CPUs anew``."""
    price = plan.price
    if not price.owners and plan.stays:
        return "nothing moves: no better placement can be had for those who may move"
    if not price.owners:
        return _NOTHING.get(plan.why, "nothing moves")
    whole = all(owner.container is None for owner in moving(plan))
    who = _counted(price.owners, "pod" if whole else "container")
    verb = "moves" if price.owners == 1 else "move"
    if plan.why == RESIZE:
        verb = "is resized" if price.owners == 1 else "are resized"
    text = f"{who} {verb}, {_counted(price.cpus, 'CPU')} anew"
    text += f", {_counted(price.detours, 'detour')}" if price.detours else ""
    return f"{text}, memory of {price.migrations} moved" if price.migrations else text


def owner_facts(plan: MovePlan) -> Iterator[tuple[MovingOwner, str, str]]:
    """Each owner that moves: the owner, ``4-5 → 6-7``, and a remark on memory and delay."""
    for owner in moving(plan):
        told = [f"told {_seconds(owner.delay)} before"] if owner.delay else []
        if owner.memory_before != owner.memory_after:
            told.append(f"memory {owner.memory_before} → {owner.memory_after}")
        yield owner, f"{owner.before or _POOL} → {owner.after or _POOL}", ", ".join(told)


def staying(plan: MovePlan) -> Iterator[str]:
    """Who may not move, and why; then what else is to be known."""
    for owner in plan.stays or ():
        yield f"{owner_name(owner)} stays: {owner.reason}"
    yield from plan.notes or ()


def step_texts(plan: MovePlan) -> Iterator[str]:
    """Each step in a sentence."""
    for step in plan.steps:
        yield _step(step)


def made(plan: MovePlan) -> int:
    """How many of the steps are certainly made; the last that is on record may not be."""
    return max(plan.written - 1, 0)


def plan_facts(plan: MovePlan) -> Iterator[tuple[str, str, str]]:
    """What is better afterwards, level by level, and the shared pool: name, value, remark."""
    objective = plan.objective or None
    if objective is not None:
        rows = zip(objective.levels, objective.before, objective.after, strict=True)
        counted = [(level, then, now) for level, then, now in rows if then or now]
        for level, before, after in counted:
            remark = "of all containers together" if level == counted[0][0] else ""
            yield _LEVELS.get(level, level), _change(str(before), str(after)), remark
        if not counted:
            yield "Placement", "as good as can be", "no container in more places than it needs"
    if plan.pool != plan.pool_after:
        yield "Shared pool", _change(plan.pool or "none", plan.pool_after or "none"), ""


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} → {after}"


def _step(step: MoveStep) -> str:
    who = "" if step.owner is UNSET else owner_name(step.owner)
    was, now = CPUSet.parse(step.was or ""), CPUSet.parse(step.now or "")
    match step.kind:
        case "shrink-pool":
            claims = () if step.claims is UNSET else step.claims
            if len(claims) == 1:
                return f"take {step.cpus} out of the shared pool, for {owner_name(claims[0])}"
            each = [f"{owner_name(one)} ({one.cpus})" for one in claims if one.cpus]
            return f"take {step.cpus} out of the shared pool, for {_listed(each)}"
        case "widen":
            wider = [f"run on {now}"] * (was != now)
            wider += [f"use memory of {_nodes(step.memory_now)}"] * (step.memory_now is not UNSET)
            return f"let {who} {' and '.join(wider)}"
        case "announce":
            before = f", {_seconds(step.seconds)} before any is taken" if step.seconds else ""
            what = f"will have {now}" if now else "will share CPUs"
            return f"tell {who} that it {what}{before}"
        case "wait":
            return f"wait {_seconds(step.seconds or 0.0)}, or until {who} acknowledges it"
        case "narrow" if not now:
            return f"take {was} from {who}, which runs in the shared pool then"
        case "narrow":
            return f"take {was - now} from {who}, which runs on {now} then"
        case "migrate-memory":
            away, to = _nodes(step.memory_was), _nodes(step.memory_now)
            return f"move the memory of {who} from {away} to {to}"
        case "give-back" if step.cpus:
            return f"give {step.cpus} back to the shared pool"
        case "give-back":
            return "let go of what nobody runs on any more"
    return step.kind


def _nodes(nodes: str | UnsetType) -> str:
    found = CPUSet.parse(nodes or "")
    return f"NUMA node{'s' * (len(found) != 1)} {found}"


def _seconds(seconds: float | UnsetType) -> str:
    return f"{seconds or 0.0:g} s"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _listed(texts: Sequence[str]) -> str:
    *first, last = texts or ("nobody",)
    return f"{', '.join(first)} and {last}" if first else last
