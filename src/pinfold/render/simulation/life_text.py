"""The life of a node as text: a strip of all its time, and below it one map after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pinfold.render.simulation.life import LifeView, Moment, clock, columns_of, shares
from pinfold.render.terminal import Line, Style, cell_width, clean, print_lines, wrap
from pinfold.render.text import legend_lines, title_lines
from pinfold.render.text_map import map_lines

_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = ".:-=+*%@"
_WIDEST: Final = 120
_MAP_LINES: Final = 24


def render_life(view: LifeView, style: Style) -> str:
    """The text, ending in a newline."""
    lines: list[Line] = [*title_lines(view.title, view.subtitle, style), []]
    lines += _strip(view, style)
    for number, moment in enumerate(view.moments, 1):
        lines += [[], *_moment(moment, number, style)]
    return print_lines(lines, style)


def _strip(view: LifeView, style: Style) -> Iterator[Line]:
    columns = min(style.width - 1, _WIDEST)
    for text in wrap(
        f"{view.measured} of {view.cpus:g} CPUs, from 0 to {clock(view.until)}", style.width
    ):
        yield [(text, "dim")]
    bars = _ASCII_BARS if style.ascii_only else _BARS
    drawn = [
        bars[round(share * (len(bars) - 1))] if share else " " for share in shares(view, columns)
    ]
    yield [("".join(drawn).rstrip(), "key")]
    if view.refusals:
        marks = [" "] * columns
        for column in columns_of(view.refusals, view, columns):
            marks[column] = "x" if style.ascii_only else "✗"
        yield [("".join(marks).rstrip(), "bad")]
    row = [" "] * columns
    for number, column in enumerate(
        columns_of([moment.at for moment in view.moments], view, columns), 1
    ):
        # A number beside the last one where its own place is taken.
        text = str(number)
        start = min(column, columns - len(text))
        taken = len("".join(row).rstrip())
        start = max(start, taken + 1 if taken else 0)
        if start + len(text) <= columns:
            row[start : start + len(text)] = text
    yield [("".join(row).rstrip(), "bold")]
    if view.refusals:
        mark = "x" if style.ascii_only else "✗"
        told = f"{mark} a pod was refused; numbers are the moments below"
    else:
        told = "numbers are the moments below"
    for text in wrap(told, style.width):
        yield [(text, "dim")]


def _moment(moment: Moment, number: int, style: Style) -> Iterator[Line]:
    if moment.since:
        for text in wrap(clean(moment.since), style.width - 2):
            yield [("│ ", "frame"), (text, "dim")]
        yield []
    head = f"{number}  {clock(moment.at)}  "
    titles = wrap(clean(moment.title), max(style.width - cell_width(head), 12))
    for at, text in enumerate(titles or [""]):
        yield [(head if at == 0 else " " * cell_width(head), "key"), (text, "bold")]
    for fact in moment.facts:
        for text in wrap(clean(fact), style.width - 3, after=","):
            yield [("   ", ""), (text, "")]
    yield from map_lines(moment.node_map, style, max_lines=_MAP_LINES)
    yield from legend_lines(moment.node_map, style, owners=True)
