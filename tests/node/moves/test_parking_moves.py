"""Work gathered on few packages of a live node, and spread again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from pinfold.core.controllers.parking import Park, Parking, Unpark
from pinfold.core.controllers.proposals import Rank
from pinfold.core.kubelet.own_policies import DynamicOptions, ParkingOptions
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.control.looking import look
from pinfold.node.control.loop import Control, ControlLoop
from pinfold.node.control.telling import control_document
from pinfold.node.reconciler import reconcile
from pinfold.ports.errors import CgroupError
from tests.scenes.manager_harness import manifest
from tests.scenes.moves_harness import Node
from tests.scenes.moves_harness import run as run_node

BUDGET = DynamicOptions(moves_per_hour=3)


async def park(node: Node, need: int = 2, *, keep_requests: bool = True) -> str:
    wish = Park(rank=Rank.PARKING, why="quiet", need=need)
    problem = await node.manager.rebalancing.park(wish, keep_requests=keep_requests)
    if (moving := node.manager.mover.in_flight) is not None:
        assert (await moving.ended()).done
    await node.settle()
    node.check()
    return problem


async def unpark(node: Node) -> str:
    wish = Unpark(rank=Rank.PARKING, why="busy")
    return await node.manager.rebalancing.park(wish, keep_requests=True)


def run(scenario: Callable[[Node], Awaitable[None]], **harness: Any) -> None:
    run_node(scenario, machine="4s4c1t", dynamic=BUDGET, **harness)


def test_owners_move_and_then_the_pool_leaves_and_comes_back() -> None:
    async def scenario(node: Node) -> None:
        for name, cpus in {"a": "3", "b": "4", "c": "4", "d": "2", "web": ""}.items():
            await node.admit(manifest(name, cpus))
        await node.manager.release("a")
        await node.manager.release("b")
        assert node.has() == {"c/c0": "8-11", "d/c0": "12-13"}
        # The owner moves, then the pool; then nothing is left to be done.
        assert await park(node, need=1) == ""
        assert node.has() == {"c/c0": "8-11", "d/c0": "1-2"}
        assert str(node.books.view.pool) == "3-7,12-15"
        assert await park(node, need=1) == ""
        view = node.books.view
        assert node.cpus("web") == {"c0": "3"}
        assert str(view.parked) == "4-7,12-15"
        assert await park(node, need=1) == "nothing could be on fewer packages"
        assert node.manager.rebalancing.budget.left == 2
        rebalancing = node.manager.rebalancing
        parking = Control("parking", Parking(ParkingOptions()), None, rebalancing.by_itself)
        loop = ControlLoop(partial(look, node.books), rebalancing.budget, [parking])
        told = control_document(node.books, loop, {}).parked
        assert told is not None
        assert (told.packages, told.cores) == (2, 8)

        # What is parked is free, and nobody else's.
        assert await reconcile(node.books) == []
        await node.admit(manifest("wide", "7"))
        assert len(CPUSet.parse(node.cpus("wide")["c0"])) == 7
        node.check()
        assert await unpark(node) == ""
        assert node.books.view.pool == node.books.view.state.ledger.default - CPUSet([0])
        assert node.cpus("web") == {"c0": str(node.books.view.pool)}

    run(scenario)


def test_the_pool_keeps_what_its_containers_request() -> None:
    async def scenario(node: Node) -> None:
        web = manifest("web", "")
        web["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "9500m"}}
        await node.admit(web)
        assert await park(node) == ""
        assert len(node.books.view.pool) == 11
        assert await park(node, keep_requests=False) == ""
        assert len(node.books.view.pool) == 3
        assert await park(node, need=14) == ""
        assert not node.books.view.parked

    run(scenario)


def test_the_kernel_may_refuse_and_a_restart_spreads() -> None:
    async def scenario(node: Node) -> None:
        await node.admit(manifest("web", ""))
        node.cgroups.faults.calls = 0
        node.cgroups.faults.fail_at = {1}
        with pytest.raises(CgroupError):
            await park(node)
        node.cgroups.faults.fail_at = set()
        assert not node.books.view.parked
        assert await park(node) == ""
        assert len(node.books.view.pool) == 3
        await node.kill()
        await node.start()
        await asyncio.sleep(0)
        assert len(node.books.view.pool) == 15
        assert node.cpus("web") == {"c0": "1-15"}

    run(scenario)
