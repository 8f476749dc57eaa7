"""What a pod has, in its record: the same as the state says."""

from __future__ import annotations

from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.records import PodRecord


def as_held(record: PodRecord, state: NodeState) -> PodRecord:
    """The record with the CPUs and the memory that the pod has in a state.

    Those that a container was admitted with are forgotten where it has others now.
    """
    uid, ledger, memory = record.uid, state.ledger, state.memory
    assignments = dict(ledger.assignments.get(uid, {}))
    return replace(
        record,
        assignments=assignments,
        idle=dict(ledger.idle.get(uid, {})),
        bubble=ledger.bubble_of(uid) or CPUSet(),
        memory=state.memory_of(uid),
        bubble_memory=() if memory is None else memory.bubbles.get(uid, ()),
        baselines={
            name: cpus
            for name, cpus in record.baselines.items()
            if assignments.get(name) == record.assignments.get(name)
        },
    )
