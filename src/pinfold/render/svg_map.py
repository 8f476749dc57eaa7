"""A node map as SVG boxes: sockets, NUMA nodes and caches nested, cores framed, threads stacked.

The picture is made about one and a half times as wide as high by trying several widths; cells
stay large enough for their ids at 1024 CPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pinfold.render.boxes import Box, Cell, CellState, Core, Level, cores_per_row, shapes
from pinfold.render.node_map import POOL, NodeMap, Owner
from pinfold.render.palette import cell_symbol
from pinfold.render.svg_canvas import Canvas, cell_look, text_width, wrap_text

POOL_MARK: Final = "*"
"""Stands behind the symbol of a pod's shared pool."""

_WIDTHS: Final = (640, 800, 960, 1120, 1280, 1440, 1680, 1920)
_PAD: Final = 10
_TITLE: Final = 22
_DEVICES: Final = 18
_GAP: Final = 10
_ASPECT: Final = 0.62
_CELLS: Final = (40.0, 36.0, 32.0, 28.0, 26.0, 24.0)
_CELL_AREA: Final = 130_000


class _Size(Struct, frozen=True):
    """What a box takes inside, and how many children or cores stand side by side."""

    width: float
    height: float
    across: int


class MapDrawing:
    """A node map laid out for one width, to be drawn at any place."""

    def __init__(self, node_map: NodeMap, *, width: float | None = None) -> None:
        self.map = node_map
        self.symbols = any(cell_symbol(node_map, cell) != " " for cell in node_map.cells())
        self.places = _places(node_map.root)
        count = sum(1 for _ in node_map.cells())
        sizes = [size for size in _CELLS if count * size * size < _CELL_AREA] or [_CELLS[-1]]
        self.cell = sizes[0]
        self.frame = 3.0 if self.cell >= 30 else 2.0
        self.core_gap = 5.0 if self.cell >= 30 else 4.0
        self.shapes = shapes(node_map.root)
        self.measured: dict[tuple[int, float], _Size] = {}
        self.titles: dict[str, float] = {}
        best: _Size | None = None
        for each in _WIDTHS if width is None else (width,):
            found = self._inside(node_map.root, each)
            best = _Size(max(found.width, _WIDTHS[0]), found.height, found.across)
            if best.height <= best.width * _ASPECT:
                break
        self.width, self.height = (best.width, best.height) if best else (0.0, 0.0)
        if width is not None:
            self.width = width

    # Measuring

    def _inside(self, box: Box, width: float) -> _Size:
        key = (self.shapes[id(box)], width)
        found = self.measured.get(key)
        if found is None:
            found = self._children(box, width) if box.children else self._cores(box, width)
            self.measured[key] = found
        return found

    def _outside(self, box: Box, width: float) -> tuple[float, float]:
        size = self._inside(box, width - 2 * _PAD)
        title = _TITLE if box.title else 0
        full, short = (self._title_width(box, short=short) for short in (False, True))
        inner = max(size.width, short, min(full, width - 2 * _PAD))
        height = size.height + 2 * _PAD + title + len(_devices(box, inner)) * _DEVICES
        return inner + 2 * _PAD, height

    def _children(self, box: Box, width: float) -> _Size:
        best: _Size | None = None
        for across in range(1, min(len(box.children), 16) + 1):
            each = (width - _GAP * (across - 1)) / across
            sizes = [self._outside(child, each) for child in box.children]
            widest = max(size[0] for size in sizes)
            if across > 1 and widest > each:
                continue
            rows = [sizes[at : at + across] for at in range(0, len(sizes), across)]
            height = sum(max(size[1] for size in row) for row in rows) + _GAP * (len(rows) - 1)
            found = _Size(widest * across + _GAP * (across - 1), height, across)
            if best is None or (found.height, found.width) < (best.height, best.width):
                best = found
        return best or _Size(0, 0, 1)

    def _core_size(self, box: Box) -> tuple[float, float]:
        threads = max(len(core.cells) for core in box.cores)
        height = threads * self.cell + (threads - 1) * 2 + 2 * self.frame
        return self.cell + 2 * self.frame, height

    def _cores(self, box: Box, width: float) -> _Size:
        if not box.cores:
            return _Size(0, 0, 1)
        one, height = self._core_size(box)
        count = len(box.cores)
        most = max(1, min(count, int((width + self.core_gap) / (one + self.core_gap))))
        share = cores_per_row(count, most)
        rows = -(-count // share)
        return _Size(
            share * (one + self.core_gap) - self.core_gap,
            rows * (height + self.core_gap) - self.core_gap,
            share,
        )

    def _title_width(self, box: Box, *, short: bool) -> float:
        title = _short_title(box) if short else box.title
        if title not in self.titles:
            self.titles[title] = text_width(title, 12, bold=True)
        return self.titles[title]

    # Drawing

    def draw(self, canvas: Canvas, x: float, y: float) -> None:
        """Draw the map with its upper left corner at ``(x, y)``."""
        self._draw_inside(canvas, self.map.root, (x, y, self.width), 0)

    def _draw_inside(
        self, canvas: Canvas, box: Box, at: tuple[float, float, float], depth: int
    ) -> None:
        x, y, width = at
        size = self._inside(box, width)
        if not box.children:
            left = x + (width - size.width) / 2
            self._draw_cores(canvas, box, (left, y), size.across)
            return
        each = (width - _GAP * (size.across - 1)) / size.across
        for start in range(0, len(box.children), size.across):
            row = box.children[start : start + size.across]
            height = max(self._outside(child, each)[1] for child in row)
            for number, child in enumerate(row):
                left = x + number * (each + _GAP)
                self._draw_box(canvas, child, (left, y, each, height), depth)
            y += height + _GAP

    def _draw_box(
        self, canvas: Canvas, box: Box, at: tuple[float, float, float, float], depth: int
    ) -> None:
        x, y, width, high = at
        canvas.rect(at, f"box{min(depth, 2)}", radius=8, stroke="edge")
        title = box.title
        inner = width - 2 * _PAD
        top = y + _PAD
        if title:
            if self._title_width(box, short=False) > inner:
                title = _short_title(box)
            canvas.text((x + _PAD, top + 11), title, 12, bold=depth == 0, color=_ink(depth))
            top += _TITLE
        self._draw_inside(canvas, box, (x + _PAD, top, inner), depth + 1)
        lines = _devices(box, inner)
        top = y + high - _PAD - (len(lines) - 1) * _DEVICES
        for number, text in enumerate(lines):
            canvas.text((x + _PAD, top - 1 + number * _DEVICES), text, 11.5, color="dim")

    def _draw_cores(self, canvas: Canvas, box: Box, at: tuple[float, float], across: int) -> None:
        x, y = at
        if not box.cores:
            return
        one, height = self._core_size(box)
        for number, core in enumerate(box.cores):
            left = x + number % across * (one + self.core_gap)
            top = y + number // across * (height + self.core_gap)
            self._draw_core(canvas, core, left, top)

    def _draw_core(self, canvas: Canvas, core: Core, x: float, y: float) -> None:
        size, frame = self.cell, self.frame
        height = len(core.cells) * (size + 2) - 2 + 2 * frame
        if len(core.cells) > 1:
            canvas.rect((x, y, size + 2 * frame, height), "core", radius=size * 0.18 + frame)
        for number, cell in enumerate(core.cells):
            symbol = cell_symbol(self.map, cell).strip(" ·") if self.symbols else ""
            if symbol and cell.owner is not None:
                symbol += _mark(self.map.owners[cell.owner])
            texts = (self._tooltip(core, cell), str(cell.cpu), symbol)
            at = (x + frame, y + frame + number * (size + 2))
            canvas.cell(at, size, cell_look(self.map, cell), texts)
            if cell.marked:
                canvas.outline(at, size)

    def _tooltip(self, core: Core, cell: Cell) -> str:
        parts = [f"CPU {cell.cpu}"]
        if cell.state is not CellState.OFFLINE:
            parts.append(f"core {core.id}")
        parts += self.places.get(cell.cpu, ())
        if cell.owner is not None:
            how = cell.state.value
            parts.append(f"{self.map.owners[cell.owner].label} ({how})")
        else:
            parts.append(cell.state.value)
        if cell.isolated and cell.state is not CellState.ISOLATED:
            parts.append("isolated")
        return " · ".join(parts)


def _mark(owner: Owner) -> str:
    """What stands behind the symbol of an owner that is not the only one on its CPUs."""
    return "+" * owner.mixed + POOL_MARK * (owner.kind == POOL)


def _ink(depth: int) -> str:
    return "ink" if depth == 0 else "dim"


def _devices(box: Box, width: float) -> list[str]:
    """The devices of a box in lines of this width."""
    return wrap_text(" · ".join(box.devices), 11.5, width) if box.devices else []


def _short_title(box: Box) -> str:
    return " · ".join(label.text(short=True) for label in box.labels)


def _places(root: Box) -> Mapping[int, tuple[str, ...]]:
    """For each CPU the titles of the boxes that it is in, the innermost first."""
    places: dict[int, tuple[str, ...]] = {}

    def walk(box: Box, titles: tuple[str, ...]) -> None:
        own = sorted(box.labels, key=lambda label: -label.level)
        names = tuple(
            f"{label.id} core" if label.level is Level.KIND else label.text(short=True)
            for label in own
        )
        titles = (*names, *titles)
        for core in box.cores:
            for cell in core.cells:
                places[cell.cpu] = titles
        for child in box.children:
            walk(child, titles)

    walk(root, ())
    return places
