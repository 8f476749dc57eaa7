"""The list of pods in a picture: rows of aligned columns, in one or more columns of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pinfold.render.boxes import Cell, CellState
from pinfold.render.node_map import NodeMap, Owner
from pinfold.render.palette import owner_symbol
from pinfold.render.plan_view import PlanView, headline
from pinfold.render.pods.alike import MOST_LINES, ContainerEntry, PodEntry, entries
from pinfold.render.svg_canvas import Canvas, Ruler, cell_look, owner_look, text_width, wrap_text

GAP: Final = 32
"""Between columns of the page."""

_NAME: Final = 12.5
_TEXT: Final = 12
_SMALL: Final = 11.5
_LINE: Final = 18
_HEAD: Final = 12.0
"""Between the title's baseline and the first row."""
_ROW: Final = 6
"""Between two rows."""
_MARK: Final = 20
_SWATCH: Final = 14
_LONGEST: Final = (230.0, 130.0, 190.0)
"""Of names of pods, of names of containers, of lists of CPUs; longer ones are broken."""


class PodTable:
    """The rows of a plan, measured; ``width`` is that which one column of the page wants."""

    def __init__(self, view: PlanView) -> None:
        self.node_map: NodeMap = view.node_map
        self.head = headline(view)
        self.rows: Sequence[PodEntry] = entries(view.pods, each=view.each)
        told = [one for row in self.rows if not row.first.has_trouble for one in row.containers]
        owned = [one for one in told if one.first.owner in view.node_map.owners]
        most_name, most_container, most_cpus = _LONGEST
        names = [text_width(row.name, _NAME, bold=True) for row in self.rows]
        self.name = min(max(names, default=0), most_name)
        labels = [text_width(one.label, _TEXT) for one in told]
        self.container = min(max(labels, default=0), most_container)
        self.qos = max((text_width(row.first.qos, 11) for row in self.rows), default=0)
        self.count = max((text_width(one.count, 11) for one in owned), default=0)
        cpus = [text_width(str(one.first.cpus), _TEXT, mono=True) for one in owned]
        self.cpus = min(max([*cpus, text_width("shared pool", _TEXT)]), most_cpus)
        self.heights: dict[float, list[float]] = {}
        self.width = _MARK + self._cpus_at() + self.cpus + 12 + self.count + 6

    def _cpus_at(self) -> float:
        """Where the list of CPUs begins, behind the mark of a row."""
        return self.name + 14 + self.container + 14 + self.qos + 14 + _SWATCH + 8

    def height(self, width: float, columns: int) -> float:
        """How high it is in so many columns, all together ``width`` wide."""
        return max((top + height for _, top, height in self._places(width, columns)), default=0)

    def draw(self, canvas: Canvas, at: tuple[float, float, float], columns: int) -> float:
        """Draw it in ``(x, baseline of the title, width)``; returns where to go on."""
        x, y, width = at
        if isinstance(canvas, Ruler):
            # There may be tens of thousands of rows, whose heights are known.
            return y + self.height(width, columns)
        canvas.text((x, y), "Pods", 15, bold=True)
        canvas.text((x + 48, y), self.head, 13, color="dim")
        each = (width - GAP * (columns - 1)) / columns
        places = self._places(width, columns)
        for row, (column, top, _) in zip(self.rows, places, strict=True):
            self._row(canvas, row, (x + column * (each + GAP), y + top, each))
        return y + self.height(width, columns)

    def _places(self, width: float, columns: int) -> list[tuple[int, float, float]]:
        """Of each row its column, its top below the title's baseline, and its height."""
        each = (width - GAP * (columns - 1)) / columns
        heights = self.heights.get(each)
        if heights is None:
            ruler = Ruler()
            heights = [self._row(ruler, row, (0, 0, each)) for row in self.rows]
            self.heights[each] = heights
        share = sum(heights) / columns
        column, top = 0, _HEAD
        places = []
        for height in heights:
            if column < columns - 1 and top + height / 2 > _HEAD + share and top > _HEAD:
                column, top = column + 1, _HEAD
            places.append((column, top, height))
            top += height
        return places

    def _row(self, canvas: Canvas, row: PodEntry, at: tuple[float, float, float]) -> float:
        """Draw one row; returns its height."""
        x, top, width = at
        pod = row.first
        y = top + 16
        left = x + _MARK
        mark, color = ("✗", "bad") if pod.failed or not pod.admitted else ("✓", "good")
        names = wrap_text(row.name, _NAME, self.name / 1.1)
        inner = x + _MARK + self.name + 14
        room = width - (inner - x)
        refusal = _refusal(row, room) if pod.has_trouble else []
        if refusal:
            height = max(len(names), len(refusal)) * _LINE + _ROW
            canvas.rect((x - 6, top + 1, width + 6, height - 2), "badbg", radius=6)
        canvas.text((x, y), mark, 13, color=color, bold=True)
        for number, name in enumerate(names):
            canvas.text((left, y + number * _LINE), name, _NAME, bold=True)
        low = y
        for number, (text, size) in enumerate(refusal):
            ink = "bad" if size > _TEXT else "ink"
            canvas.text((inner, low), text, size, color=ink, bold=size > _TEXT and number == 0)
            low += _LINE
        if not pod.has_trouble:
            qos = inner + self.container + 14
            canvas.text((qos, y), pod.qos, 11, color="dim")
            for container in row.containers:
                low = self._container(canvas, container, (x, low, width))
            for text in (part for whole in row.whole for part in wrap_text(whole, _SMALL, room)):
                canvas.text((inner, low), text, _SMALL, color="dim")
                low += _LINE
        return max(low, y + len(names) * _LINE) - y + _ROW

    def _container(
        self, canvas: Canvas, entry: ContainerEntry, at: tuple[float, float, float]
    ) -> float:
        """Draw one container in ``(x, baseline, width)``; returns the next baseline."""
        x, y, width = at
        first = entry.first
        inner = x + _MARK + self.name + 14
        start = x + _MARK + self._cpus_at()
        low = y
        for text in wrap_text(entry.label, _TEXT, self.container):
            canvas.text((inner, low), text, _TEXT)
            low += _LINE
        owner = self.node_map.owners.get(first.owner or "")
        swatch = (start - _SWATCH - 8, y - 11)
        if owner is None:
            look = cell_look(self.node_map, Cell(0, CellState.SHARED))
            canvas.cell(swatch, _SWATCH, look, (first.name, "", ""))
            canvas.text((start, y), "shared pool", _TEXT, color="dim")
            end = y + _LINE
        elif len(entry.each) > 1:
            end = self._replicas(canvas, entry, (swatch[0], y, x + width))
        else:
            texts = (first.name, owner_symbol(owner.index), "")
            canvas.cell(swatch, _SWATCH, owner_look(owner), texts)
            room = x + width - start - self.count - 12
            end = y
            for text in wrap_text(str(first.cpus), _TEXT, room, mono=True):
                canvas.text((start, end), text, _TEXT, mono=True)
                end += _LINE
            canvas.text((x + width, y), entry.count, 11, color="dim", anchor="end")
            for text in wrap_text(first.remark, _TEXT, room) if first.remark else ():
                canvas.text((start, end), text, _TEXT, color="dim")
                end += _LINE
        low = max(low, end)
        for extra in entry.extras:
            for text in wrap_text(extra, _SMALL, x + width - inner):
                canvas.text((inner, low - 1), text, _SMALL, color="dim")
                low += _LINE - 2
        return low

    def _replicas(
        self, canvas: Canvas, entry: ContainerEntry, at: tuple[float, float, float]
    ) -> float:
        """The mark and the CPUs of each; of many, the CPUs of all behind the first and last mark.

        Drawn in ``(x, baseline, right edge)``; returns the next baseline.
        """
        x, y, right = at
        owners = [self.node_map.owners.get(one.owner or "") for one in entry.each]
        pairs = [(o, one) for o, one in zip(owners, entry.each, strict=True) if o is not None]
        item = max(text_width(str(one.cpus), _TEXT, mono=True) for _, one in pairs)
        item += _SWATCH + 8 + 14
        across = max(int((right - x + 14) / item), 1)
        shown: list[tuple[tuple[float, float], Owner, str]]
        if few := -(-len(pairs) // across) <= MOST_LINES:
            shown = [
                ((x + number % across * item, y + number // across * _LINE), owner, str(one.cpus))
                for number, (owner, one) in enumerate(pairs)
            ]
            low = shown[-1][0][1]
            end = shown[-1][0][0] + item - 14
        else:
            step = _SWATCH + 14
            shown = [((x, y), pairs[0][0], "…"), ((x + step, y), pairs[-1][0], "")]
            left = x + 2 * step
            texts = wrap_text(str(entry.cpus), _TEXT, right - left, mono=True)
            for number, text in enumerate(texts):
                canvas.text((left, y + number * _LINE), text, _TEXT, mono=True)
            low = y + (len(texts) - 1) * _LINE
            end = left + text_width(texts[-1], _TEXT, mono=True)
        for (place, line), owner, text in shown:
            names = (owner.label, owner_symbol(owner.index), "")
            canvas.cell((place, line - 11), _SWATCH, owner_look(owner), names)
            beside = place + _SWATCH + (8 if few else 1)
            canvas.text((beside, line), text, _TEXT, mono=few, color="ink" if few else "dim")
        if end + 12 + text_width(entry.count, 11) > right:
            low += _LINE
        canvas.text((right, low), entry.count, 11, color="dim", anchor="end")
        return low + _LINE


def _refusal(row: PodEntry, width: float) -> list[tuple[str, float]]:
    """Lines of the reason and of the message, with their sizes."""
    pod = row.first
    reason = wrap_text(pod.reason or "Rejected", _NAME, width / 1.1)
    message = wrap_text(pod.message, _TEXT, width) if pod.message else []
    return [*((text, _NAME) for text in reason), *((text, _TEXT) for text in message)]
