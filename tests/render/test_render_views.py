"""Topologies, comparisons and explanations as text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.boxes import CellState, Level, Place
from pinfold.render.compare import (
    CompareView,
    align_owners,
    changed_cpus,
    pod_changes,
    render_compare,
    render_compare_svg,
)
from pinfold.render.explain_text import (
    ContainerExplanation,
    ExplainView,
    HintRow,
    ProviderHints,
    render_explain,
)
from pinfold.render.node_map import NodeMap, Owner, build_node_map
from pinfold.render.plan_view import ContainerRow, PlanView, PodRow, summary_facts
from pinfold.render.terminal import Depth, Style, cell_width
from pinfold.render.text import render_plan
from pinfold.render.topology_text import render_topology
from pinfold.render.topology_view import (
    KindRow,
    NumaRow,
    TopologyView,
    binary_size,
    hugepage_text,
)
from tests.roots import DATA
from tests.scenes.pictures import ANSI, machine, names, node_maps, plans

GOLDEN = DATA / "render"


def hybrid() -> TopologyView:
    """Two P cores with two threads, four E cores, one of them offline, one unseen."""
    places = [
        *(Place(cpu, cpu // 2 * 2, 0, 0, 0, "performance") for cpu in range(4)),
        Place(4, 4, 0, 0, 0, "efficiency"),
        Place(5, 5, 0, 0, 0, "efficiency", isolated=True),
        Place(6, 6, 0, 0, 0, "efficiency", seen=False),
        Place(7, online=False),
    ]
    details = {(Level.NUMA, 0): "16 GiB", (Level.L3, 0): "24 MiB"}
    return TopologyView(
        "Example hybrid CPU",
        build_node_map(places, details=details, memory_only=["NUMA node 1 · memory only · 8 GiB"]),
        (("sockets", "1"), ("NUMA nodes", "2"), ("cores", "5"), ("threads", "7")),
        (
            NumaRow(0, CPUSet(range(7)), 16 * 2**30, {2**21: (512, 500), 2**30: (0, 0)}),
            NumaRow(1, CPUSet(), 8 * 2**30, {}, "CXL"),
        ),
        (0, 1),
        {0: (10, 20), 1: (20, 10)},
        (KindRow("performance", CPUSet(range(4))), KindRow("efficiency", CPUSet(range(4, 7)))),
        CPUSet([7]),
        CPUSet([5]),
        CPUSet([6]),
        ("uncore caches: none, the cache id files are missing",),
    )


def comparison() -> CompareView:
    """One pod moves, one is refused, one is new, two stay."""
    before, after = align_owners(
        [
            Owner("web", "default/web app", CPUSet.parse("1-2,5-6")),
            Owner("feed", "trading/feed md", CPUSet([3])),
            Owner("db", "db/pg db", CPUSet([0, 4])),
        ],
        [
            Owner("new", "ml/new app", CPUSet([3])),
            Owner("db", "db/pg db", CPUSet([0, 4])),
            Owner("web", "default/web app", CPUSet.parse("1,5")),
        ],
    )
    refused = PodRow(
        "trading", "feed", "Guaranteed", admitted=False, reason="OutOfcpu", message="no CPU"
    )
    sides = []
    for owners, more in ((before, ()), (after, (refused,))):
        shared = CPUSet(range(8))
        for owner in owners:
            shared = shared - owner.cpus
        pods = [
            PodRow(
                owner.label.split("/")[0],
                owner.label.split("/")[1].split(" ")[0],
                "Guaranteed",
                admitted=True,
                containers=(ContainerRow("main", owner.cpus, exclusive=True, owner=owner.key),),
            )
            for owner in owners
        ]
        pods.append(PodRow("a", "same", "Burstable", True, (ContainerRow("c", shared),)))  # noqa: FBT003 - positional like its neighbours
        node_map = build_node_map(machine(1, 4, 2), owners, shared=shared)
        sides.append(PlanView("x", node_map, (*pods, *more), "", shared))
    return CompareView("Two configurations", "old.yaml", sides[0], "new.yaml", sides[1])


def refusal() -> ExplainView:
    """A pod that does not fit into one NUMA node."""
    return ExplainView(
        "trading/feed",
        "Guaranteed",
        admitted=False,
        policy="static · topology manager single-numa-node, scope container",
        reason="TopologyAffinityError",
        message="Resources cannot be allocated with Topology locality",
        containers=(
            ContainerExplanation(
                "md",
                "12 CPUs, 1 example.com/nic",
                (
                    ProviderHints("CPU manager", "cpu", (HintRow((0, 1), preferred=True),)),
                    ProviderHints(
                        "device manager",
                        "example.com/nic",
                        (HintRow((0,), preferred=True), HintRow((0, 1), preferred=False)),
                    ),
                    ProviderHints("memory manager", "memory", (), "no preference"),
                    ProviderHints("device manager", "example.com/gpu"),
                ),
                HintRow((0, 1), preferred=False),
                "12 CPUs do not fit in one NUMA node: node 0 has 7 free, node 1 has 8",
                CPUSet([1, 2, 3]),
                ("took 2 whole cores on NUMA node 0", "took 1 thread of partly used core 5"),
            ),
        ),
        remedies=("request 8 CPUs or fewer", "topologyManagerPolicy: best-effort"),
    )


PICTURES = {
    "topology-80.txt": lambda: render_topology(hybrid(), Style(80)),
    "topology-44.txt": lambda: render_topology(hybrid(), Style(44)),
    "compare-80.txt": lambda: render_compare(comparison(), Style(80)),
    "compare-120.txt": lambda: render_compare(comparison(), Style(120)),
    "explain-80.txt": lambda: render_explain(refusal(), Style(80)),
    "explain-40-ascii.txt": lambda: render_explain(refusal(), Style(40, ascii_only=True)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_looks_as_it_was_approved(name: str) -> None:
    assert PICTURES[name]() == (GOLDEN / name).read_text(encoding="utf-8")


def test_only_what_changed_is_told() -> None:
    view = comparison()
    changes, unchanged = pod_changes(view)
    assert [change.name for change in changes] == ["default/web", "trading/feed", "ml/new"]
    assert unchanged == 2
    assert changes[1].after == ("✗ OutOfcpu: no CPU",)
    assert str(changed_cpus(view)) == "2-3,6"


def reserving(reserved: str, shared: str, owned: str = "") -> PlanView:
    """A plan of four CPUs."""
    owners = [Owner("a", "default/a main", CPUSet.parse(owned))] if owned else []
    pool, kept = CPUSet.parse(shared), CPUSet.parse(reserved)
    node_map = build_node_map(machine(1, 4, 1), owners, shared=pool, reserved=kept)
    return PlanView("x", node_map, (), "", pool, kept)


@pytest.mark.parametrize(
    ("before", "after", "legend"),
    [
        (
            reserving("0", "0-3"),
            reserving("0", "0-2", "3"),
            " ·  shared pool 3 → 2    blank  unchanged",
        ),
        (
            reserving("0", "0-3"),
            reserving("1", "0-3"),
            " ·  shared pool 3    R  reserved 1    blank",
        ),
        (reserving("", "", "0-3"), reserving("0-3", "0-3"), " R  reserved 0 → 4\n"),
        (
            reserving("0", "0", "1-2"),
            reserving("0", "0", "1-3"),
            "online 1 → 0    blank  unchanged",
        ),
    ],
)
def test_the_legend_is_that_of_the_maps(before: PlanView, after: PlanView, legend: str) -> None:
    text = render_compare(CompareView("t", "a", before, "b", after), Style(80))
    assert legend in text
    assert ("R  reserved" in text) == ("R  reserved" in legend)
    assert ("blank" in text) == ("blank" in legend)


def test_a_comparison_tells_policies_legend_and_differences() -> None:
    sides = [replace(reserving(at, "0-3"), subtitle=f"policy {at}") for at in "01"]
    view = CompareView("t", "a", sides[0], "b", sides[1], differences=("b has one gate more",))
    svg = render_compare_svg(view)
    for told in ("a: policy 0", "b: policy 1", "b has one gate more", "b after a", "unchanged"):
        assert told in render_compare(view, Style(80))
        assert f">{told}<" in svg or f">• {told}<" in svg


def restarting(pod: str, width: int) -> str:
    """A pod in whose container's cell the important words come last."""
    rows = (
        ContainerRow("redis", CPUSet([1]), kind="1 restart"),
        ContainerRow("redis-exporter", CPUSet([1]), kind="init, exit 12, 3 restarts"),
    )
    view = reserving("0", "0-3")
    pods = (PodRow("default", pod, "Guaranteed", admitted=True, containers=rows),)
    return render_plan(replace(view, pods=pods), Style(width))


@pytest.mark.parametrize("width", [20, 30, 60, 64, 80, 120])
@pytest.mark.parametrize("pod", ["db", "a-rather-long-name-of-a-pod-7d9f8b6c5-x2x4z"])
def test_how_a_container_is_doing_is_not_cut(pod: str, width: int) -> None:
    text = restarting(pod, width)
    assert "exit 12" in " ".join(text.split())
    assert "…" not in text
    assert_fits(text, Style(width))


def test_short_names_of_pods_leave_room_for_their_containers() -> None:
    assert "✓ default/db  redis (1 restart) " in restarting("db", 80)


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (reserving("0", "0-3"), "4 CPUs, of them 1 reserved"),
        (reserving("0", "0", "1-3"), "1 CPU, reserved"),
        (reserving("0-1", "0-1", "2-3"), "2 CPUs, all reserved"),
        (reserving("0", "1-3"), "3 CPUs"),
        (reserving("0-3", "", "0-3"), "0 CPUs"),
    ],
)
def test_the_shared_pool_tells_what_the_map_draws_apart(view: PlanView, told: str) -> None:
    assert next(summary_facts(view))[2] == told


def test_equal_plans_have_no_changes() -> None:
    same = comparison()
    view = CompareView("t", "a", same.before, "b", same.before)
    assert changed_cpus(view) == CPUSet()
    text = render_compare(view, Style(80))
    assert "0 pods changed, 4 unchanged" in text
    assert "╭" not in text


def test_owners_keep_their_colour_on_both_sides() -> None:
    view = comparison()
    indices = [
        {key: owner.index for key, owner in side.node_map.owners.items()}
        for side in (view.before, view.after)
    ]
    assert indices[0]["web"] == indices[1]["web"]
    assert indices[0]["db"] == indices[1]["db"]
    assert indices[1]["new"] not in indices[0].values()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (65536, "64 KiB"),
        (2**21, "2 MiB"),
        (134894530560, "126 GiB"),
        (int(1.5 * 2**30), "1.5 GiB"),
        (3 * 2**40, "3 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert binary_size(count) == text


def test_hugepages() -> None:
    assert hugepage_text({2**30: (4, 1), 2**21: (8, 8), 2**16: (0, 0)}) == (
        "8 x 2 MiB (8 free), 4 x 1 GiB (1 free)"
    )
    assert hugepage_text({}) == "none"


def assert_fits(text: str, style: Style) -> None:
    plain = ANSI.sub("", text)
    assert style.depth != "none" or plain == text
    assert not style.ascii_only or plain.isascii()
    for line in plain.split("\n"):
        assert cell_width(line) <= style.width


styles = st.builds(Style, st.integers(20, 200), st.sampled_from(["none", "256"]), st.booleans())


@settings(max_examples=40, deadline=None)
@given(node_maps(), names, st.integers(0, 40), styles)
def test_topologies_fit(node_map: NodeMap, name: str, nodes: int, style: Style) -> None:
    offline = CPUSet(c.cpu for c in node_map.cells() if c.state is CellState.OFFLINE)
    view = TopologyView(
        name,
        node_map,
        ((name, "2"),),
        tuple(NumaRow(n, CPUSet(range(n)), n << 30, {2**21: (n, 0)}, name) for n in range(nodes)),
        tuple(range(nodes)),
        {n: tuple(range(10, 10 + nodes)) for n in range(nodes)},
        (KindRow(name, CPUSet([1])),),
        offline=offline,
        kubelet_notes=(name,),
    )
    assert_fits(render_topology(view, style), style)


@settings(max_examples=40, deadline=None)
@given(plans(), plans(), names, styles)
def test_comparisons_fit(before: PlanView, after: PlanView, name: str, style: Style) -> None:
    assert_fits(render_compare(CompareView(name, name, before, "b", after), style), style)


hints = st.builds(
    HintRow, st.none() | st.lists(st.integers(0, 64), unique=True).map(tuple), st.booleans()
)
providers = st.builds(ProviderHints, names, names, st.lists(hints, max_size=20).map(tuple), names)
containers = st.builds(
    ContainerExplanation,
    names,
    names,
    st.lists(providers, max_size=3).map(tuple),
    st.none() | hints,
    names,
    st.none() | st.sets(st.integers(0, 500)).map(CPUSet),
    st.lists(names, max_size=3).map(tuple),
)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        ExplainView,
        names,
        names,
        st.booleans(),
        names,
        st.none() | names,
        st.none() | names,
        st.lists(containers, max_size=3).map(tuple),
        st.lists(names, max_size=3).map(tuple),
    ),
    styles,
)
def test_explanations_fit(view: ExplainView, style: Style) -> None:
    assert_fits(render_explain(view, style), style)


def test_a_dumb_pipe_gets_plain_text() -> None:
    style = Style.detect({}, is_tty=False, encoding="ascii")
    assert re.fullmatch(r"[\n -~]*", render_explain(refusal(), style))
    depths: list[Depth] = ["16", "256", "truecolor"]
    for depth in depths:
        assert ANSI.sub("", render_explain(refusal(), Style(80, depth))).splitlines()[0] == (
            "✗ trading/feed"
        )
