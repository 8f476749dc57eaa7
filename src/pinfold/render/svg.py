"""A plan as one self-contained SVG picture: map, legend, pods and summary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pinfold.render.boxes import Cell, CellState
from pinfold.render.node_map import POOL, NodeMap, Owner
from pinfold.render.numa_panel import describe_numa, draw_numa
from pinfold.render.palette import owner_symbol, state_symbol
from pinfold.render.plan_view import (
    POD_POOL,
    ContainerRow,
    PlanView,
    PodRow,
    headline,
    resizes_headline,
    summary_facts,
)
from pinfold.render.svg_canvas import (
    Canvas,
    cell_look,
    describe_cpus,
    owner_look,
    text_width,
    wrap_text,
)
from pinfold.render.svg_map import POOL_MARK, MapDrawing

MARGIN: Final = 28
_LINE: Final = 19
_COLUMN: Final = 460


def render_plan_svg(view: PlanView) -> str:
    """The plan as an SVG document."""
    drawing = MapDrawing(view.node_map)
    width = drawing.width
    canvas = Canvas()
    y = draw_title(canvas, view.title, view.subtitle, width)
    y = _draw_bar(canvas, view, y, width)
    y = draw_legend(canvas, [view.node_map], y, width)
    drawing.draw(canvas, MARGIN, y)
    y = draw_notes(canvas, view.node_map, y + drawing.height, width)
    if view.numa:
        y = draw_numa(canvas, view.numa, (MARGIN, y + 34, width)) - 24
    if view.pods:
        y = _draw_pods(canvas, view, y + 34, width)
    if view.resizes:
        y = _draw_resizes(canvas, view, y + 34, width) - 10
    y = draw_facts(canvas, list(summary_facts(view)), y + 26, width)
    y += 6 * bool(view.notes)
    for note in view.notes:
        for text in wrap_text(f"• {note}", 12, width):
            canvas.text((MARGIN, y), text, 12, color="dim")
            y += _LINE
    return canvas.document(
        width + 2 * MARGIN, y + MARGIN - 12, view.title, f"{headline(view)}. {_description(view)}"
    )


def draw_title(canvas: Canvas, title: str, subtitle: str, width: float) -> float:
    """Title and subtitle; returns where to go on."""
    y = MARGIN + 16.0
    for text in wrap_text(title, 20, width):
        canvas.text((MARGIN, y), text, 20, bold=True)
        y += 26
    for text in wrap_text(subtitle, 13, width) if subtitle else ():
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


def draw_legend(canvas: Canvas, maps: Sequence[NodeMap], y: float, width: float) -> float:
    """The states that occur on any map, with their numbers of CPUs; returns where to go on.

    The numbers are those of the last map.
    """
    x = float(MARGIN)
    node_map = maps[-1]
    drawn = [owner for each in maps for owner in each.owners.values() if owner.cpus]
    for state in CellState:
        if not any(each.count(state) for each in maps):
            continue
        text = f"{state.value} {node_map.count(state)}"
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


def _draw_pods(canvas: Canvas, view: PlanView, y: float, width: float) -> float:
    canvas.text((MARGIN, y), "Pods", 15, bold=True)
    canvas.text((MARGIN + 48, y), headline(view), 13, color="dim")
    y += 14
    columns = min(max(int(width // _COLUMN), 1), 3) if len(view.pods) > 4 else 1
    each = (width - 24 * (columns - 1)) / columns
    heights = [_pod_height(pod, view.node_map, each) for pod in view.pods]
    share = sum(heights) / columns
    column, top, lowest = 0, y, y
    for pod, height in zip(view.pods, heights, strict=True):
        if column < columns - 1 and top + height / 2 > y + share and top > y:
            column, top = column + 1, y
        _draw_pod(canvas, pod, view.node_map, (MARGIN + column * (each + 24), top, each))
        top += height
        lowest = max(lowest, top)
    return lowest


def _pod_height(pod: PodRow, node_map: NodeMap, width: float) -> float:
    return _draw_pod(Canvas(), pod, node_map, (0, 0, width))


def _draw_pod(
    canvas: Canvas, pod: PodRow, node_map: NodeMap, at: tuple[float, float, float]
) -> float:
    """Draw one pod; returns its height."""
    x, top, width = at
    y = top + 18
    mark, color = ("✗", "bad") if pod.failed or not pod.admitted else ("✓", "good")
    names = wrap_text(pod.full_name, 13.5, width - 20 - 90)
    refusal = _refusal_lines(pod, width - 20) if pod.has_trouble else []
    if refusal:
        height = 18 + len(names) * _LINE + len(refusal) * 17 - 8
        canvas.rect((x - 6, top + 2, width + 6, height), "badbg", radius=6)
    canvas.text((x, y), mark, 13, color=color, bold=True)
    canvas.text((x + width - 4, y), pod.qos, 11, color="dim", anchor="end")
    for name in names:
        canvas.text((x + 20, y), name, 13.5, bold=True)
        y += _LINE
    for text, is_reason in refusal:
        color = "bad" if is_reason else "ink"
        canvas.text((x + 20, y), text, 12.5 if is_reason else 12, color=color, bold=is_reason)
        y += 17
    for whole in () if pod.has_trouble else pod.whole:
        for text in wrap_text(whole, 11.5, width - 20):
            canvas.text((x + 20, y - 1), text, 11.5, color="dim")
            y += 16
    for container in () if pod.has_trouble else pod.containers:
        y = _draw_container(canvas, container, node_map, (x + 20, y, width - 20))
    return y - 6 - top


def _refusal_lines(pod: PodRow, width: float) -> list[tuple[str, bool]]:
    """Lines of the reason (``True``) and of the message."""
    reason = wrap_text(pod.reason or "Rejected", 13, width)
    message = wrap_text(pod.message, 12, width) if pod.message else []
    return [*((text, True) for text in reason), *((text, False) for text in message)]


def _draw_container(
    canvas: Canvas, container: ContainerRow, node_map: NodeMap, at: tuple[float, float, float]
) -> float:
    """Draw one container in ``(x, baseline, width)``; returns the next baseline."""
    x, y, width = at
    owner = node_map.owners.get(container.owner or "")
    if owner is None:
        look, symbol = cell_look(node_map, Cell(0, CellState.SHARED)), ""
    else:
        look, symbol = owner_look(owner), owner_symbol(owner.index)
    canvas.cell((x, y - 11.5), 14, look, (container.name, symbol, ""))
    name = f"{container.name} ({container.kind})" if container.kind else container.name
    long = text_width(name, 12) + 12
    names = wrap_text(name, 12, width / 2) if long > width / 2 else [name]
    long = min(long, width / 2 + 12)
    cpus = str(container.cpus) if owner else "shared pool"
    cpus += f" {container.remark}" if container.remark else ""
    texts = wrap_text(cpus, 12, width - 22 - long, mono=owner is not None)
    for at_line in range(max(len(names), len(texts))):
        if at_line < len(names):
            canvas.text((x + 22, y), names[at_line], 12)
        if at_line < len(texts):
            color = "ink" if owner else "dim"
            place = (x + 22 + long, y)
            canvas.text(place, texts[at_line], 12, mono=owner is not None, color=color)
        y += 17
    for extra in container.extras:
        for text in wrap_text(extra, 11.5, width - 22):
            canvas.text((x + 22, y - 1), text, 11.5, color="dim")
            y += 16
    return y


def _draw_resizes(canvas: Canvas, view: PlanView, y: float, width: float) -> float:
    canvas.text((MARGIN, y), "Resizes", 15, bold=True)
    canvas.text((MARGIN + 70, y), resizes_headline(view), 13, color="dim")
    y += _LINE + 5
    for row in view.resizes:
        mark, color = ("✓", "good") if row.feasible else ("✗", "bad")
        canvas.text((MARGIN, y), mark, 13, color=color, bold=True)
        for text in wrap_text(f"{row.name}: {row.change}", 13, width - 24):
            canvas.text((MARGIN + 20, y), text, 13, bold=True)
            y += _LINE
        told = (row.outcome,) if row.feasible else (row.reason or "", row.message or "")
        owner = view.node_map.owners.get(row.owner or "")
        left = MARGIN + 20.0
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
