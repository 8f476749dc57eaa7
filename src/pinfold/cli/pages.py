"""``-o html``: a page of its own, which whoever gets it opens in a browser."""

from __future__ import annotations

import time
from typing import Final

from msgspec import UNSET

from pinfold.cli.node import Request
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


def page_of_plan(request: Request, placed: Plan, view: PlanView) -> str:
    """The page of a plan."""
    return _whole(plan_page(view, _why(request, placed)))


def page_of_comparison(request: Request, sides: tuple[Plan, Plan], view: CompareView) -> str:
    """The page of two plans of the same pods."""
    first, second = (_why(request, side) for side in sides)
    return _whole(compare_page(view, (first, second)))


def page_of_nodes(view: NodesView) -> str:
    """The page of several nodes."""
    return _whole(nodes_page(view))


def page_of_status(view: PlanView) -> str:
    """The page of a live node, as it is now."""
    return _whole(plan_page(view, at=time.time()))


def _whole(page: ScenePage) -> str:
    with progress_line("writing the page"):
        return whole_page(page)


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
            lines = explained_lines(document, topology=topology)
            for number, pod in enumerate(one.pods):
                like = (_told_of(one.pods[0].full_name, document),) if number else ()
                told[pod.full_name] = (*like, *lines)
    return told


def _told_of(name: str, document: Explanation) -> str:
    """What stands above the words about another pod; CPUs of its own are others than this one's."""
    own = document.bubble is not UNSET or any(one.steps for one in document.containers)
    return f"told of {name}, which asks for the same{' and has other CPUs' if own else ''}:"
