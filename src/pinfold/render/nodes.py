"""A plan of several nodes as text: each node that has pods, then where every pod is."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from pinfold.render.plan_view import PlanView
from pinfold.render.terminal import Line, Style, clean, print_lines, wrap
from pinfold.render.text import note_lines, render_plan, summary_lines, table_lines, title_lines


class PlacedRow(Struct, frozen=True):
    """A pod; ``node`` is "" where it is on none, ``outcome`` its reason and message."""

    name: str
    node: str
    admitted: bool
    outcome: tuple[str, ...] = ()


class NodesView(Struct, frozen=True):
    """All of it; ``empty`` are the nodes without pods."""

    nodes: tuple[PlanView, ...]
    empty: tuple[str, ...]
    pods: tuple[PlacedRow, ...]
    quotas: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def render_nodes(view: NodesView, style: Style) -> str:
    """The text, ending in a newline."""
    texts = [render_plan(one, style) for one in view.nodes]
    lines: list[Line] = [*title_lines(nodes_headline(view), "", style), []]
    if placed := [(one.name, one.node) for one in view.pods if one.admitted]:
        lines += [*table_lines(("Pod", "Node"), placed, style), []]
    for one in view.pods:
        if not one.admitted:
            lines += [*_refusal(one, style), []]
    facts = [("" if at else "Quotas", text, "") for at, text in enumerate(view.quotas)]
    if view.empty:
        facts.append(("Without pods", ", ".join(view.empty), ""))
    if facts:
        lines += [*summary_lines(facts, style), []]
    if view.notes:
        lines += [*note_lines(view.notes, style), []]
    lines.pop()
    return "\n".join([*texts, print_lines(lines, style)])


def nodes_headline(view: NodesView) -> str:
    """``3 nodes: 40 admitted, 2 rejected``."""
    admitted = sum(one.admitted for one in view.pods)
    rejected = sum(bool(one.node) and not one.admitted for one in view.pods)
    nowhere = len(view.pods) - admitted - rejected
    number = len(view.nodes) + len(view.empty)
    parts = [f"{admitted} admitted", f"{rejected} rejected" * bool(rejected)]
    parts.append(f"{nowhere} on no node" * bool(nowhere))
    return f"{number} node{'s' * (number != 1)}: {', '.join(filter(None, parts))}"


def _refusal(row: PlacedRow, style: Style) -> Iterator[Line]:
    where = f" on {row.node}" if row.node else ""
    for at, text in enumerate(wrap(clean(f"{row.name}{where}"), style.width - 2, after="/-.")):
        yield [("✗ " if at == 0 else "  ", "bad"), (text, "bold")]
    for at, line in enumerate(row.outcome):
        for text in wrap(clean(line), style.width - 2, after="/"):
            yield [("  ", ""), (text, "" if at else "bad")]
