"""A plan of moves on record that is damaged, or is not of now: nobody is moved by it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from msgspec.structs import replace

from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import Announce, MovePlan, MoveState, Narrow, Step, Wait, Widen
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.recovery.recovery import MismatchError, OnMismatch
from tests.scenes.manager_harness import Copy, manifest, run_virtually
from tests.scenes.moves_harness import Node, pods
from tests.scenes.watched_cgroups import WatchedCgroups

A, NOBODY = Owner("uid-a", "c0"), Owner("uid-nobody", "c0")
B_CPUS, C_CPUS = CPUSet.parse("4-5"), CPUSet.parse("6-7")


def run(scenario: Callable[[Node], Awaitable[None]], machine: str = "1s4c2t") -> None:
    async def whole() -> None:
        node = Node(machine=machine)
        await node.start()
        await scenario(node)
        await node.settle()
        node.check()
        assert isinstance(node.cgroups, WatchedCgroups)
        assert node.cgroups.shared_by_two == []
        await node.kill()

    run_virtually(asyncio.wait_for(whole(), 600))


def at(plan: MovePlan, kind: type[Step], change: Callable[[Step], Step | None]) -> MovePlan:
    """The plan with another first step of a kind, or without it."""
    number = next(n for n, step in enumerate(plan.steps) if type(step) is kind)
    changed = change(plan.steps[number])
    new = () if changed is None else (changed,)
    return replace(plan, steps=(*plan.steps[:number], *new, *plan.steps[number + 1 :]))


def of_a_stranger(plan: MovePlan, kind: type[Step]) -> MovePlan:
    """The plan with a step of somebody whom nobody knows."""
    return at(plan, kind, lambda step: replace(step, owner=NOBODY))


def starting(plan: MovePlan, *, pool: str = "", claims: str = "", placed: str = "") -> MovePlan:
    start: MoveState = plan.start
    if pool:
        start = replace(start, pool=CPUSet.parse(pool))
    if claims:
        start = replace(start, claims={**start.claims, A: CPUSet.parse(claims)})
    if placed:
        start = replace(start, placed={**start.placed, A: CPUSet.parse(placed)})
    return replace(plan, start=start)


DAMAGES: dict[str, tuple[Callable[[MovePlan], MovePlan], str]] = {
    "a widened stranger": (
        partial(of_a_stranger, kind=Widen),
        "names pod 'uid-nobody'",
    ),
    "a told stranger": (
        partial(of_a_stranger, kind=Announce),
        "names pod 'uid-nobody'",
    ),
    "a narrowed stranger": (
        partial(of_a_stranger, kind=Narrow),
        "names pod 'uid-nobody'",
    ),
    "nobody told": (lambda plan: at(plan, Announce, lambda _: None), "who was told nothing"),
    "wait for one untold": (
        lambda plan: replace(plan, steps=(Wait(A, 1.0), *plan.steps)),
        "who was told nothing",
    ),
    "CPUs of the pool": (
        lambda plan: at(plan, Widen, lambda step: replace(step, now=CPUSet.parse("0-3"))),
        "or in the shared pool",
    ),
    "CPUs of one who does not move": (
        lambda plan: replace(
            plan,
            steps=(
                *plan.steps[:-1],
                Widen(A, B_CPUS, B_CPUS | C_CPUS),
                Narrow(A, B_CPUS | C_CPUS, B_CPUS),
                plan.steps[-1],
            ),
        ),
        "CPUs 6-7 belong to another pod",
    ),
    "narrowed from elsewhere": (
        lambda plan: at(plan, Narrow, lambda step: replace(step, was=C_CPUS)),
        "does not begin where",
    ),
    "narrowed to more": (
        lambda plan: at(plan, Narrow, lambda step: replace(step, now=C_CPUS)),
        "does not begin where",
    ),
    "an end in the middle": (lambda plan: replace(plan, steps=plan.steps[:-1]), "it ends before"),
    "placed beyond the claim": (lambda plan: starting(plan, placed="2-5"), "and claims 2-3"),
    "claims of two": (lambda plan: starting(plan, claims="2-5"), "are also another pod's"),
    "a pool that owners have": (lambda plan: starting(plan, pool="0-2"), "in the shared pool"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_plan_is_refused_and_given_up_by_a_repair(damage: str) -> None:
    change, problem = DAMAGES[damage]

    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="2", c="2")
        await node.move(1.0, a="4-5", b="2-3")
        await node.settle()
        await node.kill()
        assert node.store.move is not None
        node.store.move = replace(node.store.move, plan=change(node.store.move.plan))
        runs = {one.id: node.cgroups.allowed(one.pid or 0) for one in node.runtime.known()}
        with pytest.raises(MismatchError, match=problem):
            await node.start()
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        assert not node.manager.mover.is_busy
        now = {one.id: node.cgroups.allowed(one.pid or 0) for one in node.runtime.known()}
        assert now == runs
        assert any("is given up" in text for text in node.problems)

    run(scenario)


def test_an_old_copy_with_a_plan_that_is_long_over_ends_nobody() -> None:
    async def scenario(node: Node) -> None:
        pod = manifest("a", "2")
        pod["metadata"]["annotations"] = {
            "scale-down-grace-period.pinfold.dev/pod": "5",
            "resize-below-baseline.pinfold.dev/pod": "true",
        }
        await node.admit(pod)
        await node.admit(manifest("b", "2"))
        await node.resize("a", 6)
        moving = await node.begin_resize("a", 4)
        await node.settle()
        before = Copy(node)
        assert before.move is not None
        await moving.ended()
        await node.resize("b", 6)
        await node.settle()
        has, ids = node.has(), {one.id for one in node.runtime.known()}
        await node.kill()
        before.put_back(node, promised=True)
        await node.start(OnMismatch.REPAIR)
        await node.settle()
        assert node.has() == has
        assert {one.id for one in node.runtime.known()} == ids
        assert not node.manager.mover.is_busy

    run(scenario, machine="1s6c2t")
