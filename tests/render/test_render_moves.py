"""A plan of moves in words, as text of every width, and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from pinfold import CPUSet, NodeConfig, Planner, parse_short_form
from pinfold.admission.moves import move_plan_document, rebalance_document
from pinfold.core.moves.owners import MoveOptions, Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.resize_wish import ResizeWish
from pinfold.core.moves.steps import undo
from pinfold.documents.move_plan import MovePlan
from pinfold.planning.plan_document import plan_document
from pinfold.render.move_words import headline, made, plan_facts, step_texts
from pinfold.render.moves import MovesView, render_moves, render_moves_svg
from pinfold.render.node_map import Owner as Drawn
from pinfold.render.node_map import build_node_map, mark, with_owners
from pinfold.render.terminal import Style, cell_width
from pinfold.state.ledger import Bounds, Ledger
from pinfold.views.moves import moves_view
from pinfold.views.plan import plan_view, planned_on
from tests.roots import ROOT
from tests.scenes.planned_pods import planned_pod

GOLDEN = ROOT / "tests" / "data" / "render"
A, B = Owner("ua", "app"), Owner("ub", "app")
NAMES = {"ua": "default/a", "ub": "trading/b"}


def cpus(text: str) -> CPUSet:
    return CPUSet.parse(text)


def document(*wishes: Wish, written: int = 0, why: str = "rebalance", **options: Any) -> MovePlan:
    """Of a machine with 8 CPUs, where a has 1-2 and b has 3-4."""
    bounds = Bounds(cpus("0-7"), cpus("0"))
    held = {"ua": {"app": cpus("1-2")}, "ub": {"app": cpus("3-4")}}
    ledger = Ledger("static", cpus("0,5-7"), held, bounds)
    plan = plan_moves(ledger, wishes, MoveOptions(**options))
    return move_plan_document(plan, why, NAMES, written=written)


def rebalanced(**more: Any) -> MovesView:
    """A node on which a container has grown into a second NUMA node."""
    usual: dict[str, Any] = {"cpu_manager_policy": "static", "reserved_system_cpus": CPUSet([0])}
    planner = Planner(parse_short_form("2s4c2t"), NodeConfig(**usual | more))
    plan = planner.plan([planned_pod("a", app=4), planned_pod("b", app=2)])
    plan = planner.resize(plan, ResizeWish("a", None, 6))
    names = {one.pod.uid: f"{one.pod.namespace}/{one.pod.name}" for one in plan.pods}
    told = rebalance_document(planner.rebalance(plan), "rebalance", names)
    return moves_view(told, plan_view(plan_document(plan), planned_on(plan)))


def test_each_step_is_a_sentence() -> None:
    mems, then = cpus("0"), cpus("1")
    told = document(
        Wish(A, cpus("5-6"), mems=then, mems_before=mems, migrate=True, delay=2.5),
        Wish(B, cpus("4,7")),
    )
    assert list(step_texts(told)) == [
        "take 5-7 out of the shared pool, for default/a app (5-6) and trading/b app (7)",
        "let default/a app run on 1-2,5-6 and use memory of NUMA nodes 0-1",
        "let trading/b app run on 3-4,7",
        "tell default/a app that it will have 5-6, 2.5 s before any is taken",
        "tell trading/b app that it will have 4,7",
        "wait 2.5 s, or until default/a app acknowledges it",
        "take 1-2 from default/a app, which runs on 5-6 then",
        "take 3 from trading/b app, which runs on 4,7 then",
        "move the memory of default/a app from NUMA nodes 0-1 to NUMA node 1",
        "give 1-3 back to the shared pool",
    ]
    assert headline(told) == "2 containers move, 3 CPUs anew, memory of 1 moved"
    assert list(plan_facts(told)) == [("Shared pool", "0,5-7 → 0-3", "")]


def test_a_circle_is_a_detour() -> None:
    told = document(Wish(A, cpus("3-4")), Wish(B, cpus("1-2")))
    assert headline(told) == "2 containers move, 4 CPUs anew, 1 detour"


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("rebalance", "nothing moves: no better placement can be had"),
        ("make-room", "nothing has to move: there is room"),
        ("resize", "nothing moves"),
    ],
)
def test_nothing_moves(why: str, text: str) -> None:
    told = document(why=why)
    assert headline(told) == text
    assert list(step_texts(told)) == []


def test_of_a_resize_and_of_a_pod_without_a_name() -> None:
    told = document(Wish(A, cpus("1-2,5")), why="resize")
    assert headline(told) == "1 container is resized, 1 CPU anew"
    nameless = move_plan_document(plan_of(A), "rebalance")
    assert next(step_texts(nameless)) == "take 5 out of the shared pool, for ua app"


def plan_of(owner: Owner) -> Any:
    bounds = Bounds(cpus("0-7"), cpus("0"))
    ledger = Ledger("static", cpus("0,5-7"), {"ua": {"app": cpus("1-4")}}, bounds)
    return plan_moves(ledger, [Wish(owner, cpus("1-3,5"))])


def test_what_is_on_record_but_the_last_is_made() -> None:
    assert [made(document(Wish(A, cpus("5-6")), written=n)) for n in (0, 1, 3)] == [0, 0, 2]


def test_the_way_back_says_so() -> None:
    back = move_plan_document(undo(plan_of(A), 2), "rebalance", NAMES)
    assert back.why == "undo"
    assert list(step_texts(back))[-1] == "give 5 back to the shared pool"


def test_text_tells_who_moves_and_what_is_better() -> None:
    text = render_moves(rebalanced(), Style(80, "none"))
    for part in (
        "1 container moves, 5 CPUs anew",
        " a  default/a app\n    1-5,8 → 8-13\n",
        "  1. take 9-13 out of the shared pool, for default/a app\n",
        "NUMA nodes beyond need     1 → 0  of all containers together\n",
        "Shared pool                0,9-15 → 0-5,14-15\n",
        "\nbefore\n",
        "\nafter\n",
    ):
        assert part in text
    assert "\n\n\n" not in text


def test_where_nothing_moves_there_is_one_map() -> None:
    view = rebalanced(reserved_system_cpus=cpus("0,9-15"))
    text = render_moves(view, Style(80, "none"))
    assert "as it is" in text
    assert "no better placement can be had" in text
    assert "after" not in text.splitlines()
    svg = render_moves_svg(view)
    assert "outlined" not in svg
    assert "s-ink" not in svg


@pytest.mark.parametrize("width", [20, 40, 79, 100, 160])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for line in render_moves(rebalanced(), Style(width, "none")).splitlines():
        assert cell_width(line) <= width


def test_maps_stand_side_by_side_where_there_is_room() -> None:
    text = render_moves(rebalanced(), Style(120, "none"))
    assert any("before" in line and "after" in line for line in text.splitlines())


def test_the_picture_looks_as_it_was_approved() -> None:
    svg = render_moves_svg(rebalanced(scale_down_grace_period=2.0))
    assert svg == (GOLDEN / "moves.svg").read_text(encoding="utf-8")
    ET.fromstring(svg)  # noqa: S314 - our own output
    assert svg.count("stroke-width") == 10, "five CPUs are left, and five are got"


def test_marks_and_other_owners_of_a_map() -> None:
    topology = Planner(parse_short_form("1s4c1t"), NodeConfig()).view.topology
    first = Drawn("a", "a", cpus("0-1"))
    drawn = build_node_map(topology, [first], shared=cpus("2-3"))
    assert [cell.marked for cell in mark(drawn, cpus("1,3")).cells()] == [False, True, False, True]
    init = Drawn("i", "i", cpus("1-2"), kind="init")
    later = with_owners(drawn, [init, Drawn("a", "a", cpus("2"))])
    states = [(cell.owner, cell.state.value) for cell in later.cells()]
    assert states == [
        (None, "shared pool"),
        ("i", "exclusive"),
        ("a", "exclusive"),
        (None, "shared pool"),
    ]
