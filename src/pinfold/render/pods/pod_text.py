"""The list of pods as text: aligned columns, or lines below each other where it is narrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from pinfold.render.boxes import Cell, CellState
from pinfold.render.node_map import NodeMap
from pinfold.render.palette import cell_paint, owner_symbol, state_symbol
from pinfold.render.plan_view import PlanView, headline
from pinfold.render.pods.alike import MOST_LINES, ContainerEntry, PodEntry, entries
from pinfold.render.terminal import (
    Line,
    Span,
    Style,
    cell_width,
    clean,
    line_width,
    pad,
    pad_line,
    wrap,
)
from pinfold.render.text_map import swatch

_NARROW: Final = 64
"""Below this width a pod's containers stand in lines of their own."""

_TIED: Final = "\N{NO-BREAK SPACE}"

_HEADED: Final = 8
"""More rows have the names of their columns above them."""

_HEADS: Final = ("pod", "container", "QoS", "CPUs", "besides")

_LONG: Final = 24
"""Longer lists of CPUs do not widen their column."""


class _Columns(Struct, frozen=True):
    """The widths of the columns; ``extras`` is 0 where these stand below."""

    pod: int
    container: int
    qos: int
    mark: int
    cpus: int
    count: int
    extras: int = 0

    @property
    def before_extras(self) -> int:
        """Where what stands beside the CPUs begins, from the containers on, but for its gap."""
        return self.container + self.qos + self.mark + self.cpus + self.count + 7


def pod_lines(view: PlanView, style: Style) -> Iterator[Line]:
    """The pods in admission order: their CPUs, or why they were refused."""
    head: Line = [("Pods", "bold"), (f"  {headline(view)}", "dim")]
    yield head
    rows = entries(view.pods, each=view.each)
    if style.width < _NARROW:
        for row in rows:
            yield from _narrow(row, view.node_map, style)
        return
    columns = _columns(rows, view.node_map, style)
    if len(rows) > _HEADED:
        yield _heads(columns)
    for row in rows:
        yield from _wide(row, view.node_map, style, columns)


def _heads(columns: _Columns) -> Line:
    """The names of the columns, each above its own."""
    pod, container, qos, cpus, besides = _HEADS
    line: Line = [
        (f"  {pad(pod, columns.pod)}  {pad(container, columns.container)}  ", "dim"),
        (f"{pad(qos, columns.qos)}  {' ' * columns.mark} {cpus}", "dim"),
    ]
    if columns.extras < cell_width(besides):
        return line
    return [*pad_line(line, columns.before_extras + columns.pod + 4), ("   ", ""), (besides, "dim")]


def _columns(rows: Sequence[PodEntry], node_map: NodeMap, style: Style) -> _Columns:
    told = [one for row in rows if not row.first.has_trouble for one in row.containers]
    owned = [one for one in told if one.first.owner in node_map.owners]
    qos = max((cell_width(clean(row.first.qos)) for row in rows), default=0)
    marks = [len(_mark_of(one, node_map, style)) for one in told]
    mark = max(marks, default=1) + 2
    room = style.width - 4 - qos - 2 - 2 - 24
    longest = max((cell_width(clean(one.label)) for one in told), default=0)
    longest = max(longest, cell_width(_HEADS[1])) if len(rows) > _HEADED else longest
    longest_pod = max(cell_width(clean(row.name)) for row in rows)
    # What short names of pods leave is the containers'.
    container = min(longest, max(room * 2 // 5, room - longest_pod, 8))
    pod = min(longest_pod, max(room - container, 12))
    left = 2 + pod + 2 + container + 2 + qos + 2 + mark + 1
    texts = [len(str(one.first.cpus)) for one in owned if len(one.each) == 1]
    cpus = max((text for text in texts if text <= _LONG), default=0)
    count = max((cell_width(one.count) for one in owned if len(one.each) == 1), default=0)
    cpus = max(min(cpus, style.width - left - count - 2), 0)
    # What they have besides stands beside the CPUs where none of it has to be broken.
    room = style.width - (left + cpus + 2 + count + 3)
    besides = max((cell_width(clean(extra)) for one in told for extra in one.extras), default=0)
    if besides > room or any(one.first.remark for one in told):
        besides = 0
    return _Columns(pod, container, qos, mark, cpus, count, besides)


def _wide(row: PodEntry, node_map: NodeMap, style: Style, columns: _Columns) -> Iterator[Line]:
    # A long name runs on into the lines of its containers instead of being cut.
    pod = row.first
    names = wrap(clean(row.name), columns.pod, after="/-.")
    right: list[Line] = []
    room = style.width - 2 - columns.pod - 2
    if pod.has_trouble:
        right = _refusal(row, room)
    for whole in () if pod.has_trouble else row.whole:
        right.extend([(text, "dim")] for text in wrap(clean(whole), room, after=",/"))
    for container in () if pod.has_trouble else row.containers:
        called = _container_names(container, columns.container)
        rest = room - columns.container - columns.qos - 4
        cpus = list(
            _cpus(
                container, node_map, style, rest - (columns.extras and columns.extras + 3), columns
            )
        )
        beside = [
            text
            for extra in (container.extras if columns.extras else ())
            for text in wrap(clean(extra), columns.extras, after=",/")
        ]
        for at in range(max(len(called), len(cpus), len(beside))):
            head: Line = [
                (pad(called[at] if at < len(called) else "", columns.container), ""),
                ("  ", ""),
                (pad("" if at else clean(pod.qos), columns.qos), "dim"),
                ("  ", ""),
            ]
            line: Line = [*head, *(cpus[at] if at < len(cpus) else ())]
            if at < len(beside):
                line = [*pad_line(line, columns.before_extras), ("   ", ""), (beside[at], "dim")]
            right.append(line)
        if not columns.extras:
            right.extend(_extra_lines(container, columns.container + 2, room))
    if not right:
        right = [[("no containers", "dim")]]
    for at in range(max(len(names), len(right))):
        name = pad(names[at] if at < len(names) else "", columns.pod)
        mark = _mark(row) if at == 0 else (" ", "")
        tail = right[at] if at < len(right) else []
        yield [mark, (" ", ""), (name, "bad" if pod.has_trouble else ""), ("  ", ""), *tail]


def _narrow(row: PodEntry, node_map: NodeMap, style: Style) -> Iterator[Line]:
    room = style.width - 2
    pod = row.first
    for at, text in enumerate(wrap(clean(row.name), room, after="/-.")):
        mark = _mark(row) if at == 0 else (" ", "")
        yield [mark, (" ", ""), (text, "bad" if pod.has_trouble else "bold")]
    if pod.has_trouble:
        for line in _refusal(row, room):
            yield [("  ", ""), *line]
        return
    for whole in row.whole:
        for text in wrap(clean(whole), room, after=",/"):
            yield [("  ", ""), (text, "dim")]
    for container in row.containers:
        *called, last = _container_names(container, room)
        for text in called:
            yield [("  ", ""), (text, "")]
        qos = clean(pod.qos)
        if cell_width(last) + 2 + cell_width(qos) <= room:
            yield [("  ", ""), (last, ""), (f"  {qos}", "dim")]
        else:
            yield [("  ", ""), (last, "")]
            yield [("    ", ""), (qos, "dim")]
        for line in _cpus(container, node_map, style, room - 2, None):
            yield [("    ", ""), *line]
        yield from _extra_lines(container, 4, style.width)


def _extra_lines(container: ContainerEntry, left: int, width: int) -> Iterator[Line]:
    """What it has beside CPUs, ``left`` columns from the edge."""
    for extra in container.extras:
        for text in wrap(clean(extra), width - left, after=",/"):
            yield [(" " * left, ""), (text, "dim")]


def _mark(row: PodEntry) -> Span:
    pod = row.first
    return ("✗", "bad") if pod.failed or not pod.admitted else ("✓", "good")


def _refusal(row: PodEntry, room: int) -> list[Line]:
    pod = row.first
    lines: list[Line] = [[(text, "bad")] for text in wrap(clean(pod.reason or "Rejected"), room)]
    message = wrap(clean(pod.message), room, after="/") if pod.message else []
    lines.extend([(text, "")] for text in message)
    return lines


def _container_names(container: ContainerEntry, width: int) -> list[str]:
    """The name and how it is doing in lines: ``exit 12`` stays together."""
    first = container.first
    kind = clean(first.kind).replace(" ", _TIED).replace(f",{_TIED}", ", ")
    whole = clean(first.name) + (f" ({kind})" if kind else "")
    return [text.replace(_TIED, " ") for text in wrap(whole, width)]


def _mark_of(container: ContainerEntry, node_map: NodeMap, style: Style) -> str:
    owner = node_map.owners.get(container.first.owner or "")
    if owner is None:
        return state_symbol(CellState.SHARED, ascii_only=style.ascii_only)
    return owner_symbol(owner.index, ascii_only=style.ascii_only)


def _cpus(
    container: ContainerEntry,
    node_map: NodeMap,
    style: Style,
    room: int,
    columns: _Columns | None,
) -> Iterator[Line]:
    """The mark and the CPUs; with columns, these and their number are aligned with others'."""
    first = container.first
    owner = node_map.owners.get(first.owner or "")
    mark = 3 if columns is None else columns.mark
    if owner is None:
        symbol = state_symbol(CellState.SHARED, ascii_only=style.ascii_only)
        shared: Span = (f" {symbol} ", cell_paint(node_map, Cell(0, CellState.SHARED)))
        yield [*pad_line([shared], mark), (" shared pool", "dim")]
        return
    if len(container.each) > 1:
        yield from _replicas(container, node_map, style, room)
        return
    mark = max(mark, line_width([swatch(owner, style)]))
    remark = container.count + (f", {first.remark}" if first.remark else "")
    texts, fits = wrap(str(first.cpus), room - mark - 1, after=","), True
    for at, text in enumerate(texts):
        head = pad_line([swatch(owner, style)] if at == 0 else [], mark)
        line: Line = [*head, (f" {text}", "")]
        if at == len(texts) - 1:
            told = remark
            if columns is not None:
                count = columns.count if not first.remark else cell_width(container.count)
                line = pad_line(line, mark + 1 + columns.cpus)
                # The numbers are below each other, "1 CPU" or not.
                one = container.count.endswith("CPU")
                told = " " * max(count - cell_width(container.count) - one, 0) + remark
            fits = line_width(line) + 2 + cell_width(told) <= room
            if not fits:
                line = [*head, (f" {text}", "")]
            else:
                line.append((f"  {told}", "dim"))
        yield line
    if first.remark and not fits:
        # With whom these are shared is not left out as a count is.
        for text in wrap(first.remark, room - mark - 1):
            yield [(" " * (mark + 1), ""), (text, "dim")]


def _replicas(
    container: ContainerEntry, node_map: NodeMap, style: Style, room: int
) -> Iterator[Line]:
    """The CPUs of each with its mark; of many, those of all with the first and the last mark."""
    owners = [node_map.owners.get(one.owner or "") for one in container.each]
    pairs = [
        (swatch(owner, style), f" {one.cpus}")
        for owner, one in zip(owners, container.each, strict=True)
        if owner is not None
    ]
    item = max((line_width([mark, (text, "")]) for mark, text in pairs), default=0) + 2
    across = max((room + 2) // item, 1) if item else 1
    if -(-len(pairs) // across) <= MOST_LINES:
        lines: list[Line] = []
        for at in range(0, len(pairs), across):
            items = [pad_line([mark, (text, "")], item) for mark, text in pairs[at : at + across]]
            lines.append([span for one in items for span in one])
    else:
        marks: Line = [pairs[0][0], ("…", "dim"), pairs[-1][0]]
        left = line_width(marks) + 1
        texts = wrap(str(container.cpus), max(room - left, 8), after=",")
        lines = [
            [*(marks if at == 0 else [(" " * (left - 1), "")]), (f" {text}", "")]
            for at, text in enumerate(texts)
        ]
    # Behind the last line, where there is room, else below it.
    room_left = room - line_width(lines[-1]) - 2
    if cell_width(container.count) <= room_left:
        lines[-1] += [("  ", ""), (container.count, "dim")]
    else:
        lines.append([(f" {container.count}", "dim")])
    yield from lines
