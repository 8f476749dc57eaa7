"""The agent dies at every call that it makes while CPUs move: the next one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.reconciler import reconcile
from pinfold.ports.runtime import ContainerState
from tests.scenes.manager_harness import manifest, run_virtually
from tests.scenes.mortal_harness import MortalHarness, until_dead
from tests.scenes.moves_harness import Node


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


async def dies_and_goes_on(life: Life, at: int, *, after: bool) -> bool:
    node = MortalNode()
    await started(node)
    node.arm(at, after=after)

    async def whole() -> None:
        await node.start()
        await life(node)

    died = await until_dead(node, whole())
    await node.kill()
    node.cgroups.faults.fail_at = set()
    record = await node.store.load()
    node.arm(0, after=False)
    await node.start()
    if (moving := node.manager.mover.in_flight) is not None:
        assert record.move is not None
        await asyncio.wait_for(moving.ended(), 60)
    await node.settle()
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
    return died


@pytest.mark.parametrize("life", [exchange, resizes, deletion, refusal])
def test_the_agent_may_die_at_every_call(life: Life) -> None:
    async def all_deaths() -> int:
        deaths = 0
        for after in (False, True):
            at = 1
            while await asyncio.wait_for(dies_and_goes_on(life, at, after=after), 100):
                at += 1
                deaths += 1
        return deaths

    assert run_virtually(all_deaths()) > 30


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
