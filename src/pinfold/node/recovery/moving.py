"""The plan of moves that was in flight when the record was written."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from pinfold.core.moves.gone import gone, is_gone
from pinfold.core.moves.owners import Owner
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.records import PendingMove, PodRecord
from pinfold.state.ledger import InvariantError

Pods = Mapping[str, tuple[PodRecord, Workload]]
"""The pods that own their CPUs, by uid."""


def recorded_move(move: PendingMove | None, pods: Pods) -> PendingMove | None:
    """The plan to go on with; of owners whose pod is over only the claims are left.

    Raises:
        InvariantError: what is on record of an owner is not what the plan says.
    """
    if move is None:
        return None
    claims = move.on_record.claims
    over = {
        owner: gone(owner, with_pod=True)
        for owner in claims
        if not is_gone(owner) and owner.pod_uid not in pods
    }
    for owner, cpus in claims.items():
        if owner in over or owner.pod_uid not in pods:
            continue
        pod, _ = pods[owner.pod_uid]
        if (has := pod.assignments.get(owner.container)) != cpus:
            raise InvariantError(
                f"{owner} has CPUs {has or 'of nobody'} on record, and {cpus} in the plan of moves "
                "that is under way"
            )
    return move.renamed(over) if over else move


def claims_of_the_gone(move: PendingMove | None, pods: Pods) -> dict[str, dict[str, CPUSet]]:
    """What owners claim whose pods are over, by what they are called."""
    found: dict[str, dict[str, CPUSet]] = {}
    if move is not None:
        for owner, cpus in move.on_record.claims.items():
            if owner.pod_uid not in pods:
                found.setdefault(owner.pod_uid, {})[owner.container] = cpus
    return found


def as_placed(pod: PodRecord, move: PendingMove | None) -> PodRecord:
    """A pod with the CPUs that its containers run on, where the plan is given up."""
    if move is None:
        return pod
    placed = {
        owner.container: cpus
        for owner, cpus in move.holds.placed.items()
        if owner.pod_uid == pod.uid
    }
    left = {
        name: placed.get(name, cpus)
        for name, cpus in pod.assignments.items()
        if not is_gone(Owner(pod.uid, name))
    }
    return replace(pod, assignments=left)
