"""Figures of several configurations side by side: a column each, as many beside as there is room.

Where not all fit, the table goes on below with the next ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

from msgspec import Struct

from pinfold.render.terminal import Line, Style, cell_width, clean, pad, print_lines, wrap
from pinfold.render.text import note_lines, title_lines

_NAME: Final = 24
"""Longer names of configurations are broken."""
_LABEL: Final = 34
_GAP: Final = "  "


class Figure(Struct, frozen=True):
    """A number as it is shown; ``detail`` stands below it."""

    text: str = ""
    detail: str = ""


class FigureRow(Struct, frozen=True):
    """One thing that was counted; a figure for each column.

    ``level`` is how far it is a part of the rows above, ``weight`` marks what is looked for first.
    """

    label: str
    figures: tuple[Figure, ...]
    level: int = 0
    is_main: bool = False


class FigureSection(Struct, frozen=True):
    """Rows below a heading."""

    title: str
    rows: tuple[FigureRow, ...]


class Column(Struct, frozen=True):
    """A configuration; ``remark`` says what is wrong with its figures."""

    name: str
    remark: str = ""


class SideBySide(Struct, frozen=True):
    """All of it."""

    title: str
    subtitle: str
    columns: tuple[Column, ...]
    sections: tuple[FigureSection, ...]
    notes: tuple[str, ...] = ()


def render_side_by_side(view: SideBySide, style: Style) -> str:
    """The text, ending in a newline."""
    lines: list[Line] = [*title_lines(view.title, view.subtitle, style), []]
    label, widths = _widths(view, style)
    for places in _blocks(widths, style.width - label):
        lines += [*_head(view, places, label, widths), *_rows(view, places, label, widths), []]
    if view.notes:
        lines += [*note_lines(view.notes, style), []]
    lines.pop()
    return print_lines(lines, style)


def _widths(view: SideBySide, style: Style) -> tuple[int, list[int]]:
    """The width of the labels, and of each column."""
    rows = [row for section in view.sections for row in section.rows]
    longest = max((cell_width(row.label) + 2 * row.level for row in rows), default=0)
    label = min(longest, _LABEL, max(style.width // 2, 8))
    widths = []
    for place, column in enumerate(view.columns):
        figures = [row.figures[place] for row in rows]
        texts = [text for figure in figures for text in (figure.text, figure.detail)]
        name = max(min(cell_width(clean(text)), _NAME) for text in (column.name, column.remark))
        widest = max((cell_width(text) for text in texts), default=0)
        widths.append(min(max(widest, name, 8), max(style.width - label - len(_GAP), 2)))
    return label, widths


def _blocks(widths: Sequence[int], room: int) -> Iterator[list[int]]:
    """Places of the columns that stand beside each other."""
    block: list[int] = []
    used = 0
    for place, width in enumerate(widths):
        if block and used + len(_GAP) + width > room:
            yield block
            block, used = [], 0
        block.append(place)
        used += len(_GAP) + width
    if block:
        yield block


def _head(view: SideBySide, places: list[int], label: int, widths: list[int]) -> Iterator[Line]:
    texts = [_name_lines(view.columns[place], widths[place]) for place in places]
    deepest = max(len(lines) for lines in texts)
    # The last line of each name is just above its figures.
    raised = [[("", "")] * (deepest - len(lines)) + lines for lines in texts]
    for spans in zip(*raised, strict=True):
        line: Line = [(" " * label, "")]
        for place, (text, kind) in zip(places, spans, strict=True):
            line += [(_GAP, ""), (_right(text, widths[place]), kind)]
        yield line


def _name_lines(column: Column, width: int) -> list[tuple[str, str]]:
    lines = [(text, "bold") for text in wrap(clean(column.name), width, after=",=-")]
    if column.remark:
        lines += [(text, "bad") for text in wrap(clean(column.remark), width)]
    return lines


def _rows(view: SideBySide, places: list[int], label: int, widths: list[int]) -> Iterator[Line]:
    for number, section in enumerate(view.sections):
        yield from [[]] * (number > 0)
        for text in wrap(clean(section.title), max(label + sum(widths), 8)):
            yield [(text, "key")]
        for row in section.rows:
            yield from _row(row, places, label, widths)


def _row(row: FigureRow, places: list[int], label: int, widths: list[int]) -> Iterator[Line]:
    indent = "  " * row.level
    labels = wrap(clean(row.label), label - len(indent), after="/-")
    figures = [row.figures[place] for place in places]
    has_details = any(figure.detail for figure in figures)
    below: Sequence[str]
    for at, (name, text) in enumerate(
        zip_longest(labels, ("text", "detail") if has_details else ("text",))
    ):
        below = [getattr(figure, text) if text else "" for figure in figures]
        kind = "dim" if at else "bold" if row.is_main else ""
        line: Line = [(pad(indent + (name or ""), label), "bold" if row.is_main else "")]
        for place, shown in zip(places, below, strict=True):
            line += [(_GAP, ""), (_right(shown, widths[place]), kind)]
        yield line


def _right(text: str, width: int) -> str:
    return " " * max(width - cell_width(text), 0) + text
