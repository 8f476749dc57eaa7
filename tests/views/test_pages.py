"""Pages that need no server: what they hold, and how much of it."""

from __future__ import annotations

from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.render.compare import CompareView, align_owners, told_changes
from pinfold.render.node_map import Owner, build_node_map
from pinfold.render.nodes import NodesView, PlacedRow
from pinfold.render.plan_view import ContainerRow, PlanView, PodRow
from pinfold.views.pages import MOST_NODES, MOST_PODS, compare_page, nodes_page, plan_page
from tests.scenes.pictures import example, machine


def comparison() -> CompareView:
    """One pod moves, one is refused on the second side."""
    before, after = align_owners(
        [Owner("a/web/app", "a/web app", CPUSet([1, 5])), Owner("a/db/pg", "a/db pg", CPUSet([3]))],
        [Owner("a/web/app", "a/web app", CPUSet([2, 6]))],
    )
    sides = []
    for owners in (before, after):
        rows = [
            PodRow(
                "a",
                owner.key.split("/")[1],
                "Guaranteed",
                admitted=True,
                containers=(
                    ContainerRow("app", owner.cpus, exclusive=True, owner=owner.key),
                    ContainerRow("log", CPUSet([7])),
                ),
            )
            for owner in owners
        ]
        shared = CPUSet(range(8)) - CPUSet.union_of(owner.cpus for owner in owners)
        node_map = build_node_map(machine(1, 4, 2), owners, shared=shared)
        sides.append(PlanView("side", node_map, tuple(rows), shared=shared))
    refused = PodRow("a", "db", "Guaranteed", admitted=False, reason="OutOfcpu", message="none")
    last = replace(sides[1], pods=(*sides[1].pods, refused))
    return CompareView("node", "one.yaml", sides[0], "two.yaml", last, differences=("newer",))


def test_a_comparison_has_both_nodes_and_what_changes() -> None:
    page = compare_page(comparison(), ({"a/web": ["first"]}, {"a/web": ["second"]}))
    assert [scene.marked for scene in page.scenes] == ["1-3,5-6", "1-3,5-6"]
    assert [scene.pods[0].why for scene in page.scenes] == [("first",), ("second",)]
    assert len({scene.owners[0].paint for scene in page.scenes}) == 1
    assert page.changes is not None
    assert page.changes[:2] == (
        "2 pods changed, 0 unchanged",
        "Pods: 2 admitted → 1 admitted, 1 rejected",
    )
    assert page.changes[-2:] == (  # of a pod what differs, and nothing else
        "a/web: app  [a] 1,5 → app  [a] 2,6",
        "a/db: app  [b] 3; log  shared pool → ✗ OutOfcpu: none",
    )
    assert tuple(told_changes(comparison())) == page.changes
    assert page.details == {"two.yaml after one.yaml": "newer"}


def test_a_plan_that_is_compared_with_nothing_says_nothing_of_changes() -> None:
    assert plan_page(example()).changes is None
    assert nodes_page(NodesView((example(),), (), ())).changes is None


def test_of_more_pods_than_a_browser_can_draw_those_with_cpus_are_listed_first() -> None:
    view = example()
    many = tuple(PodRow("a", f"p{n}", "BestEffort", admitted=True) for n in range(3 * MOST_PODS))
    (scene,) = plan_page(replace(view, pods=(*many, *view.pods))).scenes
    assert len(scene.pods) == MOST_PODS
    names = [pod.name for pod in scene.pods]
    assert [pod.name for pod in view.pods if pod.name != "report"] == names[-5:]
    assert f"{2 * MOST_PODS + 6:,} more pods are not listed here" in scene.notes


def test_it_says_of_whom_it_does_not_tell_why() -> None:
    (scene,) = plan_page(example(), {"default/web": ["because"]}).scenes
    assert scene.notes[-1] == "the reasons of 5 pods are left out here: pinfold explain has them"


def test_several_nodes_with_the_pods_that_are_on_none() -> None:
    rows = (
        PlacedRow("a/web", "n1", admitted=True),
        PlacedRow("a/big", "", admitted=False, outcome=("OutOfcpu", "2 nodes: OutOfcpu (n1, n2)")),
    )
    view = NodesView((example(),) * (MOST_NODES + 2), ("idle",), rows, notes=("a note",))
    page = nodes_page(view)
    assert len(page.scenes) == MOST_NODES
    assert page.title == "43 nodes: 1 admitted, 1 on no node"
    assert page.details == {
        "Not admitted": "a/big\n  OutOfcpu\n  2 nodes: OutOfcpu (n1, n2)",
        "Pods and their nodes": "a/web  n1",
        "Not drawn: 2 nodes": "Node example\nNode example",
        "Without pods": "idle",
        "Notes": "a note",
    }
