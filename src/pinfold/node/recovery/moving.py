"""The plan of moves that was in flight when the record was written."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from msgspec.structs import replace

from pinfold.admission.moves import with_claims
from pinfold.core.moves.gone import gone, is_gone
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.soundness import unsound
from pinfold.core.moves.steps import states
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.records import PendingMove, PodRecord
from pinfold.state.ledger import InvariantError, Ledger

Pods = Mapping[str, tuple[PodRecord, Workload]]
"""The pods that own their CPUs, by uid."""


def recorded_move(move: PendingMove | None, pods: Pods) -> PendingMove | None:
    """The plan to go on with; of owners whose pod is over only the claims are left.

    Raises:
        InvariantError: it is damaged, or says something else of an owner than his record.
    """
    if move is None:
        return None
    if problem := unsound(move.plan):
        raise InvariantError(f"the plan of moves that is under way is damaged: {problem}")
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
        if (has := pod.assignments.get(owner.container, CPUSet())) != cpus:
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


def expect_claims(move: PendingMove | None, ledger: Ledger) -> None:
    """See that whatever is still to be claimed can be.

    Raises:
        InvariantError: it is somebody else's, or nobody's to give.
    """
    if move is not None:
        for state in islice(states(move.plan), move.written, None):
            ledger = with_claims(ledger, state)


def given_up(pod: PodRecord, placed: Mapping[Owner, CPUSet]) -> PodRecord:
    """A pod without the plan: its containers have what they run on, as far as that is known."""
    owners = {name: Owner(pod.uid, name) for name in pod.assignments}
    left = {
        name: placed.get(owners[name], cpus)
        for name, cpus in pod.assignments.items()
        if not is_gone(owners[name]) and placed.get(owners[name], cpus)
    }
    return replace(pod, assignments=left)
