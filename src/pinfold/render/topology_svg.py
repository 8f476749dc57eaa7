"""A machine as one self-contained SVG picture."""

from __future__ import annotations

from pinfold.render.svg import MARGIN, draw_facts, draw_legend, draw_notes, draw_title
from pinfold.render.svg_canvas import Canvas, Look, text_width, wrap_text
from pinfold.render.svg_map import MapDrawing
from pinfold.render.topology_view import (
    TopologyView,
    binary_size,
    cpu_facts,
    device_facts,
    header,
    hugepage_text,
)

_LINE = 20


def render_topology_svg(view: TopologyView) -> str:
    """The machine as an SVG document."""
    drawing = MapDrawing(view.node_map)
    width = drawing.width
    canvas = Canvas()
    y = draw_title(canvas, view.title, header(view), width)
    y = draw_legend(canvas, [view.node_map], y, width)
    drawing.draw(canvas, MARGIN, y)
    y = draw_notes(canvas, view.node_map, y + drawing.height, width) + 34
    if view.numa:
        y = _draw_numa(canvas, view, y, width)
    if view.devices:
        canvas.text((MARGIN, y), "PCI devices", 15, bold=True)
        y = draw_facts(canvas, device_facts(view, aligned=False), y + 24, width) + 16
    if view.distances:
        matrix_width = _draw_distances(Canvas(), view, y)[0]
        width = max(width, matrix_width)
        y = _draw_distances(canvas, view, y)[1]
    y = draw_facts(canvas, cpu_facts(view), y, width)
    if view.kubelet_notes:
        canvas.text((MARGIN, y + 16), "What the kubelet sees differently", 15, bold=True)
        y += 40
    for note in view.kubelet_notes:
        for text in wrap_text(f"• {note}", 12, width):
            canvas.text((MARGIN, y), text, 12, color="dim")
            y += _LINE
    about = f"{header(view)}. NUMA nodes: {len(view.numa)}."
    return canvas.document(width + 2 * MARGIN, y + MARGIN - 12, view.title, about)


def _draw_numa(canvas: Canvas, view: TopologyView, y: float, width: float) -> float:
    canvas.text((MARGIN, y), "NUMA nodes", 15, bold=True)
    y += 24
    memory = max(text_width(binary_size(row.memory_bytes), 12) for row in view.numa)
    first = MARGIN + 60
    second = first + max(memory, 56) + 20
    pages = [hugepage_text(row.hugepages) for row in view.numa]
    third = second + min(max(text_width(text, 12) for text in [*pages, "hugepages"]), width / 3)
    third += 20
    for x, name in ((MARGIN, "node"), (first, "memory"), (second, "hugepages"), (third, "CPUs")):
        canvas.text((x, y), name, 12, color="dim")
    y += _LINE
    for row, text in zip(view.numa, pages, strict=True):
        canvas.text((MARGIN, y), str(row.id), 12, bold=True)
        canvas.text((first, y), binary_size(row.memory_bytes) if row.memory_bytes else "-", 12)
        room = MARGIN + width - third
        huge = wrap_text(text, 12, third - second - 10)
        cpus = wrap_text(str(row.cpus), 12, room, mono=True) if row.cpus else []
        remark = wrap_text(row.remark(), 12, room) if row.remark() else []
        for at in range(max(len(huge), len(cpus) + len(remark))):
            if at < len(huge):
                canvas.text((second, y), huge[at], 12)
            if at < len(cpus):
                canvas.text((third, y), cpus[at], 12, mono=True)
                beside = third + text_width(cpus[at], 12, mono=True) + 14
                last = at == len(cpus) - 1 and len(remark) == 1
                if last and beside + text_width(remark[0], 12) <= third + room:
                    canvas.text((beside, y), remark.pop(), 12, color="dim")
            elif at - len(cpus) < len(remark):
                canvas.text((third, y), remark[at - len(cpus)], 12, color="dim")
            elif at >= len(huge):
                break
            y += _LINE
    return y + 16


def _draw_distances(canvas: Canvas, view: TopologyView, y: float) -> tuple[float, float]:
    """Draw the matrix, darker where farther; returns its width and where to go on."""
    canvas.text((MARGIN, y), "NUMA distances", 15, bold=True)
    y += 14
    values = [value for row in view.distances.values() for value in row]
    low, high = min(values, default=10), max(values, default=10)
    longest = max((len(str(item)) for item in [*values, *view.distance_nodes]), default=2)
    cell = max(26.0, longest * 7.5 + 10)
    for column, node in enumerate(view.distance_nodes):
        at = (MARGIN + 40 + column * cell + cell / 2, y + 16)
        canvas.text(at, str(node), 11, color="dim", anchor="middle")
    y += 24
    for node, row in view.distances.items():
        canvas.text((MARGIN + 32, y + 15), str(node), 11, color="dim", anchor="end")
        for column, value in enumerate(row):
            share = (value - low) / (high - low) if high > low else 0.0
            x = MARGIN + 40 + column * cell
            look = Look("c-dist", _shade(share), "#000000")
            canvas.segment((x, y, cell - 2, 20), look, f"{node} to column {column}: {value}")
            ink = "#ffffff" if share > 0.55 else "#10202f"
            canvas.plain((x + cell / 2 - 1, y + 14), str(value), ink)
        y += 22
    return 40 + len(view.distance_nodes) * cell, y + 30


def _shade(share: float) -> str:
    near, far = (0xDC, 0xEB, 0xF7), (0x0B, 0x4F, 0x8A)
    mixed = (round(a + (b - a) * share) for a, b in zip(near, far, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)
