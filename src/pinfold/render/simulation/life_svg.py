"""The life of a node as one picture: how full it was all the time, and its map at some moments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pinfold.render.palette import owner_symbol
from pinfold.render.simulation.life import LifeView, Moment, clock, columns_of, shares
from pinfold.render.svg import MARGIN, draw_legend, draw_notes, draw_title
from pinfold.render.svg_canvas import Canvas, owner_look, text_width, wrap_text
from pinfold.render.svg_map import MapDrawing

_HEIGHT: Final = 56.0
"""Of the strip."""
_STEP: Final = 3.0
"""Pixels of the strip that are one bar."""
_LINE: Final = 18


def render_life_svg(view: LifeView) -> str:
    """The picture as an SVG document."""
    drawings = [MapDrawing(moment.node_map) for moment in view.moments]
    width = max((drawing.width for drawing in drawings), default=640.0)
    canvas = Canvas()
    y = draw_title(canvas, view.title, view.subtitle, width)
    y = _draw_strip(canvas, view, y + 8, width)
    for number, (moment, drawing) in enumerate(zip(view.moments, drawings, strict=True), 1):
        y = _draw_moment(canvas, moment, number, y + 30, width)
        y = draw_legend(canvas, [moment.node_map], y, width)
        drawing.draw(canvas, MARGIN, y)
        y = draw_notes(canvas, moment.node_map, y + drawing.height, width)
        y = _draw_owners(canvas, moment, y + 10, width)
    return canvas.document(width + 2 * MARGIN, y + MARGIN, view.title, _described(view.moments))


def _draw_strip(canvas: Canvas, view: LifeView, y: float, width: float) -> float:
    """How many CPUs were owned; below it the refusals and the numbers of the moments."""
    text = f"{view.measured} of {view.cpus:g} CPUs, from 0 to {clock(view.until)}"
    canvas.text((MARGIN, y), text, 12, color="dim")
    y += 8
    canvas.rect((MARGIN, y, width, _HEIGHT), "box0", stroke="edge", radius=3)
    for place, share in enumerate(shares(view, int(width / _STEP))):
        high = share * _HEIGHT
        if high:
            box = (MARGIN + place * _STEP, y + _HEIGHT - high, _STEP, high)
            canvas.rect(box, "dim")
    y += _HEIGHT
    if view.refusals:
        for place in sorted(set(columns_of(view.refusals, view, int(width / _STEP)))):
            canvas.rect((MARGIN + place * _STEP, y + 3, _STEP - 1, 7), "bad")
        y += 10
    taken = 0.0
    for number, moment in enumerate(view.moments, 1):
        x = MARGIN + width * (moment.at / (view.until or 1.0))
        text = str(number)
        x = min(max(x, taken), MARGIN + width - text_width(text, 13, bold=True))
        canvas.text((x, y + 16), text, 13, bold=True)
        taken = x + text_width(text, 13, bold=True) + 6
    told = "red: a pod was refused; " * bool(view.refusals) + "numbers are the moments below"
    canvas.text((MARGIN, y + 34), told, 12, color="dim")
    return y + 40


def _draw_moment(canvas: Canvas, moment: Moment, number: int, y: float, width: float) -> float:
    for text in wrap_text(moment.since, 12.5, width):
        canvas.text((MARGIN, y), text, 12.5, color="dim")
        y += _LINE
    y += 12
    for text in wrap_text(f"{number} · {clock(moment.at)} · {moment.title}", 15, width):
        canvas.text((MARGIN, y), text, 15, bold=True)
        y += 20
    for fact in moment.facts:
        for text in wrap_text(fact, 12.5, width):
            canvas.text((MARGIN, y), text, 12.5)
            y += _LINE
    return y


def _draw_owners(canvas: Canvas, moment: Moment, y: float, width: float) -> float:
    """Whose the symbols are."""
    x = float(MARGIN)
    for owner in moment.node_map.owners.values():
        label = f"{owner.label}: {owner.cpus}"
        long = 20 + text_width(label, 12) + 18
        if x > MARGIN and x + long > MARGIN + width:
            x, y = float(MARGIN), y + _LINE + 2
        canvas.cell((x, y), 14, owner_look(owner), (label, owner_symbol(owner.index), ""))
        canvas.text((x + 20, y + 11.5), label, 12)
        x += long
    return y + 20


def _described(moments: Sequence[Moment]) -> str:
    """The picture for who does not see it."""
    return " ".join(
        f"{number}: at {clock(moment.at)}, {moment.title}. {'. '.join(moment.facts)}."
        for number, moment in enumerate(moments, 1)
    )
