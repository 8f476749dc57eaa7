"""Moves on a ledger, and as a document from which they can be carried on."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.admission.moves import (
    MoveDocumentError,
    move_plan_document,
    move_plan_of,
    rebalance_document,
    with_claims,
)
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import MoveError, Owner, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.rebalance import plan_rebalance
from pinfold.core.moves.steps import MigrateMemory, MovePlan, after, undo
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents import move_plan as document
from tests.scenes.move_scenes import Scene, ledger_of, scenes
from tests.scenes.published_schemas import told

ANY = st.one_of(scenes(), scenes(whole_cores=True))


def planned(scene: Scene) -> MovePlan:
    try:
        return plan_moves(scene.ledger, scene.wishes, scene.options)
    except MoveError:
        return plan_moves(scene.ledger, ())


@given(ANY)
def test_every_step_is_a_sound_ledger_with_the_same_pool(scene: Scene) -> None:
    plan = planned(scene)
    for way in (plan, undo(plan, max(len(plan.steps) - 1, 0))):
        for count in range(len(way.steps) + 1):
            state = after(way, count)
            ledger = with_claims(scene.ledger, state)
            assert ledger.violations() == []
            assert ledger.default == state.pool
            if count < len(way.steps):
                assert with_claims(ledger, after(way, count + 1)).violations() == []


@given(ANY, st.data())
def test_a_plan_is_read_from_its_document_as_it_was(scene: Scene, data: st.DataObject) -> None:
    plan = planned(scene)
    written = data.draw(st.integers(0, len(plan.steps)))
    for one in (plan, undo(plan, max(written - 1, 0))):
        made = move_plan_document(one, "rebalance", {"p0": "default/web"}, written=written)
        read = msgspec.json.decode(msgspec.json.encode(made), type=document.MovePlan)
        assert move_plan_of(read) == one
        assert read.written == written
        told(made)


def test_the_document_of_an_exchange() -> None:
    a, b = Owner("a", "x"), Owner("b")
    ledger = ledger_of(7, {a: frozenset({1, 2}), b: frozenset({3, 4})})
    wishes = [
        Wish(a, CPUSet([3, 4]), delay=2),
        Wish(b, CPUSet([1, 2]), mems=CPUSet([1]), mems_before=CPUSet([0]), migrate=True),
    ]
    made = told(move_plan_document(plan_moves(ledger, wishes), "resize", {"a": "default/web"}))
    assert made["price"] == {"owners": 2, "cpus": 4, "detours": 1, "migrations": 1}
    assert [step["kind"] for step in made["steps"]] == [
        *("shrink-pool", "widen", "announce", "wait", "narrow"),
        *("widen", "announce", "narrow", "migrate-memory"),
        *("widen", "announce", "wait", "narrow", "give-back"),
    ]
    assert made["steps"][0]["claims"] == [
        {"uid": "a", "pod": "default/web", "container": "x", "cpus": "5-6"}
    ]
    assert made["owners"][1] == {
        "uid": "b",
        "pod": "",
        "container": None,
        "before": "3-4",
        "after": "1-2",
        "claims": "3-4",
        "delay": 0.0,
        "memory_before": "0",
        "memory_after": "1",
    }


def test_the_document_tells_what_became_of_the_memory() -> None:
    one = Owner("a", "x")
    wish = Wish(one, CPUSet([3]), mems=CPUSet([1]), mems_before=CPUSet([0]), migrate=True)
    plan = plan_moves(ledger_of(4, {one: frozenset({1})}), [wish])
    number = next(i for i, step in enumerate(plan.steps) if isinstance(step, MigrateMemory))
    node = document.MovedMemory(node=0, before=9, after=2)
    memory = document.MemoryMoved(seconds=0.5, moved=7, stayed=2, pinned=1, nodes=[node])
    made = told(move_plan_document(plan, "resize", memory={number: memory}))
    assert [step.get("memory") for step in made["steps"] if "memory" in step] == [
        {
            "seconds": 0.5,
            "moved": 7,
            "stayed": 2,
            "huge": 0,
            "locked": 0,
            "pinned": 1,
            "nodes": [{"node": 0, "before": 9, "after": 2}],
        }
    ]
    assert made["steps"][number]["kind"] == "migrate-memory"


def test_the_document_of_better_places_tells_how_good_they_are() -> None:
    ledger = ledger_of(8, {Owner("a", "x"): frozenset({2, 7})})
    topology = CPUTopology.from_rows((c, c - c % 2, 0, c // 4, c // 4) for c in range(8))
    made = told(rebalance_document(plan_rebalance(ledger, topology), "rebalance"))
    assert made["objective"]["levels"][0] == "numa-nodes"
    assert made["objective"]["levels"][-1] == "parked"
    assert made["objective"]["before"] == [1, 0, 1, 1, 0, 0]
    assert made["objective"]["after"] == [0, 0, 0, 0, 0, 0]
    assert made["price"]["owners"] == 1


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (document.MoveStep(kind="lend"), "a step 'lend' that this version cannot make"),
        (document.MoveStep(kind="narrow"), "start the version that planned it"),
        (document.MoveStep(kind="give-back"), "is missing"),
    ],
)
def test_a_step_of_another_version_is_refused(step: document.MoveStep, words: str) -> None:
    plan = move_plan_document(plan_moves(ledger_of(2, {}), ()), "resize")
    with pytest.raises(MoveDocumentError, match=words):
        move_plan_of(msgspec.structs.replace(plan, steps=[step]))
