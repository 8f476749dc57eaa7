"""What is written down when a plan of moves turns back, and when it is over."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from pinfold.admission.moves import pending_move_document
from pinfold.admission.settling import recount
from pinfold.core.moves.gone import is_gone
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.rebalance import carried
from pinfold.core.moves.steps import stopped, undo
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import LOAD_DRIVEN
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.draft import Draft
from pinfold.node.drafted import NODE
from pinfold.node.observers import Observers
from pinfold.node.recovery.asked import asking, asking_for_its_claims
from pinfold.ports.records import ByLoad, PendingMove, PodRecord

Places = Mapping[Owner, CPUSet]


def finish(draft: Draft, observers: Observers) -> None:
    """The plan in flight is over: claims are what is placed, and the pods ask for that.

    Who came or went by load is where he is since now.

    Raises:
        InvariantError: the claims are somebody else's.
    """
    move = draft.move
    if move is None:
        return
    steps, plan = len(move.plan.steps), move.plan
    if move.written < steps:
        move = replace(move, written=steps, made=steps)
        draft.carry(move)
    for uid in {owner.pod_uid for owner in plan.start.placed}:
        if (pod := draft.pod(uid)) is not None:
            _ask(draft, pod, *asking_for_its_claims(pod.record, pod.workload))
    # On the way back everybody has come with his baseline.
    before = plan.end if plan.back else plan.start
    _carry_baselines(draft, move, before.placed, plan.end.placed)
    if move.why == LOAD_DRIVEN and not plan.back:
        for owner in plan.start.placed:
            _settle(draft, owner, observers)
    draft.carry(None)
    _note(draft, move)


def turn_back(draft: Draft, *, attempted: int, problem: str) -> None:
    """Undo the plan in flight, of which so many steps were attempted."""
    if (move := draft.move) is not None:
        back = undo(move.plan, attempted)
        draft.carry(replace(move, plan=back, written=0, made=0, deadlines={}, problem=problem))


def stay(draft: Draft, *, at: int, problem: str) -> None:
    """End the way back, the step of this number of which cannot be made, where everybody is."""
    if (move := draft.move) is not None:
        plan = stopped(move.plan, at, move.written)
        _carry_baselines(draft, move, move.plan.end.placed, plan.end.placed)
        problem = f"{move.problem}; that cannot be undone as a whole: {problem}"
        draft.carry(replace(move, plan=plan, written=0, made=0, deadlines={}, problem=problem))


def put_by_load(draft: Draft, pod: AdmittedPod, owner: Owner, known: ByLoad) -> None:
    """Draft what is known of a container that has its CPUs by load."""
    record = pod.record
    draft.put(pod, replace(record, load_driven={**record.load_driven, owner.container: known}))


def _settle(draft: Draft, owner: Owner, observers: Observers) -> None:
    pod = draft.pod(owner.pod_uid)
    if pod is None or (known := pod.record.load_driven.get(owner.container)) is None:
        return
    at, uptime, boot = observers.clock(), observers.uptime(), observers.boot
    put_by_load(draft, pod, owner, replace(known, at=at, uptime=uptime, boot=boot))


def draft_cpus(draft: Draft, uid: str, container: str, cpus: int) -> None:
    """Another number of CPUs for a container, in its pod's manifest and in what is requested."""
    if (pod := draft.pod(uid)) is not None:
        _ask(draft, pod, *asking(pod.record, pod.workload, container, cpus))


def _ask(draft: Draft, pod: AdmittedPod, record: PodRecord, workload: Workload) -> None:
    if workload is not pod.workload:
        draft.state = recount(draft.state, pod.workload.pod, workload.pod)
        draft.put(pod, record, workload)


def _carry_baselines(draft: Draft, move: PendingMove, before: Places, after: Places) -> None:
    """The CPUs that owners were admitted with, where they have other ones now."""
    policy = draft.node.cpu_policy
    for owner, old in before.items():
        pod = draft.pod(owner.pod_uid)
        if is_gone(owner) or pod is None or (now := pod.record.baseline(owner.container)) is None:
            continue
        if not (new := after[owner]):
            had = pod.record.baselines.items()
            left = {name: cpus for name, cpus in had if name != owner.container}
            draft.put(pod, replace(pod.record, baselines=left))
            continue
        if policy is None or move.resize is not None or len(old) != len(new):
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
    who = next(iter(names.items())) if len(uids) == 1 and names else NODE
    draft.note("undone" if move.plan.back else "moved", who, pending_move_document(move, names))
