"""Terminal output: golden pictures of small machines, and what holds on every machine."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.render.boxes import CellState, Level, Place, cores_per_row
from pinfold.render.node_map import (
    NodeMap,
    NodeMapError,
    Owner,
    build_node_map,
    mute,
)
from pinfold.render.palette import Paint
from pinfold.render.plan_view import PlanView, PodRow
from pinfold.render.terminal import (
    Depth,
    Style,
    cell_width,
    clean,
    clip,
    clip_line,
    line_width,
    print_lines,
    wrap,
)
from pinfold.render.text import render_plan, table_lines
from pinfold.render.text_map import map_lines, short_range
from tests.roots import DATA
from tests.scenes.pictures import ANSI, example, machine, node_maps, plans

GOLDEN = DATA / "render"


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("plan-80.txt", Style(80)),
        ("plan-44.txt", Style(44)),
        ("plan-20.txt", Style(20)),
        ("plan-80-ascii.txt", Style(80, ascii_only=True)),
        ("plan-80-256.ansi", Style(80, "256")),
    ],
)
def test_plan_looks_as_it_was_approved(name: str, style: Style) -> None:
    assert render_plan(example(), style) == (GOLDEN / name).read_text(encoding="utf-8")


def test_512_cpus_are_drawn_densely_with_their_ranges() -> None:
    node_map = build_node_map(machine(2, 128, 2), shared=CPUSet(range(512)))
    lines = print_lines(map_lines(node_map, Style(80)), Style(80)).splitlines()
    assert len(lines) <= 26
    assert any(" 256-271 " in line and " 384-399 " in line for line in lines)
    assert sum(line.count("·") for line in lines) == 512 + 2 * 2  # titles have two each


# What is printed on which stream


@pytest.mark.parametrize(
    ("environ", "is_tty", "depth"),
    [
        ({}, False, "none"),
        ({"TERM": "xterm-256color"}, True, "256"),
        ({"TERM": "xterm-256color", "COLORTERM": "truecolor"}, True, "truecolor"),
        ({"TERM": "linux"}, True, "16"),
        ({"TERM": "dumb"}, True, "none"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, "none"),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, "16"),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, "none"),
        ({"FORCE_COLOR": "1"}, False, "16"),
        ({"FORCE_COLOR": "2"}, False, "256"),
        ({"FORCE_COLOR": "3"}, False, "truecolor"),
        ({"FORCE_COLOR": "0"}, False, "none"),
        ({"CLICOLOR_FORCE": "1"}, False, "256"),
        ({"CLICOLOR": "0", "TERM": "xterm"}, True, "none"),
        ({"TERM": "dumb", "CLICOLOR_FORCE": "1"}, True, "256"),
    ],
)
def test_depth_of_colour(environ: dict[str, str], is_tty: bool, depth: Depth) -> None:
    assert Style.detect(environ, is_tty=is_tty, encoding="utf-8").depth == depth


def test_an_option_outranks_the_environment() -> None:
    always = Style.detect({"NO_COLOR": "1"}, is_tty=False, encoding="utf-8", color=True)
    never = Style.detect({"FORCE_COLOR": "1"}, is_tty=True, encoding="utf-8", color=False)
    assert (always.depth, never.depth) == ("256", "none")


@pytest.mark.parametrize(
    ("encoding", "ascii_only"),
    [("utf-8", False), ("UTF8", False), ("ascii", True), ("iso-8859-1", True), (None, True)],
)
def test_ascii_where_the_encoding_is_not_utf8(encoding: str | None, ascii_only: bool) -> None:
    assert Style.detect({}, is_tty=False, encoding=encoding).ascii_only is ascii_only


def test_escape_sequences_of_names_do_not_reach_the_terminal() -> None:
    hostile = PodRow(
        "default", "\x1b[2J\x07\u202ex\r\n", "Guaranteed", admitted=False, reason="\x9b1m"
    )
    view = PlanView("\x1b]0;t\x07", build_node_map(machine(1, 2, 1)), (hostile,))
    text = render_plan(view, Style(80))
    assert not set("\x1b\x07\x9b\u202e\r") & set(text)


# Building


def test_what_holds_the_same_cpus_is_one_box() -> None:
    root = build_node_map(machine(2, 4, 2)).root
    assert [[label.level for label in box.labels] for box in root.children] == [
        [Level.SOCKET, Level.NUMA, Level.L3]
    ] * 2


def test_numa_nodes_may_hold_sockets() -> None:
    places = [Place(cpu, cpu, None, 0, cpu // 2) for cpu in range(4)]
    (node,) = build_node_map(places).root.children
    assert [label.text() for label in node.labels] == ["NUMA node 0"]
    assert [child.labels[0].text() for child in node.children] == ["Socket 0", "Socket 1"]


def test_overlapping_boxes_are_named_not_drawn() -> None:
    places = [Place(cpu, cpu, None, cpu // 3, cpu // 2) for cpu in range(4)]
    node_map = build_node_map(places)
    assert sorted(cell.cpu for cell in node_map.cells()) == [0, 1, 2, 3]
    assert "NUMA 0" in node_map.notes[0]


def test_kinds_of_cores_are_boxes_of_their_own() -> None:
    places = [Place(cpu, cpu, 0, 0, 0, kind="P" if cpu < 2 else "E") for cpu in range(6)]
    (socket,) = build_node_map(places).root.children
    assert [box.labels[0].text() for box in socket.children] == ["P", "E"]


def test_the_kubelets_view_can_be_drawn_directly() -> None:
    topology = CPUTopology.from_rows(
        (cpu, cpu % 4, cpu % 4 // 2, 0, cpu % 4 // 2) for cpu in range(8)
    )
    node_map = build_node_map(topology, shared=CPUSet(range(8)))
    assert [len(core.cells) for core in node_map.root.all_cores()] == [2, 2, 2, 2]
    assert node_map.count(CellState.SHARED) == 8


def test_split_and_free_cores() -> None:
    node_map = example().node_map
    assert node_map.split_cores() == (3,)
    assert node_map.free_cores() == (4, 5, 6, 7, 12, 13, 14, 15)


def test_isolated_cores_that_the_pool_leaves_out_are_free() -> None:
    places = [Place(cpu, cpu & ~1, isolated=cpu > 3) for cpu in range(8)]
    owner = Owner("a", "a", CPUSet([6]))
    node_map = build_node_map(places, [owner], shared=CPUSet(range(4)), reserved=CPUSet([0]))
    assert node_map.count(CellState.ISOLATED) == 3
    assert node_map.free_cores() == (2, 4)


def test_two_owners_of_a_cpu_are_refused() -> None:
    owners = [Owner("a", "a", CPUSet([1])), Owner("b", "b", CPUSet([1]))]
    with pytest.raises(NodeMapError, match="CPU 1 belongs to 'a' and to 'b'"):
        build_node_map(machine(1, 2, 1), owners)
    with pytest.raises(NodeMapError, match="CPU 0 appears twice"):
        build_node_map([Place(0), Place(0)])


def test_muted_cells_keep_their_ids_and_lose_their_letters() -> None:
    node_map = mute(example().node_map, CPUSet([3]))
    text = print_lines(map_lines(node_map, Style(80)), Style(80))
    assert "3c" in text
    assert "17 " in text
    assert "17a" not in text


# Measuring


@pytest.mark.parametrize("text", ["abc", "日本", "e\N{COMBINING ACUTE ACCENT}", "─…·★", "한글x"])
def test_widths_are_those_of_terminals(text: str) -> None:
    assert cell_width(text) == cell_len(text)


@given(st.text(max_size=60), st.integers(2, 30))
def test_wrapping_keeps_the_text_and_the_width(text: str, width: int) -> None:
    text = clean(text)
    lines = wrap(text, width, after=",/")
    assert all(cell_width(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@given(st.text(max_size=30), st.integers(1, 20))
def test_clipping_fits(text: str, width: int) -> None:
    text = clean(text)
    assert cell_width(clip(text, width)) <= width
    assert line_width(clip_line([(text, ""), (text, "bold")], width)) <= width
    assert clip(text, cell_width(text)) == text


@pytest.mark.parametrize(
    ("mask", "text"), [(0b1111, "0-3"), (0b1000, "3"), (0b10101, "0…4"), (0, "")]
)
def test_ranges_of_rows(mask: int, text: str) -> None:
    assert short_range(mask) == text


@given(st.integers(1, 300), st.integers(1, 300))
def test_cores_per_row_fits_and_is_even(count: int, most: int) -> None:
    most = min(count, most)
    row = cores_per_row(count, most)
    assert 1 <= row <= most
    assert row == count or most < count


def test_tables_wrap_their_last_column() -> None:
    rows = [("0", ",".join(map(str, range(0, 60, 2))))]
    lines = list(table_lines(("node", "CPUs"), rows, Style(30)))
    assert len(lines) > 3
    assert all(line_width(line) <= 30 for line in lines)


# Any machine, any owners, any terminal


@settings(max_examples=60, deadline=None)
@given(node_maps(), st.integers(20, 220))
def test_every_cpu_is_in_the_map_exactly_once(node_map: NodeMap, width: int) -> None:
    cells = list(node_map.cells())
    assert len({cell.cpu for cell in cells}) == len(cells)
    lines = map_lines(node_map, Style(width))
    painted = [text.strip() for line in lines for text, style in line if isinstance(style, Paint)]
    online = [str(cell.cpu) for cell in cells if cell.state is not CellState.OFFLINE]
    if any(text[:1].isdigit() for text in painted):
        found = [re.match(r"\d+", text) for text in painted]
        assert sorted(match[0] for match in found if match) == sorted(online)
    else:
        assert len(painted) == len(online)


@settings(max_examples=60, deadline=None)
@given(
    plans(),
    st.integers(20, 220),
    st.sampled_from(["none", "16", "256", "truecolor"]),
    st.booleans(),
)
def test_no_line_is_wider_than_the_terminal(
    view: PlanView,
    width: int,
    depth: Depth,
    ascii_only: bool,
) -> None:
    text = render_plan(view, Style(width, depth, ascii_only))
    plain = ANSI.sub("", text)
    assert "\x1b" not in plain
    assert depth != "none" or text == plain
    assert not ascii_only or plain.isascii()
    for line in plain.split("\n"):
        assert cell_width(line) <= width
        assert not line.endswith(" ") or depth != "none"
