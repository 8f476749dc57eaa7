"""Moves: every plan is carried out, stopped, resumed and undone on a node that watches itself."""

from __future__ import annotations

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from pinfold.admission.moves import with_claims
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import MoveError, MoveOptions, Owner, Refusal, Wish
from pinfold.core.moves.planner import plan_moves
from pinfold.core.moves.soundness import unsound
from pinfold.core.moves.steps import (
    Announce,
    GiveBack,
    MigrateMemory,
    MovePlan,
    Narrow,
    ShrinkPool,
    Wait,
    Widen,
    after,
    stopped,
    undo,
)
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.move_scenes import Scene, ledger_of, owners_of, scenes
from tests.scenes.move_simulator import Node

A, B, C = Owner("a", "x"), Owner("b", "x"), Owner("c", "x")


def cpus(text: str) -> CPUSet:
    return CPUSet.parse(text)


def planned(scene: Scene) -> MovePlan:
    plan, refused = attempt(scene)
    if refused is not None:
        assert refused.refusal in {Refusal.NO_FREE_CPU, Refusal.POOL_EMPTY}
        if refused.refusal is Refusal.NO_FREE_CPU and not scene.options.whole_cores:
            spare = frozenset(scene.ledger.default - scene.ledger.limits.reserved)
            assert not spare.difference(*scene.goal().values()), "one free CPU resolves any circle"
    if plan is None:
        reject()
    return plan


def attempt(scene: Scene) -> tuple[MovePlan | None, MoveError | None]:
    try:
        return plan_moves(scene.ledger, scene.wishes, scene.options), None
    except MoveError as error:
        return None, error


def fulfilled(scene: Scene, node: Node) -> None:
    assert node.kernel == node.claims == scene.goal()
    assert node.pool == node.recorded_pool == node.everything.difference(*scene.goal().values())


def as_before(scene: Scene, node: Node) -> None:
    assert node.kernel == node.claims == owners_of(scene.ledger)
    assert node.pool == node.recorded_pool == frozenset(scene.ledger.default)


ANY = st.one_of(scenes(), scenes(whole_cores=True))


@given(ANY)
def test_wishes_are_fulfilled_and_no_cpu_ever_has_two_owners(scene: Scene) -> None:
    node = scene.node()
    node.run(planned(scene))
    fulfilled(scene, node)


@given(ANY, st.data())
def test_every_plan_is_sound_and_so_are_its_ways_back(scene: Scene, data: st.DataObject) -> None:
    plan = planned(scene)
    assert unsound(plan) == ""
    back = undo(
        plan, data.draw(st.integers(0, sum(not isinstance(s, GiveBack) for s in plan.steps)))
    )
    assert unsound(back) == ""
    for refused, step in enumerate(back.steps):
        if isinstance(step, Widen | Narrow):
            assert unsound(stopped(back, refused, refused + 1)) == ""


@given(ANY)
def test_nothing_moves_where_everybody_has_what_he_wishes_for(scene: Scene) -> None:
    wishes = [Wish(o, CPUSet(held), delay=5) for o, held in owners_of(scene.ledger).items()]
    assert plan_moves(scene.ledger, wishes, scene.options).steps == ()


@given(ANY, st.data())
def test_a_plan_that_was_stopped_anywhere_is_resumed(scene: Scene, data: st.DataObject) -> None:
    plan = planned(scene)
    written = data.draw(st.integers(0, len(plan.steps)))
    for made in {max(written - 1, 0), written}:
        for crash in (False, True):
            node = scene.node()
            node.run(plan, made)
            if written:
                node.write(plan, written)
            if crash:
                node.restart(plan, written)
            node.run(plan, written=written)
            fulfilled(scene, node)


@given(ANY, st.data())
def test_a_plan_is_undone_from_everywhere_before_its_end(scene: Scene, data: st.DataObject) -> None:
    plan = planned(scene)
    last = sum(not isinstance(step, GiveBack) for step in plan.steps)
    written = data.draw(st.integers(0, last))
    for made in {max(written - 1, 0), written}:
        node = scene.node()
        node.run(plan, made)
        if written:
            node.write(plan, written)
        back = undo(plan, written)
        stopped = data.draw(st.integers(0, len(back.steps)))
        node.run(back, stopped)
        if data.draw(st.booleans()):
            node.restart(back, stopped)
        node.run(back, written=stopped)
        as_before(scene, node)


@given(ANY, st.data())
def test_a_way_back_that_is_stopped_anywhere_leaves_everybody_with_what_he_owns(
    scene: Scene, data: st.DataObject
) -> None:
    plan = planned(scene)
    written = data.draw(st.integers(0, sum(not isinstance(s, GiveBack) for s in plan.steps)))
    node = scene.node()
    node.run(plan, written)
    back = undo(plan, written)
    at = [number for number, step in enumerate(back.steps) if isinstance(step, Widen | Narrow)]
    while at:
        refused = data.draw(st.sampled_from(at))
        step = back.steps[refused]
        assert isinstance(step, Widen | Narrow)
        node.run(back, refused)
        node.write(back, refused + 1)
        if isinstance(step, Widen) and data.draw(st.booleans()):
            node.make(back, refused)
        back = stopped(back, refused, refused + 1)
        node.write(back, 0)
        # What is refused once more ends there as well, and is no longer tried.
        left = [number for number, step in enumerate(back.steps) if isinstance(step, Narrow)]
        assert len(left) <= len(at)
        at = left if data.draw(st.booleans()) else []
    node.run(back)
    assert back.end.is_settled
    # Of whom something was refused is put where he is to be once more.
    node.restart(back, len(back.steps))
    assert node.kernel == node.claims
    assert node.pool == node.recorded_pool == node.everything.difference(*node.claims.values())


def test_nobody_goes_on_a_way_back_to_cpus_that_are_not_left() -> None:
    """Three owners in two rounds: who is not widened again does not go where he would be then."""
    owners = {A: frozenset({1, 6}), B: frozenset({2, 3}), C: frozenset({7})}
    wishes = (Wish(A, cpus("2-3")), Wish(B, cpus("1,4")), Wish(C, cpus("6")))
    for scene in (Scene(ledger_of(8, owners), wishes), Scene(ledger_of(10, owners), wishes)):
        plan = planned(scene)
        for written in range(len(plan.steps)):
            back = undo(plan, written)
            for refused, step in enumerate(back.steps):
                if isinstance(step, Widen | Narrow):
                    node = scene.node()
                    node.run(plan, written)
                    node.run(back, refused)
                    left = stopped(back, refused, refused + 1)
                    node.write(left, 0)
                    node.run(left)
                    assert left.end.is_settled


@given(ANY, st.data())
def test_a_plan_that_is_given_up_anywhere_leaves_a_ledger_to_plan_from(
    scene: Scene, data: st.DataObject
) -> None:
    plan = planned(scene)
    state = after(plan, data.draw(st.integers(0, len(plan.steps))))
    ledger = with_claims(scene.ledger, state)
    assert ledger.violations() == []
    assert ledger.default == state.pool
    again = Scene(ledger, scene.wishes, scene.options)
    node = again.node()
    node.run(planned(again))
    fulfilled(again, node)


def steps(plan: MovePlan) -> list[str]:
    return [type(step).__name__ for step in plan.steps]


def test_a_move_takes_the_new_cpus_first_and_gives_the_old_ones_back_last() -> None:
    ledger = ledger_of(8, {A: frozenset({1, 2})})
    plan = plan_moves(ledger, [Wish(A, cpus("4-5"), delay=3)])
    assert plan.steps == (
        ShrinkPool({A: cpus("4-5")}),
        Widen(A, cpus("1-2"), cpus("1-2,4-5")),
        Announce(A, cpus("1-2"), cpus("4-5"), 3),
        Wait(A, 3),
        Narrow(A, cpus("1-2,4-5"), cpus("4-5")),
        GiveBack(cpus("1-2")),
    )
    assert plan.moved == (A,)


def test_a_shrink_is_announced_and_waits() -> None:
    plan = plan_moves(ledger_of(8, {A: frozenset({1, 2, 3})}), [Wish(A, cpus("1"), delay=1.5)])
    assert steps(plan) == ["Announce", "Wait", "Narrow", "GiveBack"]
    back = undo(plan, 3)
    assert steps(back) == ["Widen", "Announce"]
    assert back.end.coming[A] == cpus("1-3")


def test_all_wait_together_on_the_way_and_back() -> None:
    owners = {A: frozenset({1}), B: frozenset({2})}
    plan = plan_moves(
        ledger_of(8, owners), [Wish(A, cpus("4"), delay=3), Wish(B, cpus("5"), delay=4)]
    )
    together = [*["Announce"] * 2, *["Wait"] * 2, *["Narrow"] * 2]
    assert steps(plan) == ["ShrinkPool", "Widen", "Widen", *together, "GiveBack"]
    assert steps(undo(plan, 3)) == [*together, "GiveBack"]


def test_a_growth_waits_for_nobody() -> None:
    plan = plan_moves(ledger_of(8, {A: frozenset({1})}), [Wish(A, cpus("1-2"), delay=9)])
    assert steps(plan) == ["ShrinkPool", "Widen", "Announce"]
    assert plan.end.is_settled


def test_a_chain_goes_from_its_free_end() -> None:
    owners = {A: frozenset({1}), B: frozenset({2}), C: frozenset({3})}
    wishes = [Wish(A, cpus("2")), Wish(B, cpus("3")), Wish(C, cpus("4"))]
    plan = plan_moves(ledger_of(5, owners), wishes)
    assert [s.owner for s in plan.steps if isinstance(s, Widen)] == [C, B, A]


def test_an_exchange_goes_over_free_cpus() -> None:
    owners = {A: frozenset({1, 2}), B: frozenset({3, 4})}
    wishes = [Wish(A, cpus("3-4")), Wish(B, cpus("1-2"))]
    plan = plan_moves(ledger_of(7, owners), wishes)
    assert [(s.owner, str(s.now)) for s in plan.steps if isinstance(s, Narrow)] == [
        (A, "5-6"),
        (B, "1-2"),
        (A, "3-4"),
    ]
    assert plan.steps[0] == ShrinkPool({A: cpus("5-6")})
    assert plan.steps[-1] == GiveBack(cpus("5-6"))


def test_an_exchange_over_one_free_cpu_goes_by_parts() -> None:
    owners = {A: frozenset({1, 2}), B: frozenset({3, 4})}
    scene = Scene(ledger_of(6, owners), (Wish(A, cpus("3-4")), Wish(B, cpus("1-2"))))
    node = scene.node()
    node.run(planned(scene))
    fulfilled(scene, node)


def test_an_exchange_without_a_free_cpu_is_refused_with_its_remedy() -> None:
    owners = {A: frozenset({1, 2}), B: frozenset({3, 4})}
    with pytest.raises(MoveError, match="no CPU is free to go aside to; end or shrink") as refused:
        plan_moves(ledger_of(5, owners), [Wish(A, cpus("3-4")), Wish(B, cpus("1-2"))])
    assert refused.value.refusal is Refusal.NO_FREE_CPU


def test_an_exchange_of_whole_cores_needs_a_whole_core() -> None:
    owners = {A: frozenset({2, 3}), B: frozenset({4, 5})}
    wishes = (Wish(A, cpus("4-5")), Wish(B, cpus("2-3")))
    topology = CPUTopology.from_rows((c, c - c % 2, 0, 0, 0) for c in range(8))
    options = MoveOptions(topology, whole_cores=True)
    taken = ledger_of(8, {**owners, C: frozenset({6})}, 2)
    with pytest.raises(MoveError, match="no CPU is free"):
        plan_moves(taken, wishes, options)
    assert plan_moves(ledger_of(8, owners, 2), wishes, options).steps


@pytest.mark.parametrize(
    ("wish", "refusal", "words"),
    [
        (Wish(C, cpus("5")), Refusal.UNKNOWN_OWNER, "no CPUs of its own; only who has some"),
        (Wish(A, cpus("")), Refusal.NO_CPU, "would have no CPU"),
        (Wish(A, cpus("3")), Refusal.TAKEN, "CPUs 3, which pod 'b', container 'x' has"),
        (Wish(A, cpus("0-1")), Refusal.OUTSIDE, "CPUs 0, which are reserved"),
        (Wish(A, cpus("5,77")), Refusal.OUTSIDE, "CPUs 77"),
        (Wish(A, cpus("6")), Refusal.OUTSIDE, "CPUs 6"),
        (Wish(A, cpus("2,5"), keep=cpus("1")), Refusal.NOT_KEPT, "to keep CPUs 1"),
        (Wish(A, cpus("2,5"), keep=cpus("5")), Refusal.NOT_KEPT, "to keep CPUs 5"),
    ],
)
def test_what_cannot_be_is_refused(wish: Wish, refusal: Refusal, words: str) -> None:
    ledger = ledger_of(8, {A: frozenset({1, 2}), B: frozenset({3})})
    with pytest.raises(MoveError, match=words) as refused:
        plan_moves(ledger, [wish], MoveOptions(avoid=cpus("6")))
    assert refused.value.refusal is refusal


def test_one_owner_has_one_wish() -> None:
    with pytest.raises(MoveError, match="two wishes"):
        plan_moves(ledger_of(4, {A: frozenset({1})}), [Wish(A, cpus("2")), Wish(A, cpus("3"))])


def test_the_last_cpu_of_the_pool_is_given_only_where_nobody_shares() -> None:
    ledger = ledger_of(3, {A: frozenset({1})}, reserved=0).with_assignment("b", "x", cpus("0"))
    wish = Wish(A, cpus("1-2"))
    with pytest.raises(MoveError, match="containers that share CPUs"):
        plan_moves(ledger, [wish])
    assert plan_moves(ledger, [wish], MoveOptions(pool_may_be_empty=True)).end.pool == cpus("")


def test_the_last_cpu_of_the_pool_is_no_way_round() -> None:
    owners = {A: frozenset({0}), B: frozenset({1})}
    wishes = (Wish(A, cpus("1")), Wish(B, cpus("0")))
    with pytest.raises(MoveError, match="no CPU is free to go aside to"):
        plan_moves(ledger_of(3, owners, reserved=0), wishes)
    scene = Scene(ledger_of(4, owners, reserved=0), wishes)
    node = scene.node()
    node.run(planned(scene))
    fulfilled(scene, node)


def test_memory_is_widened_first_and_narrowed_only_when_migration_is_asked_for() -> None:
    ledger = ledger_of(8, {A: frozenset({1})})
    wish = Wish(A, cpus("5"), mems=cpus("1"), mems_before=cpus("0"), migrate=True)
    plan = plan_moves(ledger, [wish])
    assert plan.steps[1] == Widen(A, cpus("1"), cpus("1,5"), cpus("0"), cpus("0-1"))
    assert plan.steps[-2] == MigrateMemory(A, cpus("0-1"), cpus("1"))
    assert undo(plan, len(plan.steps) - 1).end.mems == {A: cpus("0")}
    stays = plan_moves(ledger, [Wish(A, cpus("5"), mems=cpus("1"), mems_before=cpus("0"))])
    assert stays.end.mems == {A: cpus("0-1")}
    alone = Wish(A, cpus("1"), mems=cpus("1"), mems_before=cpus("0"), migrate=True)
    assert steps(plan_moves(ledger, [alone])) == ["Widen", "Announce", "MigrateMemory"]


def test_a_whole_pod_is_around_its_containers_all_the_time() -> None:
    pod, inner = Owner("a"), Owner("a", "x")
    scene = Scene(
        ledger_of(8, {pod: frozenset({1, 2, 3}), inner: frozenset({1})}),
        (Wish(pod, cpus("4-6")), Wish(inner, cpus("4"))),
    )
    plan = planned(scene)
    for written in range(len(plan.steps)):
        node = scene.node()
        back = undo(plan, written)
        for way, count in ((plan, written), (back, len(back.steps))):
            for index in range(count):
                node.write(way, index + 1)
                node.make(way, index)
                assert node.kernel[inner] <= node.kernel[pod]
        as_before(scene, node)
    node = scene.node()
    node.run(plan)
    fulfilled(scene, node)
    with pytest.raises(MoveError, match="whole pod is not"):
        plan_moves(scene.ledger, [Wish(pod, cpus("4-6"))])


def test_containers_that_run_one_after_the_other_may_have_the_same_cpus() -> None:
    first, then = Owner("a", "init"), Owner("a", "x")
    ledger = ledger_of(8, {first: frozenset({1, 2}), then: frozenset({1, 2, 3})})
    plan = plan_moves(ledger, [Wish(then, cpus("4-6"))])
    assert plan.steps[-1] == GiveBack(cpus("3")), "the init container's are still its own"
    both = plan_moves(ledger, [Wish(first, cpus("4-5")), Wish(then, cpus("4-6"))])
    assert both.end.pool == cpus("0-3,7")


def test_who_goes_aside_leaves_what_no_other_container_of_its_pod_has() -> None:
    """An init container that has ended goes with its pod; what it leaves is not free by that."""
    init, one, two = Owner("a", "init"), Owner("a", "one"), Owner("a", "two")
    owners = {init: frozenset({1, 2}), one: frozenset({1}), two: frozenset({2})}
    ledger = ledger_of(6, {**owners, B: frozenset({3, 4})})
    goals = {init: "3-4", one: "3", two: "4", B: "1-2"}
    plan = plan_moves(ledger, [Wish(owner, cpus(goal)) for owner, goal in goals.items()])
    assert plan.end.placed == {owner: cpus(goal) for owner, goal in goals.items()}


def test_what_went_back_to_the_pool_is_not_undone() -> None:
    plan = plan_moves(ledger_of(8, {A: frozenset({1})}), [Wish(A, cpus("4"))])
    with pytest.raises(MoveError, match="go on with it"):
        undo(plan, len(plan.steps))
    with pytest.raises(MoveError, match="way back from another one"):
        undo(undo(plan, 2), 1)
