"""Figures of several configurations side by side: a column each, as many beside as there is room.

Where not all fit, the table goes on below with the next ones; the points of a sweep then have a row
each in one table of the figures that are looked for first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.render.terminal import Line, Style, cell_width, clean, clip, pad, print_lines, wrap
from pinfold.render.text import note_lines, title_lines

_NAME: Final = 24
"""Longer names of configurations are broken."""
_LABEL: Final = 34
_HEAD: Final = 14
"""The same of what a column of the table of a sweep is called."""
_LEAST_LABEL: Final = 20
_GAP: Final = "  "


class Figure(Struct, frozen=True):
    """A number as it is shown, ``share`` beside it, and ``detail`` below."""

    text: str
    share: str = ""
    detail: str = ""


class FigureRow(Struct, frozen=True):
    """One thing that was counted; a figure for each column.

    ``level`` is how far it is a part of the rows above, ``is_main`` marks what is looked for first,
    which is called ``head`` where it stands without the section.
    """

    label: str
    figures: tuple[Figure, ...]
    level: int = 0
    is_main: bool = False
    head: str = ""


class FigureSection(Struct, frozen=True):
    """Rows below a heading."""

    title: str
    rows: tuple[FigureRow, ...]


class Column(Struct, frozen=True):
    """A configuration; ``remark`` says what is wrong with its figures."""

    name: str
    remark: str = ""


class SideBySide(Struct, frozen=True):
    """All of it; the columns of one that ``is_sweep`` may be turned into rows."""

    title: str
    subtitle: str
    columns: tuple[Column, ...]
    sections: tuple[FigureSection, ...]
    notes: tuple[str, ...] = ()
    is_sweep: bool = False


class _Widths(Struct, frozen=True):
    """Of a column: of all of it, and of the shares at its right."""

    whole: int
    share: int


def render_side_by_side(view: SideBySide, style: Style) -> str:
    """The text, ending in a newline."""
    rows = [row for section in view.sections for row in section.rows]
    longest = max((cell_width(row.label) + 2 * row.level for row in rows), default=0)
    label = min(longest, _LABEL, max(style.width // 2, 8))
    columns = _all_widths(view, rows, style.width - label, _NAME)
    blocks = list(_blocks(columns, style.width - label))
    if view.is_sweep and len(blocks) > 1:
        view = _turned(view)
        (section,) = view.sections
        longest = max(cell_width(row.label) for row in section.rows)
        least = min(longest, _LEAST_LABEL, max(style.width // 2, 8))
        columns = _all_widths(view, section.rows, style.width - least, _HEAD)
        label = style.width - sum(len(_GAP) + column.whole for column in columns)
        label = max(min(label, longest), least)
        blocks = list(_blocks(columns, style.width - label))
    lines: list[Line] = [*title_lines(view.title, view.subtitle, style), []]
    for places in blocks:
        lines += [*_head(view, places, label, columns), *_rows(view, places, label, columns), []]
    if view.notes:
        lines += [*note_lines(view.notes, style), []]
    lines.pop()
    return print_lines(lines, style)


def _turned(view: SideBySide) -> SideBySide:
    """A row for each configuration, and a column for each figure that is looked for first."""
    main = [row for section in view.sections for row in section.rows if row.is_main]
    rows = tuple(
        FigureRow(
            f"{column.name} ({column.remark})" if column.remark else column.name,
            tuple(replace(row.figures[place], detail="") for row in main),
        )
        for place, column in enumerate(view.columns)
    )
    return replace(
        view,
        columns=tuple(Column(row.head or row.label) for row in main),
        sections=(FigureSection("Configurations", rows),),
        notes=(*view.notes, "all figures of each are in -o json and on the page of --report"),
    )


def _all_widths(
    view: SideBySide, rows: Sequence[FigureRow], room: int, longest: int
) -> list[_Widths]:
    """Of the columns, of which none is wider than there is room, nor for its name than longest."""
    most = max(room - len(_GAP), 2)
    return [_widths(column, rows, at, most, longest) for at, column in enumerate(view.columns)]


def _widths(
    column: Column, rows: Sequence[FigureRow], place: int, most: int, longest: int
) -> _Widths:
    figures = [row.figures[place] for row in rows]
    share = max((cell_width(figure.share) for figure in figures), default=0)
    number = max((cell_width(figure.text) for figure in figures), default=0)
    detail = max((cell_width(figure.detail) for figure in figures), default=0)
    name = max(min(cell_width(clean(text)), longest) for text in (column.name, column.remark))
    return _Widths(min(max(number + share + bool(share), detail, name), most), share)


def _blocks(columns: Sequence[_Widths], room: int) -> Iterator[list[int]]:
    """Places of the columns that stand beside each other."""
    block: list[int] = []
    used = 0
    for place, column in enumerate(columns):
        width = column.whole
        if block and used + len(_GAP) + width > room:
            yield block
            block, used = [], 0
        block.append(place)
        used += len(_GAP) + width
    if block:
        yield block


def _head(
    view: SideBySide, places: list[int], label: int, columns: Sequence[_Widths]
) -> Iterator[Line]:
    texts = [_name_lines(view.columns[place], columns[place].whole) for place in places]
    deepest = max(len(lines) for lines in texts)
    # The last line of each name is just above its figures.
    raised = [[("", "")] * (deepest - len(lines)) + lines for lines in texts]
    for spans in zip(*raised, strict=True):
        line: Line = [(" " * label, "")]
        for place, (text, kind) in zip(places, spans, strict=True):
            line += [(_GAP, ""), (_right(text, columns[place].whole), kind)]
        yield line


def _name_lines(column: Column, width: int) -> list[tuple[str, str]]:
    lines = [(text, "bold") for text in wrap(clean(column.name), width, after=",=-")]
    if column.remark:
        lines += [(text, "bad") for text in wrap(clean(column.remark), width)]
    return lines


def _rows(
    view: SideBySide, places: list[int], label: int, columns: Sequence[_Widths]
) -> Iterator[Line]:
    width = label + sum(len(_GAP) + columns[place].whole for place in places)
    for number, section in enumerate(view.sections):
        yield from [[]] * (number > 0)
        for text in wrap(clean(section.title), width):
            yield [(text, "key")]
        for row in section.rows:
            yield from _row(row, places, label, columns)


def _row(
    row: FigureRow, places: list[int], label: int, columns: Sequence[_Widths]
) -> Iterator[Line]:
    """Its figures beside the first line of the label, their details beside the second."""
    kind = "bold" if row.is_main else ""
    indent = "  " * row.level
    labels = wrap(clean(row.label), label - len(indent), after="/-=,")
    figures: list[Line] = [
        [(_number(row.figures[place], columns[place]), kind) for place in places],
        [(_right(row.figures[place].detail, columns[place].whole), "dim") for place in places],
    ]
    if not any(row.figures[place].detail for place in places):
        figures.pop()
    for name, shown in zip_longest(labels, figures):
        line: Line = [(pad(indent + (name or ""), label), kind)]
        for span in shown or ():
            line += [(_GAP, ""), span]
        yield line


def _number(figure: Figure, column: _Widths) -> str:
    share = f" {_right(figure.share, column.share)}" if column.share else ""
    return _right(figure.text + share, column.whole)


def _right(text: str, width: int) -> str:
    return " " * max(width - cell_width(text), 0) + clip(text, width)
