"""A plan of moves as text and as a picture: before and after side by side, steps, and price."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MovePlan, MovingOwner
from pinfold.render.move_words import (
    headline,
    made,
    moving,
    owner_facts,
    owner_name,
    plan_facts,
    staying,
    step_texts,
)
from pinfold.render.node_map import NodeMap, Owner, mark
from pinfold.render.palette import owner_symbol
from pinfold.render.sides import SidesDrawing, side_lines
from pinfold.render.svg import MARGIN, draw_facts, draw_legend, draw_title
from pinfold.render.svg_canvas import Canvas, owner_look, wrap_text
from pinfold.render.terminal import Line, Style, clean, print_lines, wrap
from pinfold.render.text import legend_lines, note_lines, summary_lines, title_lines
from pinfold.render.text_map import swatch

_LINE: Final = 19
_SIDES: Final = ("before", "after")


class MovesView(Struct, frozen=True):
    """A plan of moves on a node.

    ``maps`` are the node before and after; those who move have the key ``namespace/name/container``
    in them.  ``remarks`` stand below everything.
    """

    title: str
    plan: MovePlan
    maps: tuple[NodeMap, NodeMap]
    subtitle: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def marked(self) -> tuple[NodeMap, NodeMap]:
        """The maps, with the CPUs marked that their owners leave, and those that they get."""
        left, got = CPUSet(), CPUSet()
        for owner in moving(self.plan):
            before, after = CPUSet.parse(owner.before), CPUSet.parse(owner.after)
            left, got = left | (before - after), got | (after - before)
        return mark(self.maps[0], left), mark(self.maps[1], got)


def owner_key(owner: MovingOwner) -> str:
    """In whose colour an owner is drawn."""
    return f"{owner.pod}/{owner.container}"


def placed_afterwards(owners: Iterable[Owner], plan: MovePlan) -> tuple[Owner, ...]:
    """The owners of a map as they are once the plan is carried out."""
    there = {owner_key(owner): CPUSet.parse(owner.after) for owner in plan.owners}
    return tuple(replace(one, cpus=there.get(one.key, one.cpus)) for one in owners)


def render_moves(view: MovesView, style: Style) -> str:
    """The moves as text, ending in a newline."""
    lines: list[Line] = [*title_lines(view.title, view.subtitle, style), []]
    changes = bool(moving(view.plan))
    shown = view.maps if changes else view.maps[:1]
    names = _SIDES if changes else ("as it is",)
    lines += [*side_lines(tuple(zip(names, shown, strict=True)), style), []]
    lines += [*legend_lines(view.maps[1], style), []]
    lines += [[("Moves", "bold")], *_indented([headline(view.plan)], style, "dim")]
    lines += move_lines(view.plan, view.maps[0].owners, style)
    if facts := list(plan_facts(view.plan)):
        lines += [[], *summary_lines(facts, style)]
    if remarks := (*staying(view.plan), *view.remarks):
        lines += [[], *note_lines(remarks, style)]
    return print_lines(lines, style)


def move_lines(plan: MovePlan, owners: Mapping[str, Owner], style: Style) -> Iterator[Line]:
    """Who goes where, and the steps; owners that are drawn have their colours."""
    for owner, change, remark in owner_facts(plan):
        drawn = owners.get(owner_key(owner))
        head: Line = [(" → ", "key")] if drawn is None else [swatch(drawn, style)]
        for at, text in enumerate(wrap(clean(owner_name(owner)), style.width - 4, after="/-.")):
            yield [*(head if at == 0 else [("   ", "")]), (f" {text}", "bold")]
        yield from _indented([change, *filter(None, [remark])], style, left=4)
    if plan.steps:
        yield [("Steps", "bold")]
    for number, step in enumerate(step_texts(plan), 1):
        done = number <= made(plan)
        head_text = f"{number:>3}. "
        for at, text in enumerate(wrap(clean(step), style.width - 5, after=",/")):
            yield [(head_text if at == 0 else " " * 5, "dim"), (text, "dim" if done else "")]


def _indented(
    texts: Iterable[str], style: Style, color: str = "", *, left: int = 2
) -> Iterator[Line]:
    for text in texts:
        for part in wrap(clean(text), style.width - left, after=","):
            yield [(" " * left, ""), (part, color)]


def render_moves_svg(view: MovesView) -> str:
    """The moves as an SVG document."""
    canvas = Canvas()
    changes = moving(view.plan)
    sides = list(zip(_SIDES, view.marked, strict=True)) if changes else [("", view.maps[0])]
    drawn = SidesDrawing(sides)
    width = drawn.width
    y = draw_title(canvas, view.title, view.subtitle, width)
    y = draw_legend(canvas, [view.maps[1]], y, width) + 12
    y = drawn.draw(canvas, MARGIN, y) + 34
    canvas.text((MARGIN, y), "Moves", 15, bold=True)
    about = headline(view.plan)
    about += "; outlined are the CPUs that are left, and those that are got" if changes else ""
    for text in wrap_text(about, 13, width - 64):
        canvas.text((MARGIN + 64, y), text, 13, color="dim")
        y += _LINE
    y = _draw_owners(canvas, view, y + 6, width)
    y = _draw_steps(canvas, view.plan, y, width)
    y = draw_facts(canvas, list(plan_facts(view.plan)), y + 12, width)
    for remark in (*staying(view.plan), *view.remarks):
        for text in wrap_text(f"• {remark}", 12, width):
            canvas.text((MARGIN, y), text, 12, color="dim")
            y += _LINE
    told = "; ".join(f"{owner_name(o)} {change}" for o, change, _ in owner_facts(view.plan))
    description = f"{headline(view.plan)}. {told}".rstrip()
    return canvas.document(width + 2 * MARGIN, y + MARGIN - 12, view.title, description)


def _draw_owners(canvas: Canvas, view: MovesView, y: float, width: float) -> float:
    for owner, change, remark in owner_facts(view.plan):
        drawn = view.maps[0].owners.get(owner_key(owner))
        if drawn is not None:
            texts = (owner_name(owner), owner_symbol(drawn.index), "")
            canvas.cell((MARGIN, y - 11.5), 14, owner_look(drawn), texts)
        for text in wrap_text(owner_name(owner), 13, width - 24):
            canvas.text((MARGIN + 24, y), text, 13, bold=True)
            y += 17
        for text in wrap_text(change, 12, width - 24, mono=True):
            canvas.text((MARGIN + 24, y), text, 12, mono=True)
            y += 17
        for text in wrap_text(remark, 12, width - 24) if remark else ():
            canvas.text((MARGIN + 24, y), text, 12, color="dim")
            y += 17
        y += 5
    return y


def _draw_steps(canvas: Canvas, plan: MovePlan, y: float, width: float) -> float:
    if not plan.steps:
        return y
    y += 16
    canvas.text((MARGIN, y), "Steps", 15, bold=True)
    y += _LINE + 3
    for number, step in enumerate(step_texts(plan), 1):
        color = "dim" if number <= made(plan) else "ink"
        canvas.text((MARGIN + 22, y), f"{number}.", 12, color="dim", anchor="end")
        for text in wrap_text(step, 12, width - 30):
            canvas.text((MARGIN + 30, y), text, 12, color=color)
            y += 17
    return y + 8
