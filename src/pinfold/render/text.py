"""A plan as text: map, legend, pods and summary, for terminals of any width and for pipes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pinfold.render.boxes import Cell, CellState
from pinfold.render.node_map import NodeMap, Owner
from pinfold.render.numa_panel import numa_lines
from pinfold.render.palette import cell_paint, owner_paint, owner_symbol, state_symbol
from pinfold.render.plan_view import (
    ContainerRow,
    PlanView,
    PodRow,
    ResizeRow,
    headline,
    resizes_headline,
    state_counts,
    summary_facts,
)
from pinfold.render.terminal import (
    Line,
    Span,
    Style,
    cell_width,
    clean,
    clip,
    line_width,
    pad,
    pad_line,
    print_lines,
    wrap,
)
from pinfold.render.text_map import map_lines

_NARROW: Final = 64
"""Below this width a pod's containers stand in lines of their own."""

_TIED: Final = "\N{NO-BREAK SPACE}"

_STACKED: Final = 40
"""Below this width values stand below their names."""


def render_plan(view: PlanView, style: Style) -> str:
    """The whole plan, ending in a newline."""
    lines = [*title_lines(view.title, view.subtitle, style), []]
    lines += [*map_lines(view.node_map, style), []]
    if legend := list(legend_lines(view.node_map, style)):
        lines += [*legend, []]
    if view.numa:
        lines += [*numa_lines(view.numa, style), []]
    if view.pods:
        lines += [*pod_lines(view, style), []]
    if view.resizes:
        lines += [*_resize_lines(view, style), []]
    if facts := list(summary_facts(view)):
        lines += [*summary_lines(facts, style), []]
    if view.notes:
        lines += [*note_lines(view.notes, style), []]
    lines.pop()
    return print_lines(lines, style)


def title_lines(title: str, subtitle: str, style: Style) -> Iterator[Line]:
    """What this is, in one or more lines."""
    for text in wrap(clean(title), style.width):
        yield [(text, "bold")]
    if subtitle:
        for text in wrap(clean(subtitle), style.width):
            yield [(text, "dim")]


def legend_lines(node_map: NodeMap, style: Style, *, owners: bool = False) -> Iterator[Line]:
    """What the symbols mean, with the number of CPUs; ``owners`` lists them too."""
    items: list[Line] = []
    counts = state_counts(node_map)
    for state, count in counts.items() if set(counts) != {CellState.ONLINE} else ():
        if state is CellState.EXCLUSIVE:
            continue
        items.append([*state_item(node_map, state, style), (f" {count}", "dim")])
    if owners:
        for owner in node_map.owners.values():
            label = clip(clean(owner.label), style.width - 5)
            items.append([swatch(owner, style), (f" {label}", "")])
    yield from packed_items(items, style)


def state_item(node_map: NodeMap, state: CellState, style: Style) -> Line:
    """A state of a legend: its symbol and its name."""
    symbol = state_symbol(state, ascii_only=style.ascii_only)
    return [(f" {symbol} ", cell_paint(node_map, Cell(0, state))), (f" {state.value}", "")]


def packed_items(items: Iterable[Line], style: Style) -> Iterator[Line]:
    """Items of a legend side by side, in as many lines as the width needs."""
    line: Line = []
    for item in items:
        if line and line_width(line) + 3 + line_width(item) > style.width:
            yield line
            line = []
        line = [*line, ("   ", ""), *item] if line else item
    if line:
        yield line


def swatch(owner: Owner, style: Style) -> Span:
    """An owner's symbol on its colour."""
    symbol = owner_symbol(owner.index, ascii_only=style.ascii_only)
    return f" {symbol} ", owner_paint(owner.painted)


def pod_lines(view: PlanView, style: Style) -> Iterator[Line]:
    """The pods in admission order: their CPUs, or why they were refused."""
    head: Line = [("Pods", "bold"), (f"  {headline(view)}", "dim")]
    yield head
    if style.width < _NARROW:
        for pod in view.pods:
            yield from _narrow_pod(pod, view.node_map, style)
        return
    names = [[clean(part) for part in (pod.full_name, pod.qos)] for pod in view.pods]
    containers = [clean(_container_name(c)) for pod in view.pods for c in pod.containers]
    qos = max((cell_width(name[1]) for name in names), default=0)
    room = style.width - 4 - qos - 2 - 2 - 24
    longest = max((cell_width(name) for name in containers), default=0)
    longest_pod = max(cell_width(name[0]) for name in names)
    # What short names of pods leave is the containers'.
    container = min(longest, max(room * 2 // 5, room - longest_pod, 8))
    pod_width = min(longest_pod, max(room - container, 12))
    columns = (pod_width, container, qos)
    for pod in view.pods:
        yield from _wide_pod(pod, view.node_map, style, columns)


def _wide_pod(
    pod: PodRow, node_map: NodeMap, style: Style, columns: tuple[int, int, int]
) -> Iterator[Line]:
    pod_width, container_width, qos_width = columns
    # A long name runs on into the lines of its containers instead of being cut.
    names = wrap(clean(pod.full_name), pod_width, after="/-.")
    right: list[Line] = []
    room = style.width - 2 - pod_width - 2
    if pod.has_trouble:
        right = _refusal(pod, room)
    for whole in () if pod.has_trouble else pod.whole:
        right.extend([(text, "dim")] for text in wrap(clean(whole), room, after=",/"))
    for container in () if pod.has_trouble else pod.containers:
        called = _container_names(container, container_width)
        rest = room - container_width - qos_width - 4
        cpus = list(_container_cpus(container, node_map, style, rest))
        for at in range(max(len(called), len(cpus))):
            head: Line = [
                (pad(called[at] if at < len(called) else "", container_width), ""),
                ("  ", ""),
                (pad("" if at else clean(pod.qos), qos_width), "dim"),
                ("  ", ""),
            ]
            right.append([*head, *(cpus[at] if at < len(cpus) else ())])
        right.extend(_extra_lines(container, container_width + 2, room))
    if not right:
        right = [[("no containers", "dim")]]
    for at in range(max(len(names), len(right))):
        name = pad(names[at] if at < len(names) else "", pod_width)
        mark = _mark(pod) if at == 0 else (" ", "")
        tail = right[at] if at < len(right) else []
        yield [mark, (" ", ""), (name, "bad" if pod.has_trouble else ""), ("  ", ""), *tail]


def _narrow_pod(pod: PodRow, node_map: NodeMap, style: Style) -> Iterator[Line]:
    room = style.width - 2
    for at, text in enumerate(wrap(clean(pod.full_name), room, after="/-.")):
        mark = _mark(pod) if at == 0 else (" ", "")
        yield [mark, (" ", ""), (text, "bad" if pod.has_trouble else "bold")]
    if pod.has_trouble:
        for line in _refusal(pod, room):
            yield [("  ", ""), *line]
        return
    for whole in pod.whole:
        for text in wrap(clean(whole), room, after=",/"):
            yield [("  ", ""), (text, "dim")]
    for container in pod.containers:
        *called, last = _container_names(container, room)
        for text in called:
            yield [("  ", ""), (text, "")]
        qos = clean(pod.qos)
        if cell_width(last) + 2 + cell_width(qos) <= room:
            yield [("  ", ""), (last, ""), (f"  {qos}", "dim")]
        else:
            yield [("  ", ""), (last, "")]
            yield [("    ", ""), (qos, "dim")]
        for line in _container_cpus(container, node_map, style, room - 2):
            yield [("    ", ""), *line]
        yield from _extra_lines(container, 4, style.width)


def _extra_lines(container: ContainerRow, left: int, width: int) -> Iterator[Line]:
    """What it has beside CPUs, ``left`` columns from the edge."""
    for extra in container.extras:
        for text in wrap(clean(extra), width - left, after=",/"):
            yield [(" " * left, ""), (text, "dim")]


def _mark(pod: PodRow) -> Span:
    return ("✗", "bad") if pod.failed or not pod.admitted else ("✓", "good")


def _refusal(pod: PodRow, room: int) -> list[Line]:
    lines: list[Line] = [[(text, "bad")] for text in wrap(clean(pod.reason or "Rejected"), room)]
    message = wrap(clean(pod.message), room, after="/") if pod.message else []
    lines.extend([(text, "")] for text in message)
    return lines


def _container_name(container: ContainerRow) -> str:
    return f"{container.name} ({container.kind})" if container.kind else container.name


def _container_names(container: ContainerRow, width: int) -> list[str]:
    """The name and how it is doing in lines: ``exit 12`` stays together."""
    kind = clean(container.kind).replace(" ", _TIED).replace(f",{_TIED}", ", ")
    whole = clean(container.name) + (f" ({kind})" if kind else "")
    return [text.replace(_TIED, " ") for text in wrap(whole, width)]


def _container_cpus(
    container: ContainerRow, node_map: NodeMap, style: Style, room: int
) -> Iterator[Line]:
    owner = node_map.owners.get(container.owner or "")
    if owner is None:
        symbol = state_symbol(CellState.SHARED, ascii_only=style.ascii_only)
        yield [
            (f" {symbol} ", cell_paint(node_map, Cell(0, CellState.SHARED))),
            (" shared pool", "dim"),
        ]
        return
    count = len(container.cpus)
    remark = f"{count} CPU{'s' * (count != 1)}" + (
        f", {container.remark}" if container.remark else ""
    )
    texts, fits = wrap(str(container.cpus), room - 4, after=","), True
    for at, text in enumerate(texts):
        mark: Span = swatch(owner, style) if at == 0 else ("   ", "")
        line: Line = [mark, (f" {text}", "")]
        fits = line_width(line) + 2 + len(remark) <= room
        if at == len(texts) - 1 and fits:
            line.append((f"  {remark}", "dim"))
        yield line
    if container.remark and not fits:
        # With whom these are shared is not left out as a count is.
        for text in wrap(container.remark, room - 4):
            yield [("    ", ""), (text, "dim")]


def _resize_lines(view: PlanView, style: Style) -> Iterator[Line]:
    """The resizes in their order: the CPUs before and after, or why it cannot be done."""
    yield [("Resizes", "bold")]
    for text in wrap(resizes_headline(view), style.width - 2):
        yield [("  ", ""), (text, "dim")]
    for row in view.resizes:
        mark, color = ("✓", "good") if row.feasible else ("✗", "bad")
        names = wrap(clean(f"{row.name}  {row.change}"), style.width - 2, after="/-.")
        for at, text in enumerate(names):
            yield [(mark if at == 0 else " ", color), (" ", ""), (text, "" if at else "bold")]
        yield from _resize_outcome(row, view.node_map.owners.get(row.owner or ""), style)


def _resize_outcome(row: ResizeRow, owner: Owner | None, style: Style) -> Iterator[Line]:
    if not row.feasible:
        for text in wrap(clean(row.reason or ""), style.width - 2):
            yield [("  ", ""), (text, "bad")]
        for text in wrap(clean(row.message or ""), style.width - 2, after="/"):
            yield [("  ", ""), (text, "")]
        return
    for at, text in enumerate(wrap(row.outcome, style.width - 6, after=",")):
        mark: Span = ("   ", "") if at or owner is None else swatch(owner, style)
        yield [("  ", ""), mark, (f" {text}", "")]


def summary_lines(facts: Sequence[tuple[str, str, str]], style: Style) -> Iterator[Line]:
    """Facts as ``name  value  remark``, values wrapped under themselves."""
    widest = max((cell_width(name) for name, _, _ in facts), default=0)
    if style.width < _STACKED or widest > style.width // 2:
        for name, value, remark in facts:
            for text in wrap(clean(name), style.width):
                yield [(text, "key")]
            for text in wrap(clean(value), style.width - 2, after=","):
                yield [("  ", ""), (text, "")]
            for text in wrap(clean(remark), style.width - 2) if remark else ():
                yield [("  ", ""), (text, "dim")]
        return
    for name, value, remark in facts:
        room = style.width - widest - 2
        lines: list[Line] = [[(text, "")] for text in wrap(clean(value), room, after=",")]
        if remark and line_width(lines[-1]) + 2 + cell_width(remark) <= room:
            lines[-1].append((f"  {remark}", "dim"))
        elif remark:
            lines += [[(text, "dim")] for text in wrap(clean(remark), room)]
        for at, line in enumerate(lines):
            yield [(pad(name if at == 0 else "", widest), "key"), ("  ", ""), *line]


def note_lines(notes: Iterable[str], style: Style) -> Iterator[Line]:
    """Warnings, each marked and wrapped."""
    for note in notes:
        for at, text in enumerate(wrap(clean(note), style.width - 2)):
            yield [("• " if at == 0 else "  ", "warn"), (text, "")]


def table_lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], style: Style, *, right: str = ""
) -> Iterator[Line]:
    """A plain table; the last column wraps.  ``right`` has an ``r`` for right-aligned columns."""
    columns = list(zip(head, *rows, strict=True))
    widths = [max(cell_width(clean(text)) for text in column) for column in columns]
    room = max(style.width - sum(widths[:-1]) - 2 * (len(widths) - 1), 8)
    aligned = right.ljust(len(widths))
    for number, row in enumerate([head, *rows]):
        last = wrap(clean(row[-1]), room, after=",")
        for at, tail in enumerate(last):
            line: Line = []
            for text, width, side in zip(row[:-1], widths, aligned, strict=False):
                shown = clean(text) if at == 0 else ""
                gap = " " * (width - cell_width(shown))
                line.append((f"{gap}{shown}  " if side == "r" else f"{shown}{gap}  ", ""))
            tail_gap = (
                " " * (min(widths[-1], room) - cell_width(tail)) if aligned[-1] == "r" else ""
            )
            line.append((tail_gap + tail, ""))
            yield [(text, "dim") for text, _ in line] if number == 0 else pad_line(line, 0)
