"""``-o html``: a page of its own, which whoever gets it opens in a browser."""

from __future__ import annotations

import time
from typing import Final

from msgspec import UNSET

from pinfold.cli.node import Request
from pinfold.cli.output import print_text
from pinfold.cli.progress_line import progress_line
from pinfold.documents.explanation import Explanation
from pinfold.documents.live.scene import ScenePage
from pinfold.page.files_of_page import whole_page
from pinfold.planning.explaining.document import explain_document
from pinfold.planning.explaining.several import explain_several
from pinfold.planning.planner import Plan
from pinfold.render.compare import CompareView
from pinfold.render.nodes import NodesView
from pinfold.render.plan_view import PlanView
from pinfold.views.explain import explained_lines
from pinfold.views.pages import compare_page, nodes_page, plan_page
from pinfold.views.scene import Why

MOST_EXPLAINED: Final = 300
"""Of so many pods is told why, those that are rejected before others."""


def print_plan_page(request: Request, placed: Plan, view: PlanView) -> None:
    """Print the page of a plan."""
    _print(plan_page(view, _why(request, placed)))


def print_compare_page(request: Request, sides: tuple[Plan, Plan], view: CompareView) -> None:
    """Print the page of two plans of the same pods."""
    first, second = (_why(request, side) for side in sides)
    _print(compare_page(view, (first, second)))


def print_nodes_page(view: NodesView) -> None:
    """Print the page of several nodes."""
    _print(nodes_page(view))


def status_page(view: PlanView) -> str:
    """The page of a live node, as it is now."""
    return whole_page(plan_page(view, at=time.time()))


def _print(page: ScenePage) -> None:
    with progress_line("writing the page"):
        text = whole_page(page)
    print_text(text)


def _why(request: Request, placed: Plan) -> Why:
    """The words of ``pinfold explain``, by the name of the pod; those alike are explained once."""
    order = sorted(placed.pods, key=lambda one: one.admitted)
    asked = {one.pod.uid for one in order[:MOST_EXPLAINED]}
    with progress_line("explaining"):
        several = explain_several(
            placed.planner, request.pods, lambda decision: decision.pod.uid in asked
        )
        topology = placed.planner.view.topology
        told: dict[str, tuple[str, ...]] = {}
        for one in several.found:
            document = explain_document(placed.planner, one.explanation)
            # Its name, which comes first, is that of the pod already.
            lines = explained_lines(document, topology=topology)[1:]
            for number, pod in enumerate(one.pods):
                like = (_told_of(one.pods[0].full_name, document),) if number else ()
                told[pod.full_name] = (*like, *lines)
    return told


def _told_of(name: str, document: Explanation) -> str:
    """What stands above the words about another pod; CPUs of its own are others than this one's."""
    own = document.bubble is not UNSET or any(one.steps for one in document.containers)
    return f"told of {name}, which asks for the same{' and has other CPUs' if own else ''}:"
