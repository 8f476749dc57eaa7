"""What ``plan --compare`` prints for people: two plans of the same pods."""

from __future__ import annotations

from pinfold.cli.forms import Output
from pinfold.cli.node import Request
from pinfold.cli.output import print_text
from pinfold.documents.plan import Comparison
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Plan
from pinfold.render.compare import render_compare, render_compare_svg
from pinfold.render.terminal import Style
from pinfold.views.compare import compare_view
from pinfold.views.plan import planned_on


def print_compared(  # noqa: PLR0913 - what was compared, and how it is told
    request: Request,
    sides: tuple[tuple[Plan, tuple[str, ...]], tuple[Plan, tuple[str, ...]]],
    names: tuple[str, str],
    document: Comparison,
    *,
    each_pod: bool,
    output: Output,
    style: Style,
) -> None:
    """Print two plans, each with its notes, beside each other; ``names`` is what they are."""
    (before, first), (after, second) = sides
    view = compare_view(
        (plan_document(before, first), plan_document(after, second)),
        (planned_on(before, request.owners), planned_on(after, request.owners)),
        names,
        document,
        each_pod=each_pod,
    )
    if output == "html":
        from pinfold.cli.pages import page_of_comparison  # noqa: PLC0415 - 80 ms

        print_text(page_of_comparison(request, (before, after), view))
    else:
        print_text(render_compare_svg(view) if output == "svg" else render_compare(view, style))
