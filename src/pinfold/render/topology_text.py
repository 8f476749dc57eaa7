"""A machine as text: map, NUMA table, distances, kinds of cores, and what the kubelet sees."""

from __future__ import annotations

from collections.abc import Iterator

from pinfold.render.terminal import Line, Style, clean, print_lines, wrap
from pinfold.render.text import legend_lines, note_lines, summary_lines, table_lines, title_lines
from pinfold.render.text_map import map_lines
from pinfold.render.topology_view import (
    NumaRow,
    TopologyView,
    binary_size,
    cpu_facts,
    device_facts,
    header,
    hugepage_text,
)


def render_topology(view: TopologyView, style: Style) -> str:
    """The whole description, ending in a newline."""
    lines: list[Line] = [*title_lines(view.title, header(view), style), []]
    lines += [*map_lines(view.node_map, style), []]
    if legend := list(legend_lines(view.node_map, style)):
        lines += [*legend, []]
    if view.numa:
        lines += [[("NUMA nodes", "bold")], *_numa_lines(view.numa, style), []]
    if view.devices:
        lines += [[("PCI devices", "bold")], *summary_lines(device_facts(view), style), []]
    if view.distances:
        lines += [[("NUMA distances", "bold")], *_distance_lines(view, style), []]
    facts = cpu_facts(view)
    if facts:
        lines += [[("CPUs", "bold")], *summary_lines(facts, style), []]
    if view.kubelet_notes:
        lines.append([("What the kubelet sees differently", "bold")])
        lines += [*note_lines(view.kubelet_notes, style), []]
    return print_lines(lines[:-1], style)


def _numa_lines(rows: tuple[NumaRow, ...], style: Style) -> Iterator[Line]:
    if style.width < 60:
        for row in rows:
            yield [(f"node {row.id}", "key"), (f"  {binary_size(row.memory_bytes)}", "")]
            for text in (str(row.cpus) and f"CPUs {row.cpus}", row.remark()):
                for part in wrap(clean(text), style.width - 2, after=",") if text else ():
                    yield [("  ", ""), (part, "")]
            if any(total for total, _ in row.hugepages.values()):
                for part in wrap(f"hugepages {hugepage_text(row.hugepages)}", style.width - 2):
                    yield [("  ", ""), (part, "")]
        return
    head = ("node", "CPUs", "memory", "hugepages", "")
    table = [
        (
            str(row.id),
            str(len(row.cpus)),
            binary_size(row.memory_bytes) if row.memory_bytes else "-",
            hugepage_text(row.hugepages),
            "  ".join(part for part in (str(row.cpus), row.remark()) if part),
        )
        for row in rows
    ]
    yield from table_lines(head, table, style, right="rrr")


def _distance_lines(view: TopologyView, style: Style) -> Iterator[Line]:
    """The matrix; in blocks of columns where it is wider than the terminal."""
    nodes = view.distance_nodes
    values = [str(value) for row in view.distances.values() for value in row]
    cell = max(map(len, [*values, *map(str, nodes), ""])) + 2
    left = max(len(str(node)) for node in [*view.distances, 0])
    across = max((style.width - left) // cell, 1)
    columns = max([len(nodes), *(len(row) for row in view.distances.values())])
    for at in range(0, columns, across):
        if at:
            yield []
        titles = "".join(f"{node:>{cell}}" for node in nodes[at : at + across])
        yield [(" " * left + titles, "dim")]
        for node, row in view.distances.items():
            line: Line = [(f"{node:>{left}}", "dim")]
            for column, value in enumerate(row[at : at + across], at):
                same = column < len(nodes) and nodes[column] == node
                line.append((f"{value:>{cell}}", "good" if same else ""))
            yield line
