"""Memory, huge pages and devices by NUMA node: a gauge for each, as text and in a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.svg_canvas import Canvas, Look, text_width
from pinfold.render.terminal import Line, Style, cell_width, clean, clip, line_width, pad, pad_line
from pinfold.render.topology_view import binary_size

TITLE: Final = "NUMA nodes"
SUBTITLE: Final = "used, of what pods may have"

_STACKED: Final = 60
"""Below this width each gauge stands on a line of its own."""

_NOWHERE: Final = "none"
_NOTHING: Final = ("-", "dim")
_BAR: Final = 8
_MANY: Final = 8
"""Of more rows, neighbours that are alike are told once."""

_PIXELS: Final = 84.0
_LONGEST: Final = 40
_LINE: Final = 20


class Gauge(Struct, frozen=True):
    """How much of one resource is used: bytes, or devices where ``in_bytes`` is false.

    ``used`` is None where nobody counts; ``unhealthy`` devices are not in ``allocatable``, and
    those of them that somebody has, ``unhealthy_used``, not in ``used``.
    """

    resource: str
    used: int | None
    allocatable: int
    in_bytes: bool = True
    unhealthy: int = 0
    unhealthy_used: int = 0

    def text(self) -> str:
        """``16 of 62.9 GiB``, ``3 of 4, 1 unhealthy``, ``0 of 0, 4 unhealthy (2 used)``."""
        whole = binary_size(self.allocatable) if self.in_bytes else str(self.allocatable)
        text = whole
        if self.used is not None:
            used = binary_size(self.used) if self.in_bytes else str(self.used)
            number, _, unit = used.partition(" ")
            same = not self.used or unit == whole.partition(" ")[2]
            text = f"{number if same else used} of {whole}"
        text += f", {self.unhealthy} unhealthy" if self.unhealthy else ""
        return f"{text} ({self.unhealthy_used} used)" if self.unhealthy_used else text

    def share(self) -> float | None:
        """The part that is used, from 0 to 1; None where there is nothing, or nobody counts."""
        if self.used is None or not self.allocatable:
            return None
        return min(self.used / self.allocatable, 1.0)


class NUMAGauges(Struct, frozen=True):
    """One NUMA node; ``id`` is None for devices of which nobody says where they are.

    ``group`` are the nodes that containers use it together with, itself among them.
    """

    id: int | None
    gauges: tuple[Gauge, ...]
    group: tuple[int, ...] = ()


class _Row(Struct, frozen=True):
    """What is drawn in one line: the gauges of one node, or of several that are alike."""

    name: str
    gauges: tuple[Gauge, ...]
    remark: str = ""


def numa_lines(nodes: Sequence[NUMAGauges], style: Style, *, of: str = "") -> Iterator[Line]:
    """The gauges as text: a table in as many blocks of columns as the width needs.

    ``of`` names the side that they are of, where there are two.
    """
    rows = _rows(nodes)
    yield [(TITLE, "bold"), (f"  {_subtitle(of)}", "dim")]
    if style.width < _STACKED:
        yield from _stacked(rows, style)
        return
    left = max(4, *(cell_width(row.name) for row in rows))
    columns = [_column(resource, rows, style.width - left - 2) for resource in _resources(rows)]
    if any(row.remark for row in rows):
        columns.insert(0, _texts("", [row.remark for row in rows], "dim"))
    heads = _texts("node", [row.name for row in rows], "key")
    block: list[list[Line]] = []
    for column in [*columns, None]:
        full = left + 2 + sum(_width(c) + 2 for c in [*block, column or []]) - 2 > style.width
        if block and (column is None or full):
            yield from _table(heads, block, left)
            block = []
            if column is not None:
                yield []
        if column is not None:
            block.append(column)


def _subtitle(of: str) -> str:
    return f"{clean(of)} · {SUBTITLE}" if of else SUBTITLE


def draw_numa(
    canvas: Canvas,
    nodes: Sequence[NUMAGauges],
    at: tuple[float, float, float],
    *,
    of: str = "",
) -> float:
    """Draw the gauges in ``(x, baseline, width)``; returns where to go on.

    ``of`` names the side that they are of, where there are two.
    """
    x, y, width = at
    rows = _rows(nodes)
    canvas.text((x, y), TITLE, 15, bold=True)
    canvas.text((x + text_width(TITLE, 15, bold=True) + 12, y), _subtitle(of), 13, color="dim")
    y += 24
    left = max(text_width(name, 12) for name in ("node", *(row.name for row in rows))) + 20
    remarks = max(text_width(row.remark, 12) for row in rows)
    widths = {resource: _drawn_width(resource, rows) for resource in _resources(rows)}
    for number, resources in enumerate(_blocks(widths, width - left - remarks)):
        canvas.text((x, y), "node", 12, color="dim")
        for resource, start in resources.items():
            canvas.text((x + left + start, y), clip(resource, _LONGEST), 12, color="dim")
        for row in rows:
            shown = [gauge for gauge in row.gauges if gauge.resource in resources]
            if not shown:
                continue
            y += _LINE
            canvas.text((x, y), row.name, 12, bold=True)
            for gauge in shown:
                _draw_gauge(canvas, gauge, (x + left + resources[gauge.resource], y), row.name)
            if row.remark and number == 0:
                end = max(start + widths[resource] for resource, start in resources.items())
                canvas.text((x + left + end, y), row.remark, 12, color="dim")
        y += _LINE + 6
    return y


def _drawn_width(resource: str, rows: Sequence[_Row]) -> float:
    gauges = [g for row in rows for g in row.gauges if g.resource == resource]
    longest = max(
        text_width(g.text(), 12) + (0 if g.share() is None else _PIXELS + 8) for g in gauges
    )
    return max(longest, text_width(clip(resource, _LONGEST), 12)) + 20


def _blocks(widths: Mapping[str, float], room: float) -> list[dict[str, float]]:
    """Where each resource starts, in as few blocks as the room allows."""
    blocks: list[dict[str, float]] = [{}]
    at = 0.0
    for resource, width in widths.items():
        if blocks[-1] and at + width > room:
            blocks.append({})
            at = 0.0
        blocks[-1][resource] = at
        at += width
    return blocks


def devices_at(nodes: Sequence[NUMAGauges]) -> dict[int, tuple[str, ...]]:
    """The devices of each NUMA node, for the map: ``example.com/gpu 2 of 4``."""
    return {
        node.id: tuple(f"{one.resource} {one.text()}" for one in node.gauges if not one.in_bytes)
        for node in nodes
        if node.id is not None
    }


def describe_numa(nodes: Sequence[NUMAGauges]) -> str:
    """The gauges in sentences, for those who do not see the picture."""
    return " ".join(f"NUMA node {name}: {text}." for name, text in gauge_texts(nodes).items())


def gauge_texts(nodes: Sequence[NUMAGauges]) -> dict[str, str]:
    """Name of each node -> its gauges in words."""
    return {
        _name(node): ", ".join(f"{gauge.resource} {gauge.text()}" for gauge in node.gauges)
        for node in nodes
        if node.gauges
    }


def _name(node: NUMAGauges) -> str:
    return _NOWHERE if node.id is None else str(node.id)


def _rows(nodes: Sequence[NUMAGauges]) -> list[_Row]:
    rows: list[_Row] = []
    alike: list[list[NUMAGauges]] = []
    for node in nodes:
        before = alike[-1][-1] if alike else None
        if len(nodes) > _MANY and before is not None and _alike(before, node):
            alike[-1].append(node)
        else:
            alike.append([node])
    for found in alike:
        first = found[0]
        ids = CPUSet(node.id for node in found if node.id is not None)
        name = str(ids) + (" each" if len(found) > 1 else "") if ids else _NOWHERE
        others = CPUSet(first.group) - ids
        remark = f"together with {others}" if len(first.group) > 1 else ""
        rows.append(_Row(name, first.gauges, remark))
    return rows


def _alike(one: NUMAGauges, other: NUMAGauges) -> bool:
    located = one.id is not None and other.id is not None
    return located and one.gauges == other.gauges and max(len(one.group), len(other.group)) < 2


def _resources(rows: Sequence[_Row]) -> list[str]:
    """The resources that any row has, in the order of the first that has them."""
    return list(dict.fromkeys(gauge.resource for row in rows for gauge in row.gauges))


def _texts(head: str, texts: Sequence[str], color: str) -> list[Line]:
    """A column of plain texts."""
    column: list[Line] = [[(head, "dim")]]
    column.extend([(text, color)] for text in texts)
    return column


def _column(resource: str, rows: Sequence[_Row], width: int) -> list[Line]:
    """The head of a resource and its gauges, one for each row."""
    column: list[Line] = [[(clip(clean(resource), width), "dim")]]
    for row in rows:
        gauge = next((g for g in row.gauges if g.resource == resource), None)
        column.append([_NOTHING] if gauge is None else _gauge(gauge))
    return column


def _gauge(gauge: Gauge) -> Line:
    share = gauge.share()
    if share is None:
        return [(gauge.text(), "")]
    # Neither empty nor full unless it is.
    filled = min(max(round(share * _BAR), int(share > 0)), _BAR - int(share < 1))
    return [
        ("█" * filled, "warn" if share == 1 else "good"),
        ("·" * (_BAR - filled), "dim"),
        (f" {gauge.text()}", ""),
    ]


def _width(column: Sequence[Line]) -> int:
    return max(map(line_width, column), default=0)


def _table(heads: Sequence[Line], columns: Sequence[Sequence[Line]], left: int) -> Iterator[Line]:
    widths = [_width(column) for column in columns]
    for number, head in enumerate(heads):
        if number and not any(text.strip("-") for c in columns for text, _ in c[number]):
            continue
        line: Line = [(" " * (left - line_width(head)), ""), *head]
        for column, width in zip(columns, widths, strict=True):
            line += [("  ", ""), *pad_line(column[number], width)]
        yield line


def _stacked(rows: Sequence[_Row], style: Style) -> Iterator[Line]:
    names = max((cell_width(clean(name)) for name in _resources(rows)), default=0)
    gauges = [gauge for row in rows for gauge in row.gauges]
    room = style.width - names - 4
    texts = max((cell_width(gauge.text()) for gauge in gauges), default=0)
    bars = max((line_width(_gauge(gauge)) for gauge in gauges), default=0) <= room
    for row in rows:
        name = "no node known" if row.name == _NOWHERE else f"node {row.name}"
        yield [(name, "key"), (f"  {row.remark}" if row.remark else "", "dim")]
        for gauge in row.gauges:
            resource = clean(gauge.resource)
            if texts <= room:
                shown = _gauge(gauge) if bars else [(gauge.text(), "")]
                yield [("  ", ""), (pad(resource, names), ""), ("  ", ""), *shown]
            else:
                yield [("  ", ""), (clip(resource, style.width - 2), "")]
                yield [("    ", ""), (clip(gauge.text(), style.width - 4), "")]


def _draw_gauge(canvas: Canvas, gauge: Gauge, at: tuple[float, float], node: str) -> None:
    x, y = at
    share = gauge.share()
    if share is not None:
        look = Look("c-gauge", "#1a7f4b", "#ffffff")
        canvas.rect((x, y - 9, _PIXELS, 10), "core", radius=2)
        if share:
            tooltip = f"NUMA node {node}, {gauge.resource}: {gauge.text()}"
            canvas.segment((x, y - 9, max(share * _PIXELS, 2), 10), look, tooltip)
        x += _PIXELS + 8
    canvas.text((x, y), gauge.text(), 12)
