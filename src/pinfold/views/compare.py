"""From two plans to what the renderers draw side by side."""

from __future__ import annotations

from msgspec.structs import replace

from pinfold.documents.plan import Comparison, Plan
from pinfold.render.compare import CompareView, align_owners
from pinfold.views.node import pod_owners
from pinfold.views.plan import PlannedOn, plan_view


def compare_view(
    sides: tuple[Plan, Plan],
    on: tuple[PlannedOn, PlannedOn],
    names: tuple[str, str],
    compared: Comparison,
    *,
    each_pod: bool = False,
) -> CompareView:
    """Two plans of the same pods side by side; a container has one colour on both sides.

    ``sides`` are those that were compared, each with its own notes; with ``each_pod`` every pod
    that changed is told, also of replicas that changed alike.
    """
    before, after = sides
    first, second = align_owners(pod_owners(before.pods), pod_owners(after.pods))
    return CompareView(
        title=before.machine.name,
        before_name=names[0],
        before=plan_view(before, on[0], title=names[0], owners=first),
        after_name=names[1],
        after=replace(plan_view(after, on[1], title=names[1], owners=second), each=each_pod),
        refused=tuple(compared.refused or ()),
        differences=tuple(compared.differences or ()),
    )
