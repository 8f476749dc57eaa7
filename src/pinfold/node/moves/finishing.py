"""What is written down when a plan of moves is over."""

from __future__ import annotations

import json
from typing import Any

from msgspec.json import encode
from msgspec.structs import replace

from pinfold.admission.admission import recount
from pinfold.admission.moves import move_plan_document
from pinfold.core.moves.gone import is_gone
from pinfold.core.moves.rebalance import carried
from pinfold.core.moves.resize import resized
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.draft import Draft
from pinfold.node.drafted import NODE
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
    before = pod.workload.pod
    after = resized(before, container, cpus)
    if after == before:
        return
    manifest = json.dumps(with_cpus(json.loads(pod.record.manifest), container, cpus))
    draft.state = recount(draft.state, before, after)
    workload = replace(pod.workload, pod=after)
    draft.put(pod, replace(pod.record, manifest=manifest), workload)


def with_cpus(manifest: dict[str, Any], container: str, cpus: int) -> dict[str, Any]:
    """A manifest that asks for so many CPUs for one of its containers."""

    def asks(one: dict[str, Any]) -> dict[str, Any]:
        if one.get("name") != container:
            return one
        resources = {**one.get("resources", {})}
        for what in ("requests", "limits"):
            if what == "limits" or what in resources:
                resources[what] = {**(resources.get(what) or {}), "cpu": str(cpus)}
        return {**one, "resources": resources}

    spec = {**manifest["spec"]}
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            spec[kind] = [asks(one) for one in spec[kind]]
    return {**manifest, "spec": spec}


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
