"""The agent dies at every call that it makes while CPUs move: the next one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.reconciler import reconcile
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import manifest, run_virtually
from tests.scenes.mortal_harness import MortalHarness, every_death, until_dead
from tests.scenes.moves_harness import Node, pods


class MortalNode(Node, MortalHarness):
    """A node whose agent dies, and whose kernel looks at itself."""


Life = Callable[[MortalNode], Awaitable[None]]


def graceful(name: str, cpus: str) -> dict[str, Any]:
    pod = manifest(name, cpus)
    pod["spec"]["scaleDownGracePeriodSeconds"] = 3
    return pod


async def exchange(node: MortalNode) -> None:
    await (await node.move(1.0, a="4-5", b="2-3")).ended()


async def resizes(node: MortalNode) -> None:
    await node.resize("a", 4)
    await node.resize("a", 3)
    await node.resize("b", 3)


async def deletion(node: MortalNode) -> None:
    moving = await node.move(2.0, a="4-5", b="2-3")
    await node.settle()
    await node.manager.release("b")
    await moving.ended()


async def refusal(node: MortalNode) -> None:
    node.cgroups.faults.calls = 0
    node.cgroups.faults.fail_at = {4}
    await (await node.move(1.0, a="4-5", b="2-3")).ended()


async def started(node: MortalNode) -> None:
    node.arm(0, after=False)
    await node.start()
    await node.admit(graceful("a", "2"))
    await node.admit(manifest("b", "2"))
    await node.admit(manifest("web", ""))
    await node.kill()


async def dies(node: MortalNode, at: int, life: Life, *, after: bool) -> bool:
    """Let an agent live that dies at this call; True when it came so far."""
    node.arm(at, after=after)

    async def whole() -> None:
        await node.start()
        await life(node)

    died = await until_dead(node, whole())
    await node.kill()
    return died


async def goes_on(node: MortalNode) -> None:
    """What is in flight comes to its end."""
    if (moving := node.manager.mover.in_flight) is not None:
        await asyncio.wait_for(moving.ended(), 60)
    await node.settle()


async def is_well(node: MortalNode) -> None:
    """The next agent goes on, everybody is where he belongs, and nothing is left of anybody."""
    node.cgroups.faults.fail_at = set()
    record = await node.store.load()
    node.arm(0, after=False)
    await node.start()
    assert record.move is not None or node.manager.mover.in_flight is None
    await goes_on(node)
    node.check()
    assert await reconcile(node.books) == []
    assert node.store.move is None
    for status in node.runtime.known():
        assert status.state is ContainerState.RUNNING
    for name in ("a", "b", "web"):
        if f"uid-{name}" in node.books.view.pods.active:
            await node.manager.release(name)
    await node.settle()
    node.check()
    assert str(node.books.view.state.ledger.default) == "0-7"
    assert node.cgroups.groups == {}
    assert node.books.view.state.requested.get("cpu", 0) == 0
    await node.kill()


async def dies_and_goes_on(life: Life, at: int, *, after: bool) -> bool:
    node = MortalNode()
    await started(node)
    died = await dies(node, at, life, after=after)
    await is_well(node)
    return died


@pytest.mark.parametrize("life", [exchange, resizes, deletion, refusal])
def test_the_agent_may_die_at_every_call(life: Life) -> None:
    assert run_virtually(every_death(partial(dies_and_goes_on, life))) > 30


@pytest.mark.parametrize("life", [exchange, resizes, refusal])
def test_whoever_goes_on_may_die_at_every_call_too(life: Life) -> None:
    async def scenario(first: int, second: int, *, after: bool) -> tuple[str, bool]:
        """What was on record at the first death, and whether the next agent came to the second."""
        node = MortalNode()
        await started(node)
        if not await dies(node, first, life, after=after):
            return "", False
        node.cgroups.faults.fail_at = set()
        move = (await node.store.load()).move
        if move is None:
            return "nothing", False
        found = f"{move.plan} {move.written}"
        died = await dies(node, second, goes_on, after=bool(second // 2 % 2))
        await is_well(node)
        return found, died

    seen: set[str] = set()
    deaths = first = 0
    found = "not yet"
    while found:
        first += 1
        after = bool(first % 2)
        # Every other call, and those between after another death.
        second, died = 1 + len(seen) % 2, True
        while died:
            found, died = run_virtually(scenario(first, second, after=after))
            if died and second <= 2 and found in seen:
                break
            seen.add(found)
            deaths += died
            second += 2
    assert deaths > 40


def test_a_resize_that_was_answered_is_not_lost_whatever_moves() -> None:
    """And one that was not is done or undone as a whole."""

    async def scenario(at: int, *, after: bool) -> bool:
        node = MortalNode(dynamic=DynamicOptions())
        node.arm(0, after=False)
        await node.start()
        await pods(node, a="1", gap="1", b="1")
        await node.kill()
        answered, asked, moved = 1, 1, 0

        async def life(node: MortalNode) -> None:
            nonlocal answered, asked, moved
            for asked in (2, 1, 2):
                await node.resize("a", asked)
                answered = asked
                if "gap/c0" in node.has():
                    await node.manager.release("gap")
                document, _ = await node.manager.rebalancing.rebalance()
                moved += bool(document.steps)

        died = await dies(node, at, life, after=after)
        assert died or moved
        node.arm(0, after=False)
        await node.start()
        await goes_on(node)
        node.check()
        assert len(CPUSet.parse(node.cpus("a")["c0"])) in {answered, asked}
        assert await reconcile(node.books) == []
        await node.kill()
        return died

    for after in (False, True):
        at = 1
        while run_virtually(scenario(at, after=after)):
            at += 1
        assert at > 20


def test_the_time_that_was_left_survives_a_restart() -> None:
    async def scenario() -> None:
        node = MortalNode()
        await started(node)
        await node.start()
        loop = asyncio.get_running_loop()
        await node.resize("a", 4)
        began = loop.time()
        await node.begin_resize("a", 2)
        await asyncio.sleep(1)
        await node.kill()
        await asyncio.sleep(1)
        await node.start()
        moving = node.manager.mover.in_flight
        assert moving is not None
        await asyncio.sleep(0.5)
        assert len(CPUSet.parse(node.has()["a/c0"])) == 4
        await moving.ended()
        assert began + 3 <= loop.time() < began + 3.5
        assert node.has()["a/c0"] == "2-3"
        await node.kill()

    run_virtually(scenario())


async def until_step(node: MortalNode, at: int) -> None:
    """Let the plan go on until so many of its steps are made, or it is over."""
    while (move := node.books.view.move) is not None and move.made < at:  # noqa: ASYNC110 - time is virtual
        await asyncio.sleep(0.01)


def test_cpus_go_offline_at_every_step() -> None:
    async def scenario(at: int, cpu: int) -> bool:
        node = MortalNode()
        await started(node)
        await node.start()
        moving = await node.move(1.0, a="4-5", b="2-3")
        await until_step(node, at)
        reached = node.books.view.move is not None
        node.cgroups.online -= CPUSet([cpu])
        await node.books.set_offline(CPUSet([cpu]))
        await asyncio.wait_for(moving.ended(), 60)
        node.cgroups.online |= CPUSet([cpu])
        await node.books.set_offline(CPUSet())
        await node.settle()
        node.check()
        assert await reconcile(node.books) == []
        await node.kill()
        return reached

    for cpu in (2, 3, 4, 6):
        at = 0
        while run_virtually(scenario(at, cpu)):
            at += 1
        assert at > 5


def test_a_container_that_exits_at_every_step_is_where_it_belongs() -> None:
    async def scenario(at: int) -> bool:
        node = MortalNode()
        await started(node)
        await node.start()
        moving = await node.move(1.0, a="4-5", b="2-3")
        await until_step(node, at)
        reached = node.books.view.move is not None
        for status in node.runtime.known():
            if status.key.pod_uid == "uid-a" and status.pid is not None:
                node.runtime.exit(status.id, 1)
        assert (await asyncio.wait_for(moving.ended(), 60)).done
        await asyncio.sleep(1)
        await node.settle()
        node.check()
        assert node.cpus("a") == {"c0": "4-5"}
        await node.kill()
        return reached

    at = 0
    while run_virtually(scenario(at)):
        at += 1
    assert at > 5
