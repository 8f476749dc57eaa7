"""A machine as the map shows it: nothing lost, nameless sockets and memory-only nodes kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinfold.core.machine.kubelet_view import kubelet_view
from pinfold.core.machine.machine import (
    Cpu,
    CpuKind,
    Distances,
    HugepagePool,
    L3Cache,
    Machine,
    NUMANode,
    Socket,
)
from pinfold.core.values.cpuset import CPUSet
from pinfold.render.boxes import CellState, Place
from pinfold.render.machine_map import machine_map, topology_view
from pinfold.render.node_map import Owner, build_node_map
from pinfold.render.terminal import Style, line_width
from pinfold.render.text_map import map_lines
from pinfold.render.topology_text import render_topology
from tests.roots import SHARED


def hybrid(*, socket: int | None = 0) -> Machine:
    """A P core with two threads, two E cores, an offline CPU, and a NUMA node of memory only."""
    cpus = (
        Cpu(0, core=0, core_id=0, socket=socket, numa=0, l3=0, kind=1),
        Cpu(1, core=0, core_id=0, socket=socket, numa=0, l3=0, kind=1),
        Cpu(2, core=2, core_id=2, socket=socket, numa=0, l3=0, kind=0, isolated=True),
        Cpu(3, core=3, core_id=3, socket=socket, numa=0, l3=0, kind=0),
        Cpu(4, online=False),
    )
    pages = {2**21: HugepagePool(16, 4)}
    return Machine(
        name="hybrid",
        source="test",
        cpus=cpus,
        numa_nodes=(
            NUMANode(0, CPUSet(range(4)), 8 * 2**30, pages),
            NUMANode(1, CPUSet(), 4 * 2**30, memory_kind="CXL"),
        ),
        sockets=(Socket(socket, CPUSet(range(4))),),
        cores=(CPUSet([0, 1]), CPUSet([2]), CPUSet([3])),
        l3=(L3Cache(CPUSet(range(4)), 12 * 2**20),),
        distances=Distances((0, 1), {0: (10, 20), 1: (20, 10)}),
        cpu_kinds=(CpuKind(0, CPUSet([2, 3])), CpuKind(1, CPUSet([0, 1]))),
        cpu_model="Example CPU",
    )


def test_the_whole_machine_is_told() -> None:
    machine = hybrid()
    text = render_topology(topology_view(machine, kubelet_view(machine)), Style(100))
    assert text.startswith("Example CPU\n1 socket · 2 NUMA nodes · 3 cores · 4 CPUs · 1 L3 cache\n")
    for part in (
        "Socket 0 · NUMA node 0 · 8 GiB · L3 0 · 12 MiB",
        "─ performance ─",
        "─ efficiency ─",
        "─ Offline ─",
        "NUMA node 1 · memory only · 4 GiB · CXL",
        "16 x 2 MiB (4 free)",
        "1  20  10",
    ):
        assert part in text


def test_sockets_without_an_id_are_boxes_without_a_number() -> None:
    (box, offline) = machine_map(hybrid(socket=None)).root.children
    assert box.labels[0].text() == "Socket"
    assert [cell.cpu for core in offline.cores for cell in core.cells] == [4]


def test_owners_and_states_of_a_machine() -> None:
    node_map = machine_map(
        hybrid(),
        [Owner("a", "default/a main", CPUSet([0, 1]))],
        shared=CPUSet([2]),
        unseen=CPUSet([3]),
    )
    states = {cell.cpu: cell.state for cell in node_map.cells()}
    assert states == {
        0: CellState.EXCLUSIVE,
        1: CellState.EXCLUSIVE,
        2: CellState.SHARED,
        3: CellState.UNSEEN,
        4: CellState.OFFLINE,
    }
    assert [cell.cpu for cell in node_map.cells() if cell.isolated] == [2]


TRUTHS = sorted((SHARED / "machines").glob("*.json"))


@pytest.mark.skipif(not TRUTHS, reason="needs the captured machines beside the repository")
@pytest.mark.parametrize("path", TRUTHS, ids=lambda path: path.stem)
def test_captured_machines_are_drawn_whole(path: Path) -> None:
    rows = json.loads(path.read_text(encoding="utf-8"))["cpus"]
    places = [
        Place(
            row["cpu"],
            row.get("core"),
            row.get("l3"),
            row.get("numa"),
            row.get("socket"),
            None if row.get("kind") is None else str(row["kind"]),
            online=row["online"],
        )
        for row in rows
    ]
    node_map = build_node_map(places)
    assert sorted(cell.cpu for cell in node_map.cells()) == sorted(row["cpu"] for row in rows)
    for width in (40, 80, 200):
        lines = map_lines(node_map, Style(width))
        assert max(map(line_width, lines)) <= width
        assert len(lines) <= 170
