"""A plan as one self-contained SVG picture: map, legend, pods and summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from pinfold.render.boxes import Cell, CellState
from pinfold.render.node_map import POOL, NodeMap, Owner, counted
from pinfold.render.numa_panel import describe_numa, draw_numa
from pinfold.render.palette import owner_symbol, state_symbol
from pinfold.render.plan_view import (
    POD_POOL,
    ContainerRow,
    PlanView,
    headline,
    resizes_headline,
    summary_facts,
)
from pinfold.render.pods.pod_svg import GAP, PodTable
from pinfold.render.svg_canvas import (
    Canvas,
    Ruler,
    cell_look,
    describe_cpus,
    owner_look,
    text_width,
    wrap_text,
)
from pinfold.render.svg_map import POOL_MARK, MapDrawing

MARGIN: Final = 28
_LINE: Final = 19
_ASPECT: Final = 1.4
_WIDE: Final = 1250.0
"""Wider pages are small in a document."""
_WIDEST: Final = 2000.0
_TOP: Final = 150.0
"""About where the map begins."""
_MOST_COLUMNS: Final = 4


class _Page(Struct, frozen=True):
    """How the parts of a plan are arranged: the pods beside the map or below it, in columns."""

    drawing: MapDrawing
    width: float
    beside: bool = False
    columns: int = 1

    @property
    def left(self) -> float:
        """The width of what is not beside the map."""
        return self.drawing.width if self.beside else self.width


def render_plan_svg(view: PlanView) -> str:
    """The plan as an SVG document."""
    table = PodTable(view) if view.pods else None
    page = _arranged(view, table)
    width = page.width
    canvas = Canvas()
    y = draw_title(canvas, view.title, view.subtitle, width)
    y = _draw_bar(canvas, view, y, width)
    y = draw_legend(canvas, [view.node_map], y, width)
    page.drawing.draw(canvas, MARGIN, y)
    y = max(_draw_parts(canvas, view, table, page, y))
    return canvas.document(
        width + 2 * MARGIN, y + MARGIN - 12, view.title, f"{headline(view)}. {_description(view)}"
    )


def _arranged(view: PlanView, table: PodTable | None) -> _Page:
    """The arrangement whose page is about one and a half times as wide as high, and full."""
    natural = MapDrawing(view.node_map)
    if table is None:
        return _Page(natural, natural.width)
    pages = [_Page(natural, natural.width)]
    for columns in range(1, _MOST_COLUMNS + 1):
        wanted = columns * (table.width + GAP) - GAP
        beside = natural.width + GAP + wanted
        pages.append(_Page(natural, beside, beside=True, columns=columns))
        if wanted <= natural.width:
            pages.append(_Page(natural, natural.width, columns=columns))
        else:
            drawing = MapDrawing(view.node_map, width=wanted)
            pages.append(_Page(drawing, wanted, columns=columns))
    narrow = [page for page in pages if page.width <= max(_WIDEST, natural.width)]
    return min(narrow, key=lambda page: _cost(view, table, page))


def _cost(view: PlanView, table: PodTable, page: _Page) -> float:
    """How far a page is from what is good to look at; a wide one is small where it is shown."""
    ends = _draw_parts(Ruler(), view, table, page, _TOP)
    height = max(ends)
    waste = 0.0
    if page.beside:
        shorter = page.left if ends[0] < ends[1] else page.width - page.left
        waste = abs(ends[0] - ends[1]) * shorter / (page.width * height)
    wide = max(page.width - _WIDE, 0) / _WIDE
    return abs(math.log(page.width / height / _ASPECT)) + waste + wide


def _draw_parts(
    canvas: Canvas, view: PlanView, table: PodTable | None, page: _Page, y: float
) -> tuple[float, float]:
    """Draw all but the map, whose upper edge is at ``y``; returns the lower ends of both sides."""
    left = page.left
    below = draw_notes(canvas, view.node_map, y + page.drawing.height, left)
    if view.numa:
        below = draw_numa(canvas, view.numa, (MARGIN, below + 34, left)) - 24
    x, top, width = (MARGIN + left + GAP, y + 12, page.width - left - GAP)
    if not page.beside:
        x, top, width = MARGIN, below + 34, left
    end = top - 34
    if table is not None:
        end = table.draw(canvas, (x, top, width), page.columns)
    if view.resizes:
        end = _draw_resizes(canvas, view, (x, end + 34, width)) - 10
    if not page.beside:
        below = end
    below = draw_facts(canvas, list(summary_facts(view)), below + 30, left)
    below += 6 * bool(view.notes)
    for note in view.notes:
        for text in wrap_text(f"• {note}", 12, left):
            canvas.text((MARGIN, below), text, 12, color="dim")
            below += _LINE
    return below, end


def draw_title(canvas: Canvas, title: str, subtitle: str, width: float) -> float:
    """Title and subtitle, in lines of its own where it has some; returns where to go on."""
    y = MARGIN + 16.0
    for text in wrap_text(title, 20, width):
        canvas.text((MARGIN, y), text, 20, bold=True)
        y += 26
    lines = [text for part in subtitle.split("\n") for text in wrap_text(part, 13, width)]
    for text in lines if subtitle else ():
        canvas.text((MARGIN, y - 4), text, 13, color="dim")
        y += _LINE
    return y


def _draw_bar(canvas: Canvas, view: PlanView, y: float, width: float) -> float:
    """One bar for the whole machine: owners in order, then the states."""
    cells = list(view.node_map.cells())
    parts: dict[str, tuple[Cell, list[int]]] = {}
    for cell in sorted(cells, key=lambda cell: (cell.owner is None, cell.state.value)):
        key = cell.owner or f"state {cell.state.name}"
        parts.setdefault(key, (cell, []))[1].append(cell.cpu)
    unit = width / max(len(cells), 1)
    x = float(MARGIN)
    for cell, cpus in parts.values():
        look = cell_look(view.node_map, cell)
        long = len(cpus) * unit
        owner = view.node_map.owners.get(cell.owner or "")
        name = owner.label if owner else cell.state.value
        canvas.segment((x, y, max(long - 1, 0.5), 10), look, f"{name}: {_cpus(len(cpus))}")
        x += long
    return y + 26


def _cpus(count: int) -> str:
    return f"{count} CPU{'s' * (count != 1)}"


def draw_legend(
    canvas: Canvas, maps: Sequence[NodeMap], y: float, width: float, *, muted: bool = False
) -> float:
    """The states that occur on any map, with their numbers of CPUs; returns where to go on.

    Of two maps the numbers are those of both where they differ; ``muted`` explains the cells that
    a comparison leaves alone.
    """
    x = float(MARGIN)
    node_map = maps[-1]
    drawn = [owner for each in maps for owner in each.owners.values() if owner.cpus]
    for state in CellState:
        if not any(each.count(state) for each in maps):
            continue
        text = f"{state.value} {counted(state, maps)}"
        if state is CellState.EXCLUSIVE:
            text += _marks(drawn)
        long = 16 + 8 + text_width(text, 12) + 20
        if x > MARGIN and x + long > MARGIN + width:
            x, y = float(MARGIN), y + _LINE
        if state is CellState.EXCLUSIVE:
            owners = list({one.whole: one for one in drawn}.values())[:3]
            for number, owner in enumerate(owners):
                step = 16 / len(owners)
                bar = (x + number * step, y, step, 16)
                canvas.segment(bar, owner_look(owner), owner.label)
        else:
            symbol = state_symbol(state).strip(" ·")
            look = cell_look(node_map, Cell(0, state))
            canvas.cell((x, y), 16, look, (state.value, symbol, ""))
        canvas.text((x + 24, y + 12.5), text, 12, color="dim")
        x += long
    if muted:
        look = cell_look(node_map, Cell(0, CellState.SHARED, muted=True))
        canvas.cell((x, y), 16, look, ("unchanged", "0", ""))
        canvas.text((x + 24, y + 12.5), "unchanged", 12, color="dim")
    return y + 32


def _marks(drawn: Sequence[Owner]) -> str:
    """What the marks behind owners' symbols mean, of those that occur."""
    told = ["+ and the shared pool"] * any(owner.mixed for owner in drawn)
    told += [f"{POOL_MARK} a {POD_POOL}"] * any(owner.kind == POOL for owner in drawn)
    return f" ({', '.join(told)})" if told else ""


def draw_notes(canvas: Canvas, node_map: NodeMap, y: float, width: float) -> float:
    """Memory-only NUMA nodes and notes below a map; returns the last line's place."""
    for note in (*node_map.memory_only, *node_map.notes):
        for text in wrap_text(note, 12, width):
            y += _LINE
            canvas.text((MARGIN, y), text, 12, color="dim")
    return y


def _draw_resizes(canvas: Canvas, view: PlanView, at: tuple[float, float, float]) -> float:
    """Draw the resizes in ``(x, baseline of the title, width)``; returns where to go on."""
    x, y, width = at
    canvas.text((x, y), "Resizes", 15, bold=True)
    for text in wrap_text(resizes_headline(view), 13, width - 70):
        canvas.text((x + 70, y), text, 13, color="dim")
        y += _LINE
    y -= _LINE
    y += _LINE + 5
    for row in view.resizes:
        mark, color = ("✓", "good") if row.feasible else ("✗", "bad")
        canvas.text((x, y), mark, 13, color=color, bold=True)
        for text in wrap_text(f"{row.name}: {row.change}", 13, width - 24):
            canvas.text((x + 20, y), text, 13, bold=True)
            y += _LINE
        told = (row.outcome,) if row.feasible else (row.reason or "", row.message or "")
        owner = view.node_map.owners.get(row.owner or "")
        left = x + 20.0
        if row.feasible and owner is not None:
            texts = (row.name, owner_symbol(owner.index), "")
            canvas.cell((left, y - 11.5), 14, owner_look(owner), texts)
            left += 22
        for number, line in enumerate(told):
            for text in wrap_text(line, 12, width - 50, mono=row.feasible):
                ink = "ink" if row.feasible or number else "bad"
                canvas.text((left, y), text, 12, mono=row.feasible, color=ink)
                y += 17
        y += 6
    return y


def draw_facts(canvas: Canvas, facts: list[tuple[str, str, str]], y: float, width: float) -> float:
    """Names, values and remarks, one below the other; returns where to go on."""
    left = max((text_width(name, 12) for name, _, _ in facts), default=0) + 16
    for name, value, remark in facts:
        canvas.text((MARGIN, y), name, 12, color="dim")
        texts = wrap_text(value, 12, width - left, mono=True)
        for number, text in enumerate(texts):
            canvas.text((MARGIN + left, y), text, 12, mono=True)
            long = left + text_width(text, 12, mono=True) + 14
            if remark and number == len(texts) - 1:
                if long + text_width(remark, 12) > width:
                    y, long = y + _LINE, left
                canvas.text((MARGIN + long, y), remark, 12, color="dim")
            y += _LINE
    return y


def _description(view: PlanView) -> str:
    parts = [
        f"{pod.full_name}: "
        + (
            f"{'failed' if pod.admitted else 'rejected'}, {pod.reason}: {pod.message}"
            if pod.has_trouble
            else "; ".join((*pod.whole, *map(_described, pod.containers)))
        )
        for pod in view.pods
    ]
    parts += [
        f"{row.name}, {row.change}: {row.outcome if row.feasible else row.reason}"
        for row in view.resizes
    ]
    told = " ".join(f"{part}." for part in [*parts, f"Shared pool: {describe_cpus(view.shared)}"])
    return f"{told} {describe_numa(view.numa)}".rstrip()


def _described(container: ContainerRow) -> str:
    cpus = describe_cpus(container.cpus) if container.exclusive else "in the shared pool"
    if container.remark:
        cpus = f"{describe_cpus(container.cpus)}, {container.remark}"
    return ", ".join((f"{container.name} {cpus}", *container.extras))
