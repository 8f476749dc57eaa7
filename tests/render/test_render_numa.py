"""Memory, huge pages and devices by NUMA node, as text and in a picture."""

from __future__ import annotations

import re

import pytest
from defusedxml.ElementTree import fromstring
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.compare import CompareView, render_compare, render_compare_svg
from pinfold.render.node_map import build_node_map, with_devices
from pinfold.render.numa_panel import Gauge, NUMAGauges, devices_at, gauge_texts, numa_lines
from pinfold.render.plan_view import ContainerRow, PlanView, PodRow
from pinfold.render.svg import render_plan_svg
from pinfold.render.terminal import Depth, Style, cell_width, print_lines
from pinfold.render.text import render_plan
from tests.roots import DATA
from tests.scenes.pictures import ANSI, SVG, assert_inside, machine, names

GOLDEN = DATA / "render"
GIB = 1 << 30
GPU = "example.com/gpu"
VF = "example.com/sriov-vf"


def devices(resource: str, used: int, allocatable: int, unhealthy: int = 0) -> Gauge:
    return Gauge(resource, used, allocatable, in_bytes=False, unhealthy=unhealthy)


def panel() -> tuple[NUMAGauges, ...]:
    """Two nodes in a group, one alone, and devices of unknown place."""
    return (
        NUMAGauges(
            0,
            (
                Gauge("memory", 0, 62 * GIB),
                Gauge("hugepages-1Gi", 1 * GIB, 64 * GIB),
                devices(GPU, 4, 4),
                devices(VF, 0, 0, unhealthy=32),
            ),
            (0, 1),
        ),
        NUMAGauges(1, (Gauge("memory", 63 * GIB + GIB // 2, 64 * GIB),), (0, 1)),
        NUMAGauges(2, (Gauge("memory", 512 << 20, 64 * GIB), devices(GPU, 1, 3, 1)), (2,)),
        NUMAGauges(None, (devices(VF, 3, 16),)),
    )


def plan(cpus: int = 8, numa: tuple[NUMAGauges, ...] | None = None) -> PlanView:
    extras = ("memory 8 GiB on NUMA node 0", f"{GPU}: gpu-0, gpu-1")
    pods = (
        PodRow(
            "ml",
            "train",
            "Guaranteed",
            admitted=True,
            containers=(ContainerRow("main", CPUSet([0]), extras=extras),),
        ),
    )
    node_map = build_node_map(machine(2, cpus // 4, 2), shared=CPUSet(range(cpus)))
    return PlanView(
        "Example",
        node_map,
        pods,
        shared=CPUSet(range(cpus)),
        numa=panel() if numa is None else numa,
    )


PICTURES = {
    "numa-100.txt": Style(100),
    "numa-80.txt": Style(80),
    "numa-44-ascii.txt": Style(44, ascii_only=True),
    "numa-20.txt": Style(20),
}


@pytest.mark.parametrize("name", PICTURES)
def test_looks_as_it_was_approved(name: str) -> None:
    assert render_plan(plan(), PICTURES[name]) == (GOLDEN / name).read_text(encoding="utf-8")


def test_the_picture_looks_as_it_was_approved() -> None:
    assert render_plan_svg(plan()) == (GOLDEN / "numa.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("gauge", "text", "share"),
    [
        (Gauge("memory", 16 * GIB, 64 * GIB), "16 of 64 GiB", 0.25),
        (Gauge("memory", 0, 64 * GIB), "0 of 64 GiB", 0),
        (Gauge("memory", 512 << 20, 64 * GIB), "512 MiB of 64 GiB", 1 / 128),
        (Gauge("memory", None, 64 * GIB), "64 GiB", None),
        (Gauge("memory", 0, 0), "0 of 0 B", None),
        (devices(GPU, 3, 4), "3 of 4", 0.75),
        (devices(GPU, 3, 2, 1), "3 of 2, 1 unhealthy", 1),
    ],
)
def test_what_a_gauge_says(gauge: Gauge, text: str, share: float | None) -> None:
    assert (gauge.text(), gauge.share()) == (text, share)


def bar(gauge: Gauge) -> str:
    lines = list(numa_lines((NUMAGauges(0, (gauge,)),), Style(80)))
    return print_lines(lines[2:], Style(80)).split()[1]


def test_a_bar_is_full_or_empty_only_if_the_node_is() -> None:
    assert bar(Gauge("memory", 1, 64 * GIB)) == "█·······"
    assert bar(Gauge("memory", 0, 64 * GIB)) == "········"
    assert bar(Gauge("memory", 64 * GIB - 1, 64 * GIB)) == "███████·"
    assert bar(Gauge("memory", 64 * GIB, 64 * GIB)) == "████████"


def test_without_gauges_there_is_no_panel() -> None:
    assert "NUMA nodes" not in render_plan(plan(numa=()), Style(80))
    assert "NUMA nodes" not in render_plan_svg(plan(numa=()))


def test_many_nodes_that_are_alike_are_one_line() -> None:
    memory = (Gauge("memory", 0, 64 * GIB),)
    nodes = tuple(NUMAGauges(node, memory, (node,)) for node in range(64))
    busy = NUMAGauges(5, (Gauge("memory", GIB, 64 * GIB),), (5,))
    lines = print_lines(numa_lines((*nodes[:5], busy, *nodes[6:]), Style(80)), Style(80))
    assert [line.split()[0] for line in lines.splitlines()[2:]] == ["0-4", "5", "6-63"]
    assert "0-4 each" in lines


def test_512_cpus_with_devices_fit_80_columns() -> None:
    text = render_plan(plan(512), Style(80))
    assert max(map(cell_width, text.splitlines())) <= 80
    assert "4 of 4" in text
    root = fromstring(render_plan_svg(plan(512)))
    assert_inside(root)
    assert float(root.attrib["width"]) <= 2000


def test_the_picture_can_be_read_aloud() -> None:
    root = fromstring(render_plan_svg(plan()))
    told = root.findtext(f"{SVG}desc") or ""
    assert "main in the shared pool, memory 8 GiB on NUMA node 0, example.com/gpu: gpu-0" in told
    assert "NUMA node 2: memory 512 MiB of 64 GiB, example.com/gpu 1 of 3, 1 unhealthy." in told


def test_a_comparison_tells_what_changed_at_each_node() -> None:
    before, after = plan(), plan(numa=(NUMAGauges(0, (devices(GPU, 3, 4),)), *panel()[1:3]))
    text = render_compare(CompareView("x", "old", before, "new", after), Style(100))
    svg = render_compare_svg(CompareView("x", "old", before, "new", after))
    for told in ("old · used, of what pods may have", "new · used, of what pods may have"):
        assert f"NUMA nodes  {told}" in text
        assert told in svg
    assert "3 of 4" in text.partition("new · used")[2]
    alike = CompareView("x", "old", before, "new", plan())
    assert "both · used" in render_compare(alike, Style(100))
    assert_inside(fromstring(render_compare_svg(alike)))


def test_a_comparison_tells_memory_and_devices() -> None:
    before = plan()
    [pod] = before.pods
    [row] = pod.containers
    moved = ContainerRow("main", row.cpus, extras=(f"{GPU}: gpu-7",))
    after = PlanView(
        "Example",
        before.node_map,
        (PodRow("ml", "train", "Guaranteed", admitted=True, containers=(moved,)),),
        shared=before.shared,
        numa=before.numa,
    )
    view = CompareView("x", "old", before, "new", after)
    text = render_compare(view, Style(80))
    assert "1 pod changed" in text
    assert "memory 8 GiB on NUMA node 0" in text
    assert "gpu-7" in text
    assert "gpu-7" in render_compare_svg(view)


counts = st.integers(0, 1 << 50)
gauges = st.builds(Gauge, names, st.none() | counts, counts, st.booleans(), st.integers(0, 3))
panels = st.lists(
    st.builds(
        NUMAGauges,
        st.none() | st.integers(0, 1023),
        st.lists(gauges, max_size=5, unique_by=lambda gauge: gauge.resource).map(tuple),
        st.lists(st.integers(0, 9), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=12,
).map(tuple)


@settings(max_examples=80, deadline=None)
@given(
    panels,
    st.integers(20, 200),
    st.sampled_from(["none", "16", "256", "truecolor"]),
    st.booleans(),
)
def test_any_panel_fits_any_terminal(
    numa: tuple[NUMAGauges, ...], width: int, depth: Depth, ascii_only: bool
) -> None:
    text = render_plan(plan(numa=numa), Style(width, depth, ascii_only))
    plain = ANSI.sub("", text)
    assert depth != "none" or text == plain
    assert not ascii_only or plain.isascii()
    assert max(map(cell_width, plain.split("\n"))) <= width
    assert_inside(fromstring(render_plan_svg(plan(numa=numa))))
    assert set(gauge_texts(numa)) <= {str(node.id) for node in numa} | {"none"}


@pytest.mark.parametrize("width", [20, 44, 80, 200])
def test_devices_are_at_their_numa_node(width: int) -> None:
    nodes = (
        NUMAGauges(0, (devices(GPU, 3, 4), Gauge("memory", 0, 1 << 30))),
        NUMAGauges(1, (devices(GPU, 0, 4),)),
        NUMAGauges(7, (devices(GPU, 2, 2),)),
    )
    node_map = with_devices(build_node_map(machine(2, 4, 2)), devices_at(nodes))
    assert [box.devices for box in node_map.root.children] == [
        (f"{GPU} 3 of 4",),
        (f"{GPU} 0 of 4",),
    ]
    assert node_map.memory_only == (f"NUMA node 7 · {GPU} 2 of 2",)
    text = render_plan(PlanView("x", node_map), Style(width))
    assert all(cell_width(line) <= width for line in text.splitlines())
    plain = re.sub(r"[│\s]+", "", text)
    assert f"{GPU}3of4" in plain or width > 100
    assert f"{GPU}2of2" in plain
    root = fromstring(render_plan_svg(PlanView("x", node_map)))
    texts = [one.text for one in root.iter(f"{SVG}text")]
    assert {f"{GPU} 3 of 4", f"{GPU} 0 of 4"} <= set(texts)
    assert_inside(root)
