"""The list of pods: who is told in one row, columns that are aligned, pages that are used."""

from __future__ import annotations

from collections import Counter
from xml.etree.ElementTree import Element

import pytest
from defusedxml.ElementTree import fromstring
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.node_map import Owner, build_node_map, number_owners
from pinfold.render.plan_view import ContainerRow, PlanView, PodRow
from pinfold.render.pods.alike import LISTED, entries, stem
from pinfold.render.svg import render_plan_svg
from pinfold.render.terminal import Style, cell_width
from pinfold.render.text import render_plan
from tests.scenes.pictures import SVG, assert_inside, machine, plans


def pod(name: str, cpus: str = "", *, reason: str = "", extras: tuple[str, ...] = ()) -> PodRow:
    """A pod with one container; ``reason`` is that of its rejection."""
    owner = f"default/{name}/app" if cpus else None
    container = ContainerRow("app", CPUSet.parse(cpus), bool(cpus), owner, extras=extras)
    return PodRow(
        "default", name, "Guaranteed", not reason, () if reason else (container,), reason or None
    )


def plan(*pods: PodRow, each: bool = False, cores: int = 64) -> PlanView:
    """These pods on a machine of two sockets."""
    owners = number_owners(
        Owner(one.owner, f"{row.full_name} {one.name}", one.cpus)
        for row in pods
        for one in row.containers
        if one.owner
    )
    node_map = build_node_map(machine(2, cores, 1), owners, shared=CPUSet(range(2 * cores)))
    return PlanView("n", node_map, pods, each=each)


def replicas(count: int) -> tuple[PodRow, ...]:
    """Those of a StatefulSet, one CPU for each."""
    return tuple(pod(f"web-{number}", str(number)) for number in range(count))


def size(view: PlanView) -> tuple[float, float]:
    root = fromstring(render_plan_svg(view))
    return float(root.attrib["width"]), float(root.attrib["height"])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("web-7d9f8b6c5-gx87d", "web"),
        ("kafka-10", "kafka"),
        ("node-exporter-x8k2b", "node-exporter"),
        ("web-proxy", "web-proxy"),
        ("backup-29381040-zx9vk", "backup-29381040"),
        ("web", "web"),
        ("-1", "-1"),
    ],
)
def test_the_name_of_what_created_a_pod(name: str, shown: str) -> None:
    assert stem(name) == shown


def test_few_pods_have_a_row_each_and_many_that_are_alike_one() -> None:
    assert len(entries(replicas(LISTED))) == LISTED
    (row,) = entries(replicas(LISTED + 1))
    assert row.name == f"default/web ×{LISTED + 1}"
    assert len(entries(replicas(LISTED + 1), each=True)) == LISTED + 1


def test_who_differs_in_more_than_his_cpus_has_a_row_of_his_own() -> None:
    pods = (
        *replicas(13),
        pod("web-20", "20-21"),
        pod("web-21", reason="OutOfcpu"),
        pod("web-22"),
        pod("db-0", "30"),
        pod("db-1", "31"),
    )
    names = [row.name for row in entries(pods)]
    assert names == [
        "default/web ×13",
        *(f"default/{name}" for name in ("web-20", "web-21", "web-22", "db-0", "db-1")),
    ]


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 40), st.booleans()),
        unique_by=lambda one: one[:2],
    )
)
def test_every_pod_is_in_one_row(found: list[tuple[str, int, bool]]) -> None:
    pods = [pod(f"{name}-{number}", reason="x" if bad else "") for name, number, bad in found]
    rows = entries(pods)
    assert Counter(one for row in rows for one in row.pods) == Counter(pods)
    firsts = [pods.index(row.first) for row in rows]
    assert firsts == sorted(firsts)


def test_replicas_are_told_with_their_marks_and_cpus() -> None:
    text = render_plan(plan(*replicas(17)), Style(80))
    (line,) = [line for line in text.splitlines() if "default/web" in line]
    assert line.startswith("✓ default/web ×17  app  Guaranteed   a  0    b  1 ")
    assert "17 × 1 CPU" in text
    assert "web-3" in render_plan(plan(*replicas(17), each=True), Style(80))
    assert "x17" in render_plan(plan(*replicas(17)), Style(80, ascii_only=True))


def test_many_replicas_are_told_with_the_cpus_of_all() -> None:
    text = render_plan(plan(*replicas(120)), Style(80))
    (line,) = [line for line in text.splitlines() if "default/web" in line]
    assert line.endswith(" a … ba  0-119  120 × 1 CPU") or " 0-119 " in line
    root = fromstring(render_plan_svg(plan(*replicas(120))))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"default/web ×120", "0-119", "120 × 1 CPU"} <= set(texts)


def test_what_replicas_have_besides_is_told_once() -> None:
    pods = [
        pod(f"web-{at}", extras=("memory 1 GiB on NUMA node 0", f"gpu: {at}"))
        for at in (*range(13),)
    ]
    (row,) = entries(pods)
    (container,) = row.containers
    assert container.extras[:2] == ("memory 1 GiB on NUMA node 0", "gpu: 0")
    assert container.extras[-1] == "and 10 more lines such as these"


@pytest.mark.parametrize("width", [80, 120, 200])
def test_marks_and_counts_are_below_each_other(width: int) -> None:
    pods = (pod("a", "1"), pod("a-much-longer-name", "10-29"), pod("b", "30-33"), pod("c"))
    lines = render_plan(plan(*pods), Style(width)).splitlines()
    shown = [line for line in lines if line.startswith("✓")]
    assert len({line.index("Guaranteed") for line in shown}) == 1
    ends = {line.index(" CPU") for line in shown[:3]}
    assert len(ends) == 1
    marks = {line[line.index("Guaranteed") + 10 :][:4] for line in shown}
    assert marks == {"   a", "   b", "   c", "   ·"}


@pytest.mark.parametrize("width", [90, 140])
def test_what_they_have_besides_stands_beside_where_there_is_room(width: int) -> None:
    extra = "memory 48 GiB, hugepages-1Gi 8 GiB on NUMA nodes 0-1"
    lines = render_plan(plan(pod("a", "1-4", extras=(extra,))), Style(width)).splitlines()
    (line,) = [line for line in lines if "✓" in line]
    assert (extra in line) is (width == 140)
    assert any(extra in line for line in lines)


@pytest.mark.parametrize("count", [1, 17, 40, 100, 250])
@pytest.mark.parametrize("each", [False, True])
def test_pages_are_neither_towers_nor_ribbons(count: int, each: bool) -> None:
    names = (f"service{'abcdefghij'[n % 10]}{n}" for n in range(count))
    pods = [pod(name, str(n) if n < 128 else "") for n, name in enumerate(names)]
    width, height = size(plan(*pods, each=each))
    assert width <= 2060
    assert 0.7 <= width / height <= 2.4


def test_seventeen_replicas_take_the_room_of_one_row() -> None:
    few = size(plan(*replicas(1)))
    many = size(plan(*replicas(17)))
    assert many[0] * many[1] <= few[0] * few[1] * 1.4


def test_text_stays_on_the_page() -> None:
    pods = [
        pod("a" * 70, "1-9,11,13,15,17,19,21,23-40"),
        pod("b" * 200, reason="OutOfcpu"),
        *replicas(1),
    ]
    root = fromstring(render_plan_svg(plan(*pods)))
    assert_inside(root)
    width = float(root.attrib["width"])
    for text in root.iter(f"{SVG}text"):
        assert _right(text) <= width


def _right(text: Element) -> float:
    """About where a text ends; half as wide again as narrow letters."""
    long = len(text.text or "") * float(text.attrib["font-size"]) * 0.5
    return float(text.attrib["x"]) + {None: long, "middle": long / 2}.get(
        text.get("text-anchor"), 0
    )


@settings(max_examples=40, deadline=None)
@given(plans(), st.integers(20, 220), st.booleans())
def test_every_pod_is_named_or_counted(view: PlanView, width: int, each: bool) -> None:
    lines = render_plan(view, Style(width)).splitlines()
    assert all(cell_width(line) <= width for line in lines)
    rows = entries(view.pods, each=each)
    assert sum(len(row.pods) for row in rows) == len(view.pods)


def test_stripes_end_before_what_is_written_on_them() -> None:
    root = fromstring(render_plan_svg(plan(*replicas(17))))
    plates = set()
    for cell in root.iter(f"{SVG}g"):
        square = cell.find(f"{SVG}rect")
        if square is None or not cell.findall(f"{SVG}text"):
            continue
        filled = square.attrib["fill"]
        striped = cell.find(f"{SVG}path") is not None
        for text in cell.iter(f"{SVG}text"):
            assert text.attrib.get("stroke") == (filled if striped else None)
            assert text.attrib.get("paint-order") == ("stroke" if striped else None)
            plates.add(striped)
    assert plates == {True, False}


@pytest.mark.parametrize("width", [64, 80, 120, 200])
@pytest.mark.parametrize("extras", [(), ("memory 1 GiB on NUMA node 0",)])
def test_a_long_list_has_heads_above_its_columns(width: int, extras: tuple[str, ...]) -> None:
    pods = [pod(f"p-{number}", str(number), extras=extras) for number in range(9)]
    lines = render_plan(plan(*pods, each=True), Style(width)).splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("  pod ")]
    head, row = lines[at : at + 2]
    marked = {"pod": "default/p-0", "container": "app ", "QoS": "Guaranteed", "CPUs": "0  1 CPU"}
    marked |= {"besides": extras[0]} if extras and "memory" in row else {}
    for name, first in marked.items():
        assert head.index(name) == row.index(first), name
    assert "  pod " not in render_plan(plan(*pods[:8]), Style(width))
