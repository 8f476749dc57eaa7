"""From two plans to what the renderers draw side by side."""

from __future__ import annotations

from pinfold.cli.plan_view import plan_owners, plan_view
from pinfold.planning.planner import Plan
from pinfold.render.compare import CompareView, align_owners


def compare_view(
    before: Plan,
    after: Plan,
    title: str,
    names: tuple[str, str],
    notes: tuple[tuple[str, ...], tuple[str, ...]],
) -> CompareView:
    """Two plans of the same pods side by side; a container has one colour on both sides."""
    first, second = align_owners(plan_owners(before), plan_owners(after))
    return CompareView(
        title=title,
        before_name=names[0],
        before=plan_view(before, names[0], notes=notes[0], owners=first),
        after_name=names[1],
        after=plan_view(after, names[1], notes=notes[1], owners=second),
    )
