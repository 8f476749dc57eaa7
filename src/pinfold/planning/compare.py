"""Two plans of the same pods, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.documents.plan import Comparison, PodName
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Plan, PodPlacement


def changed_pods(before: Plan, after: Plan) -> list[tuple[PodPlacement, PodPlacement]]:
    """The pods whose admission, reason, exclusive CPUs, memory or devices differ, in order.

    A shared container's CPUs follow the shared pool and count as no change of the pod.
    """
    later = {(p.pod.namespace, p.pod.name): p for p in after.pods}
    pairs = [(p, later[p.pod.namespace, p.pod.name]) for p in before.pods]
    return [(old, new) for old, new in pairs if _outcome(old) != _outcome(new)]


def _outcome(placement: PodPlacement) -> tuple[object, ...]:
    exclusive = {c.name: (c.cpus, c.mixed) for c in placement.containers if c.exclusive}
    given = {c.name: (c.memory, dict(c.devices)) for c in placement.containers}
    bubble = placement.bubble
    whole = None if bubble is None else (bubble.cpus, bubble.parts, bubble.memory)
    return (placement.admitted, placement.decision.reason, exclusive, given, whole)


def compare_document(before: Plan, after: Plan, notes: Sequence[str]) -> Comparison:
    """Both plans and the names of the pods that differ."""
    return Comparison(
        changed=[
            PodName(namespace=old.pod.namespace, name=old.pod.name)
            for old, _ in changed_pods(before, after)
        ],
        before=plan_document(before),
        after=plan_document(after),
        notes=notes,
    )
