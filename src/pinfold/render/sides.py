"""Maps of a node side by side, or one below the other where there is no room."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from msgspec.structs import replace

from pinfold.render.node_map import NodeMap
from pinfold.render.svg_canvas import Canvas, wrap_text
from pinfold.render.svg_map import MapDrawing
from pinfold.render.terminal import Line, Style, clean, pad, pad_line
from pinfold.render.text_map import map_lines

_BESIDE = 100
"""From this width on maps stand side by side."""
_WIDEST = 800
SIDE_GAP = 32
_NAME = 20


def side_lines(sides: Sequence[tuple[str, NodeMap]], style: Style) -> list[Line]:
    """The maps as text, each below its name."""
    beside = style.width >= _BESIDE and len(sides) == 2
    each = replace(style, width=(style.width - 3) // 2) if beside else style
    blocks: list[list[Line]] = [
        [[(pad(clean(name), each.width), "bold")], *map_lines(node_map, each)]
        for name, node_map in sides
    ]
    if beside:
        empty: Line = []
        return [
            [*pad_line(one, each.width + 3), *two]
            for one, two in zip_longest(*blocks, fillvalue=empty)
        ]
    lines: list[Line] = []
    for number, block in enumerate(blocks):
        lines += [[]] * (number > 0)
        lines += block
    return lines


class SidesDrawing:
    """Maps laid out for a picture; ``width`` is that of all together."""

    def __init__(self, sides: Sequence[tuple[str, NodeMap]]) -> None:
        self.sides = [(name, MapDrawing(node_map)) for name, node_map in sides]
        drawings = [drawing for _, drawing in self.sides]
        self.beside = drawings[0].width <= _WIDEST
        widths = [drawing.width for drawing in drawings]
        gaps = SIDE_GAP * (len(widths) - 1)
        self.width = sum(widths) + gaps if self.beside else max(widths)

    def draw(self, canvas: Canvas, x: float, y: float) -> float:
        """Draw the maps, each below its name, whose baseline is at ``y``; returns the lower end."""
        bottom = y
        for name, drawing in self.sides:
            names = wrap_text(name, 14, drawing.width) if name else []
            top = y
            for text in names:
                canvas.text((x, top), text, 14, bold=True)
                top += _NAME
            drawing.draw(canvas, x, top - 6)
            bottom = max(bottom, top + drawing.height)
            if self.beside:
                x += drawing.width + SIDE_GAP
            else:
                y = bottom + SIDE_GAP
        return bottom
