"""Machines and plans to be drawn, and what is read out of the pictures."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from hypothesis import strategies as st

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.boxes import CellState, Level, Place
from pinfold.render.node_map import (
    NodeMap,
    Owner,
    build_node_map,
    number_owners,
)
from pinfold.render.plan_view import ContainerRow, PlanView, PodRow

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def machine(sockets: int, cores: int, threads: int) -> list[Place]:
    """Sibling threads numbered in the second half; each socket one NUMA node with one L3."""
    total = sockets * cores
    return [
        Place(core + thread * total, core, core // cores * cores, core // cores, core // cores)
        for core in range(total)
        for thread in range(threads)
    ]


def example() -> PlanView:
    """Two sockets of 8 SMT cores, three owners, two refusals, a split core."""
    owners = number_owners(
        [
            Owner("web", "default/web app", CPUSet.parse("1-2,17-18")),
            Owner("feed", "trading/feed-handler md", CPUSet.parse("8-11,24-27")),
            Owner("odd", "batch/odd main", CPUSet.parse("3")),
        ]
    )
    cpus = CPUSet(range(32))
    reserved = CPUSet.parse("0,16")
    shared = cpus
    for owner in owners:
        shared = shared - owner.cpus
    node_map = build_node_map(
        machine(2, 8, 2),
        owners,
        shared=shared,
        reserved=reserved,
        details={(Level.NUMA, 0): "64 GiB", (Level.NUMA, 1): "64 GiB"},
        memory_only=["NUMA node 2 · memory only · 128 GiB"],
    )
    pods = (
        PodRow(
            "default",
            "web",
            "Guaranteed",
            admitted=True,
            containers=(
                ContainerRow("app", owners[0].cpus, exclusive=True, owner="web"),
                ContainerRow("proxy", shared, kind="sidecar"),
            ),
        ),
        PodRow(
            "trading",
            "feed-handler",
            "Guaranteed",
            admitted=True,
            containers=(ContainerRow("md", owners[1].cpus, exclusive=True, owner="feed"),),
        ),
        PodRow(
            "default",
            "three",
            "Guaranteed",
            admitted=False,
            reason="SMTAlignmentError",
            message="SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2",
        ),
        PodRow(
            "batch",
            "odd",
            "Guaranteed",
            admitted=True,
            containers=(ContainerRow("main", owners[2].cpus, exclusive=True, owner="odd"),),
        ),
        PodRow("batch", "report", "Burstable", admitted=True),
        PodRow(
            "ml",
            "train",
            "Guaranteed",
            admitted=False,
            reason="TopologyAffinityError",
            message="Resources cannot be allocated with Topology locality",
        ),
    )
    return PlanView(
        "Node example",
        node_map,
        pods,
        "static policy · topology manager single-numa-node",
        shared,
        reserved,
        cpus - reserved,
        ("kubelet.yaml: unknown field cpuManagerPolicyy",),
    )


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@st.composite
def node_maps(draw: st.DrawFn) -> NodeMap:
    """Machines whose sockets, NUMA nodes and caches need not nest, with owners of any CPUs."""
    count = draw(st.integers(1, 48))
    ids = draw(
        st.lists(st.integers(0, 1200), min_size=count, max_size=count, unique=True)
        | st.just(list(range(count)))
    )
    ids.sort()
    threads = draw(st.sampled_from([1, 2, 4, 8]))
    group = st.none() | st.integers(1, 12)
    per = [draw(group) for _ in range(3)]
    shuffled = draw(st.booleans())
    places = []
    for at, cpu in enumerate(ids):
        core = at // threads
        nest = [None if size is None else core // size for size in per]
        if shuffled:
            nest[1] = draw(st.integers(0, 3))
        online = draw(st.integers(0, 9)) > 0
        place = Place(
            cpu,
            ids[core * threads] if online else None,
            nest[2],
            nest[1],
            nest[0],
            draw(st.sampled_from([None, "P", "E"])) if shuffled else None,
            online=online,
            seen=draw(st.integers(0, 9)) > 0,
        )
        places.append(place)
    usable = [place.cpu for place in places if place.online and place.seen]
    taken = draw(st.lists(st.integers(0, 5), min_size=len(usable), max_size=len(usable)))
    labels = draw(st.lists(names, min_size=5, max_size=5))
    owners = [
        Owner(
            str(number),
            labels[number - 1],
            CPUSet(c for c, t in zip(usable, taken, strict=True) if t == number),
        )
        for number in range(1, 6)
    ]
    free = CPUSet(cpu for cpu, owner in zip(usable, taken, strict=True) if owner == 0)
    return build_node_map(
        places,
        number_owners(owners),
        shared=free,
        reserved=CPUSet(list(free)[:2]),
        memory_only=draw(st.lists(names, max_size=2)),
        details={(Level.SOCKET, 0): draw(names), (Level.NUMA, 1): draw(names)},
    )


@st.composite
def plans(draw: st.DrawFn) -> PlanView:
    """Plans with hostile names everywhere."""
    node_map = draw(node_maps())
    owners = [owner for owner in node_map.owners.values() if owner.cpus]
    pods = [
        PodRow(
            draw(names),
            owner.label,
            draw(st.sampled_from(["Guaranteed", "Burstable", "BestEffort"])),
            admitted=True,
            containers=(ContainerRow(draw(names), owner.cpus, exclusive=True, owner=owner.key),),
        )
        for owner in owners
    ]
    pods.append(
        PodRow("a", draw(names), "", admitted=False, reason=draw(names), message=draw(names))
    )
    shared = CPUSet(cell.cpu for cell in node_map.cells() if cell.state is CellState.SHARED)
    return PlanView(draw(names), node_map, tuple(pods), draw(names), shared, notes=(draw(names),))


SVG = "{http://www.w3.org/2000/svg}"


def assert_inside(root: Element) -> None:
    """No rectangle reaches over the edge of the page."""
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rect in root.iter(f"{SVG}rect"):
        x, y = float(rect.get("x", "0")), float(rect.get("y", "0"))
        assert x >= 0
        assert y >= 0
        assert x + float(rect.attrib["width"]) <= width + 0.5
        assert y + float(rect.attrib["height"]) <= height + 0.5
