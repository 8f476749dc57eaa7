"""A plan as text: map, legend, pods and summary, for terminals of any width and for pipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pinfold.render.boxes import Cell, CellState
from pinfold.render.node_map import NodeMap, Owner
from pinfold.render.numa_panel import numa_lines
from pinfold.render.palette import cell_paint, state_symbol
from pinfold.render.plan_view import (
    PlanView,
    ResizeRow,
    resizes_headline,
    state_counts,
    summary_facts,
)
from pinfold.render.pods.pod_text import pod_lines
from pinfold.render.terminal import (
    Line,
    Span,
    Style,
    cell_width,
    clean,
    clip,
    line_width,
    pad,
    pad_line,
    print_lines,
    wrap,
)
from pinfold.render.text_map import map_lines, swatch

_STACKED: Final = 40
"""Below this width values stand below their names."""


def render_plan(view: PlanView, style: Style, only: str = "") -> str:
    """The whole plan, ending in a newline; ``only`` its ``map``, or its ``pods``."""
    lines = [*title_lines(view.title, view.subtitle, style), []]
    if only != "pods":
        lines += _map(view, style)
    if view.pods and only != "map":
        lines += [*pod_lines(view, style), []]
    if not only:
        lines += _remarks(view, style)
    lines.pop()
    return print_lines(lines, style)


def _map(view: PlanView, style: Style) -> list[Line]:
    lines = [*map_lines(view.node_map, style), []]
    if legend := list(legend_lines(view.node_map, style)):
        lines += [*legend, []]
    if view.numa:
        lines += [*numa_lines(view.numa, style), []]
    return lines


def _remarks(view: PlanView, style: Style) -> list[Line]:
    lines: list[Line] = []
    if view.resizes:
        lines += [*_resize_lines(view, style), []]
    if facts := list(summary_facts(view)):
        lines += [*summary_lines(facts, style), []]
    if view.notes:
        lines += [*note_lines(view.notes, style), []]
    return lines


def title_lines(title: str, subtitle: str, style: Style) -> Iterator[Line]:
    """What this is, in one or more lines."""
    for text in wrap(clean(title), style.width):
        yield [(text, "bold")]
    if subtitle:
        for text in wrap(clean(subtitle), style.width):
            yield [(text, "dim")]


def legend_lines(node_map: NodeMap, style: Style, *, owners: bool = False) -> Iterator[Line]:
    """What the symbols mean, with the number of CPUs; ``owners`` lists them too."""
    items: list[Line] = []
    counts = state_counts(node_map)
    for state, count in counts.items() if set(counts) != {CellState.ONLINE} else ():
        if state is CellState.EXCLUSIVE:
            continue
        items.append([*state_item(node_map, state, style), (f" {count}", "dim")])
    if owners:
        for owner in node_map.owners.values():
            label = clip(clean(owner.label), style.width - 5)
            items.append([swatch(owner, style), (f" {label}", "")])
    yield from packed_items(items, style)


def state_item(node_map: NodeMap, state: CellState, style: Style) -> Line:
    """A state of a legend: its symbol and its name."""
    symbol = state_symbol(state, ascii_only=style.ascii_only)
    return [(f" {symbol} ", cell_paint(node_map, Cell(0, state))), (f" {state.value}", "")]


def packed_items(items: Iterable[Line], style: Style) -> Iterator[Line]:
    """Items of a legend side by side, in as many lines as the width needs."""
    line: Line = []
    for item in items:
        if line and line_width(line) + 3 + line_width(item) > style.width:
            yield line
            line = []
        line = [*line, ("   ", ""), *item] if line else item
    if line:
        yield line


def _resize_lines(view: PlanView, style: Style) -> Iterator[Line]:
    """The resizes in their order: the CPUs before and after, or why it cannot be done."""
    yield [("Resizes", "bold")]
    for text in wrap(resizes_headline(view), style.width - 2):
        yield [("  ", ""), (text, "dim")]
    for row in view.resizes:
        mark, color = ("✓", "good") if row.feasible else ("✗", "bad")
        names = wrap(clean(f"{row.name}  {row.change}"), style.width - 2, after="/-.")
        for at, text in enumerate(names):
            yield [(mark if at == 0 else " ", color), (" ", ""), (text, "" if at else "bold")]
        yield from _resize_outcome(row, view.node_map.owners.get(row.owner or ""), style)


def _resize_outcome(row: ResizeRow, owner: Owner | None, style: Style) -> Iterator[Line]:
    if not row.feasible:
        for text in wrap(clean(row.reason or ""), style.width - 2):
            yield [("  ", ""), (text, "bad")]
        for text in wrap(clean(row.message or ""), style.width - 2, after="/"):
            yield [("  ", ""), (text, "")]
        return
    for at, text in enumerate(wrap(row.outcome, style.width - 6, after=",")):
        mark: Span = ("   ", "") if at or owner is None else swatch(owner, style)
        yield [("  ", ""), mark, (f" {text}", "")]


def summary_lines(facts: Sequence[tuple[str, str, str]], style: Style) -> Iterator[Line]:
    """Facts as ``name  value  remark``, values wrapped under themselves."""
    widest = max((cell_width(name) for name, _, _ in facts), default=0)
    if style.width < _STACKED or widest > style.width // 2:
        for name, value, remark in facts:
            for text in wrap(clean(name), style.width):
                yield [(text, "key")]
            for text in wrap(clean(value), style.width - 2, after=","):
                yield [("  ", ""), (text, "")]
            for text in wrap(clean(remark), style.width - 2) if remark else ():
                yield [("  ", ""), (text, "dim")]
        return
    for name, value, remark in facts:
        room = style.width - widest - 2
        lines: list[Line] = [[(text, "")] for text in wrap(clean(value), room, after=",")]
        if remark and line_width(lines[-1]) + 2 + cell_width(remark) <= room:
            lines[-1].append((f"  {remark}", "dim"))
        elif remark:
            lines += [[(text, "dim")] for text in wrap(clean(remark), room)]
        for at, line in enumerate(lines):
            yield [(pad(name if at == 0 else "", widest), "key"), ("  ", ""), *line]


def note_lines(notes: Iterable[str], style: Style) -> Iterator[Line]:
    """Warnings, each marked and wrapped."""
    for note in notes:
        for at, text in enumerate(wrap(clean(note), style.width - 2)):
            yield [("• " if at == 0 else "  ", "warn"), (text, "")]


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], style: Style, *, right: str = ""
) -> Iterator[Line]:
    """A plain table; the last column wraps.  ``right`` has an ``r`` for right-aligned columns."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(cell_width(clean(text)) for text in column) for column in columns]
    room = max(style.width - sum(widths[:-1]) - 2 * (len(widths) - 1), 8)
    aligned = right.ljust(len(widths))
    for number, row in enumerate([head, *rows]):
        last = wrap(clean(row[-1]), room, after=",")
        for at, tail in enumerate(last):
            line: Line = []
            for text, width, side in zip(row[:-1], widths, aligned, strict=False):
                shown = clean(text) if at == 0 else ""
                gap = " " * (width - cell_width(shown))
                line.append((f"{gap}{shown}  " if side == "r" else f"{shown}{gap}  ", ""))
            tail_gap = (
                " " * (min(widths[-1], room) - cell_width(tail)) if aligned[-1] == "r" else ""
            )
            line.append((tail_gap + tail, ""))
            yield [(text, "dim") for text, _ in line] if number == 0 else pad_line(line, 0)
