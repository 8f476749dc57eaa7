"""Two plans of the same pods, and what differs between them."""

from __future__ import annotations

from typing import Any, Final

from pinfold.planning.document import plan_document
from pinfold.planning.planner import Plan, PodPlacement

VERSION: Final = 1


def changed_pods(before: Plan, after: Plan) -> list[tuple[PodPlacement, PodPlacement]]:
    """The pods whose admission, reason, exclusive CPUs, memory or devices differ, in order.

    A shared container's CPUs follow the shared pool and count as no change of the pod.
    """
    later = {(p.pod.namespace, p.pod.name): p for p in after.pods}
    pairs = [(p, later[p.pod.namespace, p.pod.name]) for p in before.pods]
    return [(old, new) for old, new in pairs if _outcome(old) != _outcome(new)]


def _outcome(placement: PodPlacement) -> tuple[object, ...]:
    exclusive = {c.name: c.cpus for c in placement.containers if c.exclusive}
    given = {c.name: (c.memory, dict(c.devices)) for c in placement.containers}
    return (placement.admitted, placement.decision.reason, exclusive, given)


def compare_document(before: Plan, after: Plan) -> dict[str, Any]:
    """Both plans and the names of the pods that differ, version 1."""
    return {
        "version": VERSION,
        "changed": [
            {"namespace": old.pod.namespace, "name": old.pod.name}
            for old, _ in changed_pods(before, after)
        ],
        "before": plan_document(before),
        "after": plan_document(after),
    }
