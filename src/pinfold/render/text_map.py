"""A node map as lines of a terminal.

Boxes are frames, laid side by side as the width allows; a core is a column of its threads, one
above the other, so that a core whose threads have different owners is seen at once.  Three sizes
of cells are tried, and the roomiest taken that keeps the map short: CPU id and symbol with
padding, the same without, and one character for each thread with the CPUs of the row in front.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import mask_ranges
from pinfold.render.boxes import Box, Cell, Core, cores_per_row, shapes
from pinfold.render.node_map import NodeMap, Owner
from pinfold.render.palette import Paint, cell_paint, cell_symbol, owner_paint, owner_symbol
from pinfold.render.terminal import Line, Span, Style, cell_width, clean, clip, pad_line, wrap

_ROOMY_LINES: Final = 24
_MAP_LINES: Final = 40
_FRAME: Final = 4  # columns that a frame takes: "│ " and " │"
_SHORT: Final = 4  # lines that a full title is worth
_GROUP: Final = 8  # dense cells between two gaps


class _Mode(Struct, frozen=True):
    """One way to draw: ``ids`` or dense, ``padding`` columns about a cell, frames or indents."""

    ids: bool
    padding: int
    framed: bool


class _Size(Struct, frozen=True):
    """Columns and lines, how many children stand side by side, and how many titles are cut."""

    columns: int
    lines: int
    across: int
    cut: int


def map_lines(node_map: NodeMap, style: Style, *, max_lines: int = _MAP_LINES) -> list[Line]:
    """Draw the map in at most ``style.width`` columns.

    Colours are put on when the lines are printed; cells shrink before the map has more than
    ``max_lines``.
    """
    framed = style.width >= 40
    modes = [
        _Mode(ids=True, padding=1, framed=framed),
        _Mode(ids=True, padding=0, framed=framed),
        _Mode(ids=False, padding=0, framed=framed),
        _Mode(ids=False, padding=0, framed=False),
    ]
    limits = [min(_ROOMY_LINES, max_lines), max_lines, max_lines]
    drawings = [_Drawing(node_map, style, mode) for mode in modes]
    for drawing, limit in zip(drawings, limits, strict=False):
        if drawing.fits() and drawing.height() <= limit:
            break
    else:
        drawing = drawings[-1]
    lines = drawing.lines()
    for text in (*node_map.memory_only, *node_map.notes):
        lines += [[(part, "dim")] for part in wrap(clean(text), style.width)]
    return lines


class _Drawing:
    """A map in one mode; measures are kept, because boxes are tried at several widths."""

    def __init__(self, node_map: NodeMap, style: Style, mode: _Mode) -> None:
        self.map, self.style, self.mode = node_map, style, mode
        cells = list(node_map.cells())
        self.digits = max((len(str(cell.cpu)) for cell in cells), default=1)
        marks = {self.symbol(cell) for cell in cells}
        self.symbols = max((len(mark) for mark in marks if mark != " "), default=0)
        self.one_thread = all(len(core.cells) == 1 for core in node_map.root.all_cores())
        self.dense = max(self.symbols, 1)
        self.cell = self.digits + self.symbols + 2 * mode.padding if mode.ids else self.dense
        self.overhead = _FRAME if mode.framed else 1
        self.around_title = _FRAME + 2 if mode.framed else 0
        self.shapes = shapes(node_map.root)
        self.measured: dict[tuple[int, int], _Size] = {}

    def fits(self) -> bool:
        """Whether nothing is wider than the terminal."""
        return self._measure(self.map.root, self.style.width).columns <= self.style.width

    def height(self) -> int:
        """Lines of the drawing."""
        return self._measure(self.map.root, self.style.width).lines

    def lines(self) -> list[Line]:
        """The drawing."""
        return self._inside(self.map.root, self.style.width)

    # Measuring what is inside a box.

    def _measure(self, box: Box, width: int) -> _Size:
        key = (self.shapes[id(box)], width)
        found = self.measured.get(key)
        if found is None:
            if box.children:
                found = self._measure_children(box, width)
            else:
                found = self._measure_cores(box, width)
            self.measured[key] = found
        return found

    def _measure_box(self, box: Box, width: int) -> _Size:
        inner = self._measure(box, width - self.overhead)
        devices = len(_devices(box, width - self.overhead))
        room = width - self.around_title
        cut = inner.cut + (_title_width(box) > room)
        title = min(cell_width(_title(box)), room) + self.around_title
        columns = max(inner.columns + self.overhead, title)
        around = 2 if self.mode.framed else 1
        return _Size(columns, inner.lines + devices + around, 1, cut)

    def _measure_children(self, box: Box, width: int) -> _Size:
        best: _Size | None = None
        least = (0, 0, 0)
        children = box.children
        for across in range(1, min(len(children), 16) + 1):
            each = (width - (across - 1)) // across
            sizes = [self._measure_box(child, each) for child in children]
            columns = max(size.columns for size in sizes)
            if across > 1 and columns > each:
                continue
            rows = [sizes[at : at + across] for at in range(0, len(sizes), across)]
            height = sum(max(size.lines for size in row) for row in rows)
            cut = sum(size.cut for size in sizes)
            found = _Size(columns * across + across - 1, height, across, cut)
            cost = (cut, height + _SHORT * self._shortened(children, each), found.columns)
            if best is None or cost < least:
                best, least = found, cost
        return best or _Size(0, 0, 1, 0)

    def _shortened(self, children: tuple[Box, ...], width: int) -> int:
        """How many titles lose their details; among many boxes nobody misses them."""
        room = width - self.around_title
        return sum(cell_width(_title(child)) > room for child in children if len(children) <= 4)

    def _measure_cores(self, box: Box, width: int) -> _Size:
        if not box.cores:
            return _Size(0, 0, 1, 0)
        per_row = self._per_row(box, width)
        threads = max(len(core.cells) for core in box.cores)
        rows = -(-len(box.cores) // per_row)
        blank = 0 if self.one_thread else rows - 1
        return _Size(self._row_width(box, per_row), rows * threads + blank, 1, 0)

    def _row_width(self, box: Box, per_row: int) -> int:
        if self.mode.ids:
            return per_row * (self.cell + 1) - 1
        one, gap = self._dense_cell()
        return self._label_width(box) + 1 + per_row * one - gap + (per_row - 1) // _GROUP

    def _per_row(self, box: Box, width: int) -> int:
        """Cores in a row: all, or an even share of them, whole groups if possible."""
        count = len(box.cores)
        if self.mode.ids:
            most = (width + 1) // (self.cell + 1)
        else:
            room = width - self._label_width(box) - 1
            one, gap = self._dense_cell()
            groups, rest = divmod(room + gap, _GROUP * one + 1)
            most = groups * _GROUP + rest // one
        return cores_per_row(count, max(1, min(count, most)))

    def _dense_cell(self) -> tuple[int, int]:
        """Columns of a dense cell with the gap behind it, and those of the gap.

        Two letters without a gap would read as two cells.
        """
        gap = int(self.dense > 1)
        return self.dense + gap, gap

    def _label_width(self, box: Box) -> int:
        return 2 * len(str(max(core.cells[-1].cpu for core in box.cores))) + 1

    # Drawing: lines of exactly ``width`` columns.

    def _inside(self, box: Box, width: int) -> list[Line]:
        if not box.children:
            return [pad_line(line, width) for line in self._core_lines(box, width)]
        across = self._measure(box, width).across
        each = (width - (across - 1)) // across
        if across > 1 or not self.mode.framed:
            each = min(each, max(self._measure_box(child, each).columns for child in box.children))
        elif box is self.map.root:
            each = max(self._measure_box(child, each).columns for child in box.children)
        lines: list[Line] = []
        for at in range(0, len(box.children), across):
            row = box.children[at : at + across]
            height = max(self._measure_box(child, each).lines for child in row)
            blocks = [self._box(child, each, height) for child in row]
            for parts in zip(*blocks, strict=True):
                line: Line = []
                for part in parts:
                    line += [*part, (" ", "")]
                lines.append(pad_line(line[:-1], width))
        return lines

    def _box(self, box: Box, width: int, height: int) -> list[Line]:
        inner = width - self.overhead
        body = self._inside(box, inner)
        below: list[Line] = [pad_line([(text, "dim")], inner) for text in _devices(box, inner)]
        title = _title(box, width - self.around_title)
        if not self.mode.framed:
            lines = [pad_line([(title, "bold")], width)]
            lines += [[(" ", ""), *line] for line in [*body, *below]]
            return lines + [[(" " * width, "")]] * (height - len(lines))
        # Those of boxes side by side are on one line.
        body += [[(" " * inner, "")]] * (height - 2 - len(body) - len(below))
        body += below
        rule = "─" * (width - 3 - (cell_width(title) + 2 if title else 0))
        named: Line = [(f" {title} ", "bold")] if title else []
        top: Line = [("╭─", "frame"), *named, (f"{rule}╮", "frame")]
        side: Line = [("│", "frame"), (" ", "")]
        lines = [[*side, *line, (" ", ""), ("│", "frame")] for line in body]
        return [top, *lines, [(f"╰{'─' * (width - 2)}╯", "frame")]]

    def _core_lines(self, box: Box, width: int) -> Iterator[Line]:
        per_row = self._per_row(box, width) if box.cores else 1
        label = self._label_width(box) if box.cores else 0
        threads = max((len(core.cells) for core in box.cores), default=0)
        for at in range(0, len(box.cores), per_row):
            cores = box.cores[at : at + per_row]
            if at and not self.one_thread:
                yield []
            for thread in range(threads):
                if self.mode.ids:
                    yield self._id_row(cores, thread)
                else:
                    yield self._dense_row(cores, thread, label, width)

    def _id_row(self, cores: tuple[Core, ...], thread: int) -> Line:
        line: Line = []
        space = " " * self.mode.padding
        for core in cores:
            if thread < len(core.cells):
                cell = core.cells[thread]
                symbol = self.symbol(cell) if self.symbols else ""
                text = f"{space}{cell.cpu:>{self.digits}}{symbol:<{self.symbols}}{space}"
                line += [(text, self.paint(cell)), (" ", "")]
            else:
                line.append((" " * (self.cell + 1), ""))
        return line[:-1]

    def _dense_row(self, cores: tuple[Core, ...], thread: int, label: int, width: int) -> Line:
        mask = 0
        for core in cores:
            if thread < len(core.cells):
                mask |= 1 << core.cells[thread].cpu
        line: Line = []
        gap = self._dense_cell()[1]
        if label + 2 <= width:
            line = [(f"{clip(short_range(mask), label):>{label}} ", "dim")]
        for at, core in enumerate(cores):
            if at and at % _GROUP == 0:
                line.append((" ", ""))
            if thread < len(core.cells):
                cell = core.cells[thread]
                symbol = self.symbol(cell)
                blank = "-" if cell.muted else "o"
                shown = blank if symbol == " " else symbol
                line.append((f"{shown:<{self.dense}}", self.paint(cell)))
            else:
                line.append((" " * self.dense, ""))
            if gap and at < len(cores) - 1:
                line.append((" ", ""))
        return line

    def symbol(self, cell: Cell) -> str:
        """The character, or two, that say whose the cell is."""
        return cell_symbol(self.map, cell, ascii_only=self.style.ascii_only)

    def paint(self, cell: Cell) -> str | Paint:
        """The cell's style."""
        return cell_paint(self.map, cell)


def swatch(owner: Owner, style: Style) -> Span:
    """An owner's symbol on its colour."""
    symbol = owner_symbol(owner.index, ascii_only=style.ascii_only)
    return f" {symbol} ", owner_paint(owner.painted)


def short_range(mask: int) -> str:
    """The CPUs of a row in few columns: ``0-31``, ``0-62:2``, or first and last of odd ones."""
    ranges = list(mask_ranges(mask))
    if not ranges:
        return ""
    low, high = ranges[0][0], ranges[-1][1]
    if len(ranges) == 1:
        return str(low) if low == high else f"{low}-{high}"
    return f"{low}…{high}"


def _devices(box: Box, width: int) -> list[str]:
    """The devices of a box in lines of this width."""
    return wrap(clean(" · ".join(box.devices)), width) if box.devices else []


def _title(box: Box, width: int | None = None) -> str:
    if box.offline:
        return "Offline"
    full = clean(" · ".join(label.text() for label in box.labels))
    if width is None or cell_width(full) <= width:
        return full
    short = [clean(label.text(short=True)) for label in box.labels]
    while len(short) > 1 and cell_width(" · ".join(short)) > width:
        short.pop()
    return clip(" · ".join(short), max(width, 1))


def _title_width(box: Box) -> int:
    """What the title needs at least: see the end of :func:`_title`."""
    return cell_width(clean(box.labels[0].text(short=True))) if box.labels else 0
