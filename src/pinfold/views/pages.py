"""Pages that need no server: a plan, two that are compared, a node now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from pinfold.documents.live.scene import Scene, ScenePage
from pinfold.render.compare import CompareView, changed_cpus, told_changes
from pinfold.render.nodes import NodesView, PlacedRow, nodes_headline
from pinfold.render.plan_view import PlanView, PodRow
from pinfold.render.terminal import clean
from pinfold.views.scene import Why, scene_of

MOST_PODS: Final = 2000
"""So many pods are listed for a node; a browser has to draw them."""
MOST_NODES: Final = 40
"""So many nodes are drawn."""

_NONE: Final[Why] = MappingProxyType({})


def plan_page(view: PlanView, why: Why = _NONE, at: float | None = None) -> ScenePage:
    """The page of a plan, or of a live node at this moment.

    Args:
        view: what is drawn.
        why: what is told of why pods have what they have, by ``namespace/name``.
        at: the moment, in seconds since the epoch; None for a plan.
    """
    return ScenePage(title=clean(view.title), scenes=(_scene(view, why, at=at),))


def compare_page(view: CompareView, why: tuple[Why, Why] = (_NONE, _NONE)) -> ScenePage:
    """The page of two plans of the same pods: both nodes, and what changes."""
    marked = changed_cpus(view)
    scenes = (
        replace(_scene(side, told), marked=str(marked & side.node_map.root.cpus()))
        for side, told in zip((view.before, view.after), why, strict=True)
    )
    details = {}
    if view.differences:
        heading = f"{view.after_name} after {view.before_name}"
        details[clean(heading)] = "\n".join(map(clean, view.differences))
    return ScenePage(
        title=clean(view.title),
        scenes=tuple(scenes),
        changes=tuple(map(clean, told_changes(view))),
        details=details,
    )


def nodes_page(view: NodesView) -> ScenePage:
    """The page of several nodes: each that has pods, and the pods that are on none."""
    return ScenePage(
        title=nodes_headline(view),
        scenes=tuple(_scene(node, _NONE) for node in view.nodes[:MOST_NODES]),
        details=dict(_details(view)),
    )


def _details(view: NodesView) -> Iterator[tuple[str, str]]:
    if refused := [one for one in view.pods if not one.admitted]:
        yield "Not admitted", _listed([_refusal(one) for one in refused])
    if placed := [f"{one.name}  {one.node}" for one in view.pods if one.admitted]:
        yield "Pods and their nodes", _listed(placed)
    if left := [one.title for one in view.nodes[MOST_NODES:]]:
        yield f"Not drawn: {len(left)} nodes", _listed(left)
    if view.empty:
        yield "Without pods", _listed(view.empty)
    if view.quotas:
        yield "Quotas", _listed(view.quotas)
    if view.notes:
        yield "Notes", _listed(view.notes)


def _refusal(row: PlacedRow) -> str:
    where = f" on {row.node}" if row.node else ""
    return "\n  ".join((f"{row.name}{where}", *row.outcome))


def _listed(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - MOST_PODS} more"] * (len(lines) > MOST_PODS)
    return "\n".join(
        "\n".join(map(clean, line.split("\n"))) for line in (*lines[:MOST_PODS], *more)
    )


def _scene(view: PlanView, why: Why, at: float | None = None) -> Scene:
    """A scene with no more pods than a browser can draw."""
    rows, notes = view.pods, view.notes
    if len(rows) > MOST_PODS:
        first = sorted(range(len(rows)), key=lambda number: (_rank(rows[number]), number))
        rows = tuple(rows[number] for number in sorted(first[:MOST_PODS]))
        notes = (f"{len(view.pods) - MOST_PODS:,} more pods are not listed here", *notes)
    untold = sum(pod.full_name not in why for pod in rows) if why else 0
    if untold:
        notes = (
            *notes,
            f"the reasons of {untold:,} pods are left out here: pinfold explain has them",
        )
    return scene_of(replace(view, pods=rows, notes=notes), at=at, why=why)


def _rank(pod: PodRow) -> int:
    """Which pods are listed before others where there are too many."""
    if any(one.exclusive for one in pod.containers):
        return 0
    return 1 if pod.has_trouble else 2
