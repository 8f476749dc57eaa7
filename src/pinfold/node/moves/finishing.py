"""What is written down when a plan of moves is over."""

from __future__ import annotations

from msgspec.json import encode
from msgspec.structs import replace

from pinfold.admission.admission import recount
from pinfold.admission.moves import move_plan_document
from pinfold.core.moves.gone import is_gone
from pinfold.core.moves.rebalance import carried
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.draft import Draft
from pinfold.node.drafted import NODE
from pinfold.node.recovery.asked import asking
from pinfold.ports.records import PendingMove, PodRecord


def finish(draft: Draft) -> None:
    """The plan in flight is over: claims are what is placed, and the pods' records say so.

    Raises:
        InvariantError: the claims are somebody else's.
    """
    move = draft.move
    if move is None:
        return
    steps = len(move.plan.steps)
    if move.written < steps:
        move = replace(move, written=steps, made=steps)
        draft.carry(move)
    if move.resize is not None:
        owner, back = move.resize.owner, move.plan.back
        draft_cpus(draft, *owner, move.resize.was if back else move.resize.now)
    _carry_baselines(draft, move)
    draft.carry(None)
    _note(draft, move)


def draft_cpus(draft: Draft, uid: str, container: str, cpus: int) -> None:
    """Another number of CPUs for a container, in its pod's manifest and in what is requested."""
    pod = draft.pod(uid)
    if pod is None:
        return
    record, workload = asking(pod.record, pod.workload, container, cpus)
    if workload is pod.workload:
        return
    draft.state = recount(draft.state, pod.workload.pod, workload.pod)
    draft.put(pod, record, workload)


def _carry_baselines(draft: Draft, move: PendingMove) -> None:
    """The CPUs that owners were admitted with, where they have other ones now."""
    plan, policy = move.plan, draft.node.cpu_policy
    for owner, old in plan.start.placed.items():
        pod = draft.pod(owner.pod_uid)
        if is_gone(owner) or pod is None or (now := pod.record.baseline(owner.container)) is None:
            continue
        new = plan.end.placed[owner]
        if plan.back:
            then = now
        elif policy is None or move.resize is not None or len(old) != len(new):
            then = now & new
        else:
            then = carried(policy.topology, old, new, now & old)
        draft.put(pod, _with_baseline(pod.record, owner.container, then))


def _with_baseline(record: PodRecord, container: str, cpus: CPUSet) -> PodRecord:
    left = {name: one for name, one in record.baselines.items() if name != container}
    if record.assignments.get(container) != cpus:
        left[container] = cpus
    return replace(record, baselines=left)


def _note(draft: Draft, move: PendingMove) -> None:
    names, uids = {}, {owner.pod_uid for owner in move.plan.start.placed}
    for uid in uids:
        if (pod := draft.pod(uid)) is not None:
            names[uid] = pod.name
    document = move_plan_document(
        move.plan, move.why, names, written=move.written, memory=move.memory
    )
    who = next(iter(names.items())) if len(uids) == 1 and names else NODE
    draft.note("undone" if move.plan.back else "moved", who, encode(document).decode())
