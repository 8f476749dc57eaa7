"""SVG: well-formed whatever the names, every CPU once with a tooltip, all inside the page."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

import pytest
from defusedxml.ElementTree import fromstring
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.boxes import CellState
from pinfold.render.compare import CompareView, align_owners, render_compare_svg
from pinfold.render.node_map import NodeMap, Owner, build_node_map
from pinfold.render.plan_view import PlanView
from pinfold.render.svg import render_plan_svg
from pinfold.render.svg_canvas import escape, text_width, wrap_text
from pinfold.render.topology_svg import render_topology_svg
from pinfold.render.topology_view import NumaRow, TopologyView
from tests.roots import DATA
from tests.scenes.pictures import SVG, assert_inside, example, machine, names, node_maps, plans

GOLDEN = DATA / "render" / "plan.svg"


def tooltips(root: Element) -> list[str]:
    """What the cells say when the pointer rests on them."""
    titles = [group.findtext(f"{SVG}title") or "" for group in root.iter(f"{SVG}g")]
    return [title for title in titles if re.match(r"CPU \d+ ·", title)]


def test_plan_looks_as_it_was_approved() -> None:
    assert render_plan_svg(example()) == GOLDEN.read_text(encoding="utf-8")


def test_a_cell_tells_everything_about_its_cpu() -> None:
    found = tooltips(fromstring(render_plan_svg(example())))
    assert "CPU 17 · core 1 · L3 0 · NUMA 0 · Socket 0 · default/web app (exclusive)" in found
    assert "CPU 0 · core 0 · L3 0 · NUMA 0 · Socket 0 · reserved" in found
    assert "CPU 31 · core 15 · L3 8 · NUMA 1 · Socket 1 · shared pool" in found


def test_a_map_marks_who_uses_the_shared_pool_besides() -> None:
    owners = (
        Owner("m", "mixed and the shared pool", CPUSet([2]), 0, mixed=True),
        Owner("o", "own", CPUSet([3]), 1),
    )
    root = fromstring(render_plan_svg(PlanView("n", build_node_map(machine(1, 4, 1), owners))))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert (texts.count("a+"), texts.count("b"), texts.count("b+")) == (1, 1, 0)
    assert "exclusive 2 (+ and the shared pool)" in texts
    root = fromstring(render_plan_svg(PlanView("n", build_node_map(machine(1, 4, 1), owners[1:]))))
    assert "exclusive 1" in [text.text for text in root.iter(f"{SVG}text")]


def test_the_picture_can_be_read_aloud() -> None:
    root = fromstring(render_plan_svg(example()))
    assert root.get("role") == "img"
    title, desc = root.findtext(f"{SVG}title"), root.findtext(f"{SVG}desc") or ""
    assert title == "Node example"
    assert "default/three: rejected, SMTAlignmentError: SMT Alignment Error" in desc
    assert "app 4 CPUs (1-2,17-18)" in desc
    assert root.get("aria-labelledby") == "pinfold-title pinfold-desc"


def test_nothing_is_loaded_from_outside() -> None:
    text = render_plan_svg(example())
    assert not re.search(r"href|url\(|@import|<script", text)
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]


@pytest.mark.parametrize(("sockets", "cores", "threads"), [(1, 1, 1), (2, 128, 2), (4, 128, 2)])
def test_small_and_large_machines_have_sensible_pages(
    sockets: int, cores: int, threads: int
) -> None:
    node_map = build_node_map(machine(sockets, cores, threads))
    root = fromstring(render_plan_svg(PlanView("n", node_map)))
    assert len(tooltips(root)) == sockets * cores * threads
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert 600 <= width <= 2000
    assert height <= width * 1.2
    sizes = [float(text.attrib["font-size"]) for text in root.iter(f"{SVG}text")]
    assert min(sizes) >= 4


@given(st.text(max_size=40))
def test_escaped_text_comes_back(text: str) -> None:
    root = fromstring(f'<a b="{escape(text)}">{escape(text)}</a>')
    assert root.attrib["b"] == (root.text or "")
    if text.isascii() and text.isprintable():
        assert root.attrib["b"] == text


@given(st.text(max_size=60), st.floats(40, 400))
def test_wrapped_text_keeps_its_characters(text: str, width: float) -> None:
    lines = wrap_text(text, 12, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(text_width(line, 12) <= max(width, 60) * 1.35 for line in lines)


@settings(max_examples=40, deadline=None)
@given(plans())
def test_every_cpu_is_drawn_once_inside_the_page(view: PlanView) -> None:
    root = fromstring(render_plan_svg(view))
    found = [int(title.split()[1]) for title in tooltips(root)]
    assert sorted(found) == sorted(cell.cpu for cell in view.node_map.cells())
    assert_inside(root)


@settings(max_examples=25, deadline=None)
@given(node_maps(), names, st.lists(st.integers(0, 400), max_size=6))
def test_topologies_are_well_formed(node_map: NodeMap, name: str, distances: list[int]) -> None:
    view = TopologyView(
        name,
        node_map,
        facts=((name, "1"),),
        numa=(NumaRow(0, CPUSet([0]), 2**30, {2**21: (4, 2)}, name), NumaRow(7, CPUSet())),
        distance_nodes=tuple(range(len(distances))),
        distances={0: tuple(distances)} if distances else {},
        offline=CPUSet(c.cpu for c in node_map.cells() if c.state is CellState.OFFLINE),
        kubelet_notes=(name,),
    )
    root = fromstring(render_topology_svg(view))
    assert len(tooltips(root)) == sum(1 for _ in node_map.cells())
    assert_inside(root)


def test_a_comparison_draws_both_maps() -> None:
    before, after = align_owners(
        [Owner("a", "a", CPUSet([1]))], [Owner("b", "b", CPUSet([2])), Owner("a", "a", CPUSet([3]))]
    )
    sides = [
        PlanView("x", build_node_map(machine(1, 4, 2), owners, shared=CPUSet(range(8))))
        for owners in (before, after)
    ]
    svg = render_compare_svg(CompareView("<t>", "one & two", sides[0], "b", sides[1]))
    root = fromstring(svg)
    assert len(tooltips(root)) == 16
    assert_inside(root)
    assert "CPUs that changed: 1-3." in (root.findtext(f"{SVG}desc") or "")
