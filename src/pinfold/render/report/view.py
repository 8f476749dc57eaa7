"""A report as plain data: sections of texts, tables and plots."""

from __future__ import annotations

from msgspec import Struct


class Line(Struct, frozen=True):
    """One line of a plot."""

    key: int
    """Which of the plot's keys: it has the colour, the dashes and the markers of that one."""
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float, float], ...] = ()
    """x, lowest and highest y: an area behind the line."""


class LineChart(Struct, frozen=True):
    """Lines over a common axis."""

    x: str
    """What the axis is, with its unit."""
    y: str
    keys: tuple[str, ...]
    """The names in the legend."""
    lines: tuple[Line, ...]
    categories: tuple[str, ...] = ()
    """If there are any: the words of the x axis, and each ``x`` is an index of these."""
    percent: bool = False
    """``y`` is a share, 0 to 1."""
    from_zero: bool = True
    whole: bool = False
    """``x`` has whole numbers only."""
    at: tuple[float, str] | None = None
    """A moment to be marked, and its words."""
    numbered: bool = False
    """The names begin with a number, which is enough for who has all names beside the plot."""


class Bar(Struct, frozen=True):
    """One bar, of several parts."""

    name: str
    says: str
    """Its value in words."""
    values: tuple[float, ...]
    """By part."""
    between: tuple[float, float] | None = None
    """The lowest and the highest sum of the values, by seed."""


class BarChart(Struct, frozen=True):
    """Horizontal bars, one below the other."""

    x: str
    parts: tuple[str, ...]
    """The names in the legend; a single one needs none."""
    bars: tuple[Bar, ...]
    percent: bool = False
    ordered: bool = False
    """The parts are steps of one thing: they have the shades of one colour."""
    hues: tuple[int, ...] = ()
    """Which colour each part has; else they have all, one after the other."""


Chart = LineChart | BarChart


class Column(Struct, frozen=True):
    """A column of a table."""

    title: str
    numeric: bool = True


class Table(Struct, frozen=True):
    """A table; the first cell of a row names it."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


class Text(Struct, frozen=True, tag=True):
    """A paragraph; the words in ``strong`` are what it is about."""

    text: str
    strong: str = ""
    """Comes first."""


class Points(Struct, frozen=True, tag=True):
    """A list of sentences."""

    items: tuple[Text, ...]


class Shown(Struct, frozen=True, tag=True):
    """A table that is shown at once."""

    table: Table


class Figure(Struct, frozen=True, tag=True):
    """A plot with its words, and the table behind it."""

    name: str
    """Of its file, without an ending: small letters and dashes."""
    title: str
    says: str
    """What is to be seen, for who does not see it, too."""
    chart: Chart
    table: Table


class Folded(Struct, frozen=True, tag=True):
    """What is seen when somebody wants to."""

    summary: str
    facts: tuple[tuple[str, str], ...] = ()
    """Name and value."""
    lines: tuple[str, ...] = ()
    """Sentences, one below the other."""
    code: str = ""
    """Set as it is, in a fixed width."""


Block = Text | Points | Shown | Figure | Folded


class Section(Struct, frozen=True):
    """A part of the page."""

    name: str
    """Of its anchor: small letters and dashes."""
    title: str
    blocks: tuple[Block, ...]


class Report(Struct, frozen=True):
    """The page."""

    title: str
    subtitle: str
    sections: tuple[Section, ...]
    alerts: tuple[str, ...] = ()
    """What a reader has to know before he believes any of it."""

    def figures(self) -> tuple[Figure, ...]:
        """All plots, in the order of the page."""
        return tuple(
            block
            for section in self.sections
            for block in section.blocks
            if isinstance(block, Figure)
        )
