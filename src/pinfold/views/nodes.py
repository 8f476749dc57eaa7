"""From a plan of several nodes to what the renderers draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from pinfold.documents.cluster_plan import ClusterPlan, ClusterPod
from pinfold.planning.planner import Plan
from pinfold.render.nodes import NodesView, PlacedRow
from pinfold.views.node import quota_lines, quota_notes
from pinfold.views.plan import Owners, plan_view, planned_on

_SHOWN: Final = 3


def nodes_view(
    document: ClusterPlan,
    plans: Mapping[str, Plan],
    owners: Owners,
    *,
    each_pod: bool = False,
) -> NodesView:
    """A plan of several nodes: those that have pods are drawn.

    ``owners`` are the workloads that a pod is of, by its uid.
    """
    drawn = [
        replace(
            plan_view(one.plan, planned_on(plans[one.name], owners)),
            title=f"{one.name} · {one.plan.machine.name}",
            notes=(),
            each=each_pod,
        )
        for one in document.nodes
        if one.plan.pods
    ]
    machine_notes = (note for one in document.nodes for note in one.plan.machine.notes)
    quotas = document.quotas or ()
    return NodesView(
        nodes=tuple(drawn),
        empty=tuple(one.name for one in document.nodes if not one.plan.pods),
        pods=tuple(map(_row, document.pods)),
        quotas=tuple(quota_lines(quotas)),
        notes=tuple(dict.fromkeys((*machine_notes, *document.notes, *quota_notes(quotas)))),
    )


def _row(pod: ClusterPod) -> PlacedRow:
    return PlacedRow(
        f"{pod.namespace}/{pod.name}", pod.node or "", pod.admitted, tuple(_outcome(pod))
    )


def _outcome(pod: ClusterPod) -> Iterator[str]:
    if pod.admitted:
        return
    yield pod.reason or ""
    if not pod.refused_by:
        yield pod.message or ""
    for one in pod.refused_by or ():
        count = len(one.nodes)
        more = f" and {count - _SHOWN} more" if count > _SHOWN else ""
        names = f"{', '.join(one.nodes[:_SHOWN])}{more}"
        yield f"{count} node{'s' * (count != 1)}: {one.reason} ({names})"
