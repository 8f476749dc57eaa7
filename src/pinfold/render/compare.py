"""Two plans of the same pods, side by side: what changed, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.boxes import CellState
from pinfold.render.node_map import NodeMap, Owner, counted, mute
from pinfold.render.numa_panel import draw_numa, numa_lines
from pinfold.render.palette import owner_symbol
from pinfold.render.plan_view import (
    PlanView,
    PodRow,
    ResizeRow,
    headline,
    summary_facts,
)
from pinfold.render.pods.alike import PodEntry, shape, together
from pinfold.render.sides import SIDE_GAP, SidesDrawing, side_lines
from pinfold.render.svg import MARGIN, draw_facts, draw_legend, draw_title
from pinfold.render.svg_canvas import Canvas, text_width, wrap_text
from pinfold.render.terminal import (
    Line,
    Style,
    cell_width,
    clean,
    pad,
    print_lines,
    wrap,
)
from pinfold.render.text import note_lines, packed_items, state_item, title_lines

_TOTALS: Final = ("Shared pool", "Reserved", "Allocatable", "Exclusive", "Cores")
"""What is told of both sides where it is alike, too."""


class CompareView(Struct, frozen=True):
    """Two plans; the names are short, such as the two file names of the configurations.

    ``refused`` are the words with which the second kubelet does not start, ``differences`` what it
    has or does otherwise than the first.
    """

    title: str
    before_name: str
    before: PlanView
    after_name: str
    after: PlanView
    refused: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()


class PodChange(Struct, frozen=True):
    """A pod whose admission or CPUs differ; each side is one line for each container.

    ``count`` is how many pods it is, where replicas have changed alike.
    """

    name: str
    before: tuple[str, ...]
    after: tuple[str, ...]
    count: int = 1


def align_owners(
    before: Iterable[Owner], after: Iterable[Owner]
) -> tuple[tuple[Owner, ...], tuple[Owner, ...]]:
    """Give owners with equal keys the same colour and symbol on both sides."""
    sides = (tuple(before), tuple(after))
    index: dict[str, int] = {}
    colors: dict[str, int] = {}
    for owner in (*sides[0], *sides[1]):
        index.setdefault(owner.key, len(index))
        colors.setdefault(owner.whole, len(colors))
    first, second = (
        tuple(replace(o, index=index[o.key], color=colors[o.whole]) for o in side) for side in sides
    )
    return first, second


def changed_cpus(view: CompareView) -> CPUSet:
    """CPUs that have another owner or another state, or are on one side only."""
    sides = [
        {cell.cpu: (cell.owner, cell.state) for cell in side.node_map.cells()}
        for side in (view.before, view.after)
    ]
    return CPUSet(
        cpu for cpu in sides[0].keys() | sides[1].keys() if sides[0].get(cpu) != sides[1].get(cpu)
    )


def pod_changes(
    view: CompareView, *, ascii_only: bool = False
) -> tuple[tuple[PodChange, ...], int]:
    """What changed, in admission order, and the number of pods that did not.

    Replicas that changed alike are one change, as they are one row of a plan.
    """
    before = {pod.full_name: pod for pod in view.before.pods}
    after = {pod.full_name: pod for pod in view.after.pods}
    first = partial(_outcome, node_map=view.before.node_map, ascii_only=ascii_only)
    second = partial(_outcome, node_map=view.after.node_map, ascii_only=ascii_only)
    pairs = [
        pair
        for pair in ((before.get(name), after.get(name)) for name in {**before, **after})
        if first(_entry(pair[:1])) != second(_entry(pair[1:]))
    ]
    shapes = [tuple(pod and shape(pod) for pod in pair) for pair in pairs]
    changes = []
    for row in together(shapes, each=view.after.each):
        one, two = (_entry(pairs[at][side] for at in row) for side in (0, 1))
        name = (one or two or PodEntry(())).name
        changes.append(PodChange(name, first(one), second(two), len(row)))
    return tuple(changes), len({**before, **after}) - len(pairs)


def _entry(pods: Iterable[PodRow | None]) -> PodEntry | None:
    """A row of those that there are; of replicas that are alike, either all are there or none."""
    there = tuple(pod for pod in pods if pod is not None)
    return PodEntry(there) if there else None


def resize_changes(view: CompareView) -> tuple[PodChange, ...]:
    """The resizes that come out otherwise, in their order."""
    rows = zip(view.before.resizes, view.after.resizes, strict=True)
    return tuple(
        PodChange(f"{one.name}, resized to {one.cpus}", (_resized(one),), (_resized(two),))
        for one, two in rows
        if _resized(one) != _resized(two)
    )


def _resized(row: ResizeRow) -> str:
    return row.outcome if row.feasible else f"✗ {row.reason}: {row.message}"


def told_changes(view: CompareView) -> Iterator[str]:
    """All that is otherwise, a line each: how many pods, the sums, and of each pod what differs."""
    yield from _refusals(view)
    changes, unchanged = pod_changes(view)
    resizes = resize_changes(view)
    yield _counted(changes, unchanged, resizes)
    for name, before, after in _facts(view):
        if before != after:
            yield f"{name}: {before} → {after}"
    for change in (*changes, *resizes):
        blocks = (_blocks(change.before), _blocks(change.after))
        before, after = (
            "; ".join(one for one in mine if one not in others) or "nothing"
            for mine, others in (blocks, blocks[::-1])
        )
        yield f"{change.name}: {before} → {after}"


def _blocks(side: Iterable[str]) -> tuple[str, ...]:
    """A text for each container, with the lines below it that tell what else it has."""
    return tuple("\n".join(side).replace("\n  ", ", ").split("\n"))


def render_compare(view: CompareView, style: Style) -> str:
    """The comparison as text, ending in a newline."""
    changes, unchanged = pod_changes(view, ascii_only=style.ascii_only)
    resizes = resize_changes(view)
    pods = _counted(changes, unchanged, resizes)
    lines: list[Line] = [*title_lines(view.title, "", style)]
    for told in (*_policies(view), pods):
        lines += [[(text, "dim")] for text in wrap(clean(told), style.width)]
    lines.append([])
    for refusal in _refusals(view):
        lines += [[(text, "bad")] for text in wrap(clean(refusal), style.width)]
    lines += [[]] * bool(view.refused)
    lines += _change_lines(view, (*changes, *resizes), style)
    changed = changed_cpus(view)
    if changed:
        lines += [*_maps(view, changed, style), []]
        lines += [*_legend(view, changed, style), []]
    for name, side in _numa_sides(view):
        lines += [*numa_lines(side.numa, style, of=name), []]
    lines += _fact_lines(view, style)
    if view.differences:
        head = f"{clean(view.after_name)} after {clean(view.before_name)}"
        lines += [[]] * bool(lines[-1])
        lines += [[(head, "bold")], *note_lines(view.differences, style)]
    if notes := dict.fromkeys((*view.before.notes, *view.after.notes)):
        lines += [[], *note_lines(notes, style)]
    return print_lines(lines, style)


def _policies(view: CompareView) -> Iterator[str]:
    """The policies of both sides, as the header of a plan has them."""
    for name, side in ((view.before_name, view.before), (view.after_name, view.after)):
        if side.subtitle:
            yield f"{name}: {side.subtitle}"


def _refusals(view: CompareView) -> Iterator[str]:
    for refusal in view.refused:
        yield f"✗ {view.after_name} does not start: {refusal} (left out here)"


def _legend(view: CompareView, changed: CPUSet, style: Style) -> Iterator[Line]:
    """What the maps draw: the states of the CPUs that changed, on either side."""
    cells = [cell for side in (view.before, view.after) for cell in side.node_map.cells()]
    drawn = {cell.state for cell in cells if cell.cpu in changed}
    items = [
        [
            *state_item(view.after.node_map, state, style),
            (f" {counted(state, (view.before.node_map, view.after.node_map))}", "dim"),
        ]
        for state in CellState
        if state in drawn and state is not CellState.EXCLUSIVE
    ]
    if any(cell.cpu not in changed for cell in cells):
        items.append([(" blank ", "dim"), (" unchanged", "")])
    return packed_items(items, style)


def _counted(changes: tuple[PodChange, ...], unchanged: int, resizes: tuple[PodChange, ...]) -> str:
    changed = sum(change.count for change in changes)
    text = f"{changed} pod{'s' * (changed != 1)} changed, {unchanged} unchanged"
    if not resizes:
        return text
    return f"{text}; {len(resizes)} resize{'s' * (len(resizes) != 1)} otherwise"


def _outcome(row: PodEntry | None, *, node_map: NodeMap, ascii_only: bool) -> tuple[str, ...]:
    if row is None:
        return ("not in this plan",)
    if not row.first.admitted:
        return (f"✗ {row.first.reason}: {row.first.message}",)
    lines = list(row.whole)
    for container in row.containers:
        owners = [node_map.owners.get(one.owner or "") for one in container.each]
        marks = [
            f"[{owner_symbol(owner.index, ascii_only=ascii_only)}]" for owner in owners if owner
        ]
        # The shared pool itself may differ; a container in it has not moved by that.
        cpus = "shared pool"
        if len(marks) > 1:
            cpus = f"{marks[0]}…{marks[-1]} {container.cpus}  {container.count}"
        elif marks:
            cpus = f"{marks[0]} {container.cpus}"
        if marks and container.first.remark:
            cpus += f" {container.first.remark}"
        lines.append(f"{container.first.name}  {cpus}")
        lines += [f"  {extra}" for extra in container.extras]
    return tuple(lines) or ("no containers",)


def _change_lines(
    view: CompareView, changes: tuple[PodChange, ...], style: Style
) -> Iterator[Line]:
    names = (clean(view.before_name), clean(view.after_name))
    left = min(max(map(cell_width, names)), style.width // 3)
    for change in changes:
        for text in wrap(clean(change.name), style.width, after="/-."):
            yield [(text, "bold")]
        for name, side, mark in zip(names, (change.before, change.after), ("-", "+"), strict=True):
            color = "bad" if side[0].startswith("✗") else ("dim" if mark == "-" else "good")
            first = True
            for outcome in side:
                for text in wrap(clean(outcome), style.width - left - 6, after=","):
                    yield [
                        (f"  {mark} " if first else "    ", color),
                        (pad(name if first else "", left), "dim"),
                        ("  ", ""),
                        (text, color),
                    ]
                    first = False
    if changes:
        yield []


def _maps(view: CompareView, changed: CPUSet, style: Style) -> list[Line]:
    return side_lines(_sides(view, changed), style)


def _sides(view: CompareView, changed: CPUSet) -> list[tuple[str, NodeMap]]:
    return [
        (view.before_name, mute(view.before.node_map, changed)),
        (view.after_name, mute(view.after.node_map, changed)),
    ]


def _facts(view: CompareView) -> Iterator[tuple[str, str, str]]:
    yield "Pods", headline(view.before), headline(view.after)
    sides = (_told(view.before), _told(view.after))
    for name in {**sides[0], **sides[1]}:
        one, two = (side.get(name, ()) for side in sides)
        if one == two:
            if name in _TOTALS:
                yield name, "; ".join(one), "; ".join(two)
        else:
            gone, new = (tuple(t for t in a if t not in b) for a, b in ((one, two), (two, one)))
            yield name, "; ".join(gone) or "nothing", "; ".join(new) or "nothing"


def _numa_sides(view: CompareView) -> list[tuple[str, PlanView]]:
    """The sides whose NUMA nodes are told, with their names; one for both where they are alike."""
    sides = [(view.before_name, view.before), (view.after_name, view.after)]
    if view.before.numa == view.after.numa:
        sides = [("both", view.after)]
    return [(name, side) for name, side in sides if side.numa]


def _told(view: PlanView) -> dict[str, tuple[str, ...]]:
    """The lines below the pods by their names; those without one belong to the one before."""
    told: dict[str, tuple[str, ...]] = {}
    last = ""
    for name, value, remark in summary_facts(view):
        last = name or last
        told[last] = (*told.get(last, ()), f"{value}  ({remark})" if remark else value)
    return told


def _fact_lines(view: CompareView, style: Style) -> Iterator[Line]:
    for name, before, after in _facts(view):
        colors = {" ": "", "-": "dim", "+": "good"}
        told = ((" ", after),) if before == after else (("-", before), ("+", after))
        for at, (mark, text) in enumerate(told):
            for number, part in enumerate(wrap(text, style.width - 15, after=",")):
                head = name if at == number == 0 else ""
                color = colors[mark]
                sign = mark if number == 0 else " "
                yield [(pad(head, 11), "key"), (f"  {sign} ", color), (part, color)]


def render_compare_svg(view: CompareView) -> str:
    """The comparison as an SVG document: both maps, and the pods that changed."""
    changes, unchanged = pod_changes(view)
    resizes = resize_changes(view)
    told = _counted(changes, unchanged, resizes)
    changed = changed_cpus(view)
    drawing = SidesDrawing(_sides(view, changed))
    width = drawing.width
    canvas = Canvas()
    y = draw_title(canvas, view.title, "\n".join((*_policies(view), told)), width)
    maps = [view.before.node_map, view.after.node_map]
    y = draw_legend(canvas, maps, y, width, muted=bool(changed)) + 12
    y = drawing.draw(canvas, MARGIN, y) + 30
    y = _draw_numa_sides(canvas, view, drawing, y)
    left = min(max(text_width(n, 12) for n in (view.before_name, view.after_name)), 200) + 34
    for refusal in _refusals(view):
        for text in wrap_text(refusal, 12, width):
            canvas.text((MARGIN, y), text, 12, color="bad")
            y += 17
        y += 6
    for change in (*changes, *resizes):
        for text in wrap_text(change.name, 13.5, width):
            canvas.text((MARGIN, y), text, 13.5, bold=True)
            y += 19
        for name, side in ((view.before_name, change.before), (view.after_name, change.after)):
            head = wrap_text(name, 12, left - 28)
            bad = side[0].startswith("✗")
            texts = [part for text in side for part in wrap_text(text, 12, width - left, mono=True)]
            for at in range(max(len(head), len(texts))):
                if at < len(head):
                    canvas.text((MARGIN + 14, y), head[at], 12, color="dim")
                if at < len(texts):
                    place = (MARGIN + left, y)
                    canvas.text(place, texts[at], 12, mono=True, color="bad" if bad else "ink")
                y += 17
        y += 10
    facts = [(name, f"{old} → {new}" if old != new else new, "") for name, old, new in _facts(view)]
    y = draw_facts(canvas, facts, y, width)
    if view.differences:
        y += 20
        for text in wrap_text(f"{view.after_name} after {view.before_name}", 15, width):
            canvas.text((MARGIN, y), text, 15, bold=True)
            y += 22
    notes = dict.fromkeys((*view.before.notes, *view.after.notes))
    for note in (*view.differences, *notes):
        for text in wrap_text(f"• {note}", 12, width):
            canvas.text((MARGIN, y), text, 12, color="dim")
            y += 19
    about = f"{told}. {'. '.join(_policies(view))}. CPUs that changed: {changed or 'none'}."
    return canvas.document(width + 2 * MARGIN, y + MARGIN - 12, view.title, about)


def _draw_numa_sides(canvas: Canvas, view: CompareView, drawing: SidesDrawing, y: float) -> float:
    """The NUMA nodes of both sides, each below its map; returns where to go on."""
    sides = _numa_sides(view)
    if not sides:
        return y
    beside = drawing.beside and len(sides) == len(drawing.sides)
    each = drawing.sides[0][1].width if beside else drawing.width
    x, low = float(MARGIN), y
    for name, side in sides:
        low = max(low, draw_numa(canvas, side.numa, (x, y + 6, each), of=name))
        x, y = (x + each + SIDE_GAP, y) if beside else (x, low)
    return low + 10
