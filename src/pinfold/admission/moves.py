"""Moves on the ledger and as a document, from which they are read again after a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState
from pinfold.core.moves.objective import LEVELS
from pinfold.core.moves.owners import WHOLE_POD, MoveOptions, Owner
from pinfold.core.moves.rebalance import Rebalance
from pinfold.core.moves.resize import ResizeDecision
from pinfold.core.moves.steps import (
    Announce,
    GiveBack,
    MigrateMemory,
    MovePlan,
    MoveState,
    Narrow,
    ShrinkPool,
    Step,
    Wait,
    Widen,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents import move_plan as document
from pinfold.documents.plan import PlannedResize
from pinfold.ports.records import PendingMove
from pinfold.state.ledger import Ledger

NO_NAMES: Final[Mapping[str, str]] = {}
NOT_MOVED: Final[Mapping[int, document.MemoryMoved]] = {}

_Resize = TypeVar("_Resize", bound=PlannedResize)


class MoveDocumentError(ValueError):
    """A document of a plan that this version cannot carry out."""


def moves_on(node: Node, state: NodeState, options: MoveOptions) -> MoveOptions:
    """The options, with what follows from the node.

    Nobody goes to CPUs that are offline, and with ``full-pcpus-only`` nobody shares a core.
    """
    policy = node.cpu_policy
    return replace(
        options,
        topology=None if policy is None else policy.topology,
        whole_cores=policy is not None and policy.options.full_pcpus_only,
        avoid=options.avoid | state.offline,
    )


def with_claims(ledger: Ledger, state: MoveState) -> Ledger:
    """The ledger with the claims of those who move, all at once.

    Raises:
        InvariantError: a claim is somebody else's, or nobody's to give.
    """
    before = ledger
    pods: dict[str, dict[str, CPUSet]] = {}
    for owner, cpus in state.claims.items():
        had = before.assignments.get(owner.pod_uid, {})
        if had.get(owner.container, CPUSet()) != cpus:
            pods.setdefault(owner.pod_uid, dict(had))[owner.container] = cpus
    # What leaves one pod may come to another one, so all let go first.
    for uid in pods:
        ledger = ledger.without(uid)
    for uid, claims in pods.items():
        # Who claims nothing shares.
        containers = {name: cpus for name, cpus in claims.items() if cpus}
        idle = {n: c & containers[n] for n, c in before.idle.get(uid, {}).items()}
        ledger = ledger.with_pod(uid, containers, idle)
    return ledger


def move_plan_document(  # noqa: PLR0913 - what only some plans have is named
    plan: MovePlan,
    why: str,
    names: Mapping[str, str] = NO_NAMES,
    objective: document.MoveObjective | UnsetType = UNSET,
    *,
    written: int = 0,
    memory: Mapping[int, document.MemoryMoved] = NOT_MOVED,
    problem: str = "",
) -> document.MovePlan:
    """The document of a plan.

    Args:
        plan: the plan.
        why: one of :data:`pinfold.documents.move_plan.WHY`; a way back is an ``undo`` in any case.
        names: ``namespace/name`` of the pods by uid.
        objective: how good the placements are.
        written: how many of its steps are on record.
        memory: what became of the memory in the steps of these numbers.
        problem: why it is the way back from another one.
    """
    start, end = plan.start, plan.end

    def owner(one: Owner) -> document.MoveOwner:
        return document.MoveOwner(
            uid=one.pod_uid,
            pod=names.get(one.pod_uid, ""),
            container=None if one.is_pod else one.container,
        )

    def moving(one: Owner) -> document.MovingOwner:
        mems = start.mems.get(one)
        coming = start.coming.get(one)
        return document.MovingOwner(
            uid=one.pod_uid,
            pod=names.get(one.pod_uid, ""),
            container=None if one.is_pod else one.container,
            before=str(start.placed[one]),
            after=str(end.placed[one]),
            claims=str(start.claims[one]),
            delay=plan.delays.get(one, 0.0),
            coming=UNSET if coming is None else str(coming),
            memory_before=UNSET if mems is None else str(mems),
            memory_after=UNSET if mems is None else str(end.mems[one]),
        )

    def claim(one: Owner, cpus: CPUSet) -> document.ClaimedCPUs:
        told = owner(one)
        return document.ClaimedCPUs(
            uid=told.uid, pod=told.pod, container=told.container, cpus=str(cpus)
        )

    def step(number: int, one: Step) -> document.MoveStep:
        match one:
            case ShrinkPool(claims):
                told = [claim(*item) for item in claims.items()]
                return document.MoveStep(kind="shrink-pool", claims=told, cpus=str(one.cpus))
            case GiveBack(cpus):
                return document.MoveStep(kind="give-back", cpus=str(cpus))
            case Widen(who, was, now, mems_was, mems):
                return document.MoveStep(
                    kind="widen",
                    owner=owner(who),
                    was=str(was),
                    now=str(now),
                    memory_was=UNSET if mems_was is None else str(mems_was),
                    memory_now=UNSET if mems is None else str(mems),
                )
            case Narrow(who, was, now):
                return document.MoveStep(
                    kind="narrow", owner=owner(who), was=str(was), now=str(now)
                )
            case MigrateMemory(who, was, now):
                return document.MoveStep(
                    kind="migrate-memory",
                    owner=owner(who),
                    memory_was=str(was),
                    memory_now=str(now),
                    memory=memory.get(number, UNSET),
                )
            case Announce(who, was, now, seconds):
                return document.MoveStep(
                    kind="announce", owner=owner(who), was=str(was), now=str(now), seconds=seconds
                )
            case Wait(who, seconds):
                return document.MoveStep(kind="wait", owner=owner(who), seconds=seconds)

    return document.MovePlan(
        why=document.UNDO if plan.back else why,
        pool=str(start.pool),
        pool_after=str(end.pool),
        owners=[moving(one) for one in start.placed],
        mixed=[owner(one) for one in sorted(plan.mixed)],
        steps=[step(number, one) for number, one in enumerate(plan.steps)],
        written=written,
        problem=problem or UNSET,
        price=move_price(plan),
        objective=objective,
    )


def pending_move_document(
    move: PendingMove, names: Mapping[str, str] = NO_NAMES
) -> document.MovePlan:
    """The document of a plan that is in flight, or was; see :func:`move_plan_document`."""
    return move_plan_document(
        move.plan,
        move.why,
        names,
        written=move.written,
        memory=move.memory,
        problem=move.problem,
    )


def rebalance_document(
    found: Rebalance,
    why: str,
    names: Mapping[str, str] = NO_NAMES,
    notes: Sequence[str] = (),
) -> document.MovePlan:
    """The document of better places, or of room for somebody; see :func:`move_plan_document`."""
    objective = document.MoveObjective(levels=LEVELS, before=found.before, after=found.after)
    stays = [
        document.StayingOwner(
            uid=one.pod_uid, pod=names.get(one.pod_uid, ""), container=one.container, reason=why_not
        )
        for one, why_not in found.stays.items()
        if why == document.REBALANCE
    ]
    told = move_plan_document(found.plan, why, names, objective)
    return replace(told, stays=stays or UNSET, notes=list(notes) or UNSET)


def resize_document(
    kind: type[_Resize], pod: str, cpus: float, decision: ResizeDecision, plan: MovePlan | None
) -> _Resize:
    """The document of the answer to a resize.

    Args:
        kind: which document.
        pod: ``namespace/name``.
        cpus: how many CPUs were asked for.
        decision: the answer.
        plan: its moves; None where nothing moves.
    """
    owner = decision.owner
    return kind(
        pod=pod,
        container=owner.container,
        cpus=cpus,
        feasible=decision.feasible,
        reason=decision.reason,
        message=decision.message,
        before=str(decision.before),
        after=str(decision.after),
        moves=UNSET
        if plan is None
        else move_plan_document(plan, document.RESIZE, {owner.pod_uid: pod}),
    )


def move_price(plan: MovePlan) -> document.MovePrice:
    """What a plan costs: who moves, and how much of it is new to him."""
    start, end = plan.start.placed, plan.end.placed
    return document.MovePrice(
        owners=len(plan.moved),
        cpus=sum(len(end[one] - start[one]) for one in plan.moved),
        detours=sum(isinstance(s, Announce) and s.coming != end[s.owner] for s in plan.steps),
        migrations=sum(isinstance(step, MigrateMemory) for step in plan.steps),
    )


def move_plan_of(told: document.MovePlan) -> MovePlan:
    """The plan of a document, the very one that it was made of.

    Raises:
        MoveDocumentError: a step that this version does not know, or one without what it needs.
    """
    owners = {_owner(one): one for one in told.owners}
    return MovePlan(
        MoveState(
            claims={one: _cpus(said.claims) for one, said in owners.items()},
            placed={one: _cpus(said.before) for one, said in owners.items()},
            pool=_cpus(told.pool),
            mems={
                one: _cpus(said.memory_before)
                for one, said in owners.items()
                if said.memory_before is not UNSET
            },
            coming={
                one: _cpus(said.coming) for one, said in owners.items() if said.coming is not UNSET
            },
        ),
        tuple(_step(step) for step in told.steps),
        frozenset(_owner(one) for one in told.mixed),
        {one: said.delay for one, said in owners.items() if said.delay},
        told.why == document.UNDO,
    )


def _step(told: document.MoveStep) -> Step:
    match told.kind:
        case "shrink-pool" if told.claims is not UNSET:
            return ShrinkPool({_owner(one): _cpus(one.cpus) for one in told.claims})
        case "give-back":
            return GiveBack(_cpus(told.cpus))
    if told.owner is UNSET:
        raise _unknown(told)
    owner = _owner(told.owner)
    seconds = 0.0 if told.seconds is UNSET else told.seconds
    match told.kind:
        case "widen" if told.memory_now is UNSET:
            return Widen(owner, _cpus(told.was), _cpus(told.now))
        case "widen":
            mems_was, mems = _cpus(told.memory_was), _cpus(told.memory_now)
            return Widen(owner, _cpus(told.was), _cpus(told.now), mems_was, mems)
        case "narrow":
            return Narrow(owner, _cpus(told.was), _cpus(told.now))
        case "migrate-memory":
            return MigrateMemory(owner, _cpus(told.memory_was), _cpus(told.memory_now))
        case "announce":
            return Announce(owner, _cpus(told.was), _cpus(told.now), seconds)
        case "wait":
            return Wait(owner, seconds)
    raise _unknown(told)


def _unknown(told: document.MoveStep) -> MoveDocumentError:
    return MoveDocumentError(
        f"a plan of moves is under way with a step {told.kind!r} that this version cannot make; "
        "start the version that planned it, and let it end"
    )


def _owner(told: document.MoveOwner) -> Owner:
    return Owner(told.uid, WHOLE_POD if told.container is None else told.container)


def _cpus(told: str | UnsetType) -> CPUSet:
    if told is UNSET:
        raise MoveDocumentError(
            "a plan of moves is under way of which a set of CPUs or NUMA nodes is missing; start "
            "the version that planned it, and let it end"
        )
    return CPUSet.parse(told)
