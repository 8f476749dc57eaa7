"""Plans on fakes: what is written, what the kernel is told, and in which order."""

from __future__ import annotations

import asyncio

import pytest

from pinfold.node.moves.moving import BusyError
from pinfold.node.reconciler import reconcile
from pinfold.ports.errors import StoreError
from tests.scenes.manager_harness import manifest
from tests.scenes.moves_harness import Node, allowed, pods, run


def test_an_exchange_goes_over_free_cpus() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="2", web="")
        assert node.has() == {"a/c0": "2-3", "b/c0": "4-5"}
        moving = await node.move(a="4-5", b="2-3")
        with pytest.raises(BusyError):
            async with node.books.change() as draft:
                await node.manager.mover.begin(draft, moving.plan, why="rebalance")
        ended = await moving.ended()
        assert ended.done
        assert node.has() == {"a/c0": "4-5", "b/c0": "2-3"}
        assert allowed(node, "a", "b", "web") == {"a": "4-5", "b": "2-3", "web": "1,6-7"}
        assert node.store.move is None
        assert [e.kind for e in node.store.entries][-1] == "moved"

    run(scenario)


def test_a_plan_that_is_written_and_not_made_is_no_drift() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        moving = await node.move(a="2-5")
        assert node.has() == {"a/c0": "2-5"}
        assert await reconcile(node.books) == []
        assert node.books.view.move is not None
        # Whoever is admitted in between narrows the pool by his own CPUs only.
        await node.admit(manifest("b", "1"), wait=False)
        assert await reconcile(node.books) == []
        assert (await moving.ended()).done
        assert allowed(node, "a", "b", "web") == {"a": "2-5", "b": "1", "web": "6-7"}
        assert await reconcile(node.books) == []

    run(scenario)


def test_growing_and_shrinking() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        assert (await (await node.move(a="2-5")).ended()).done
        assert node.has() == {"a/c0": "2-5"}
        node.effects.clear()
        moving = await node.move(3.0, a="2-3")
        began = asyncio.get_running_loop().time()
        await node.settle()
        assert node.effects == []
        await node.admit(manifest("c", "2"))
        assert node.has() == {"a/c0": "2-5", "c/c0": "6-7"}
        assert (await moving.ended()).done
        assert asyncio.get_running_loop().time() >= began + 3.0
        assert node.has() == {"a/c0": "2-3", "c/c0": "6-7"}
        assert allowed(node, "a", "web") == {"a": "2-3", "web": "1,4-5"}

    run(scenario)


def test_who_ends_meanwhile_is_passed_over_and_its_claim_stays() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="2", web="")
        moving = await node.move(5.0, a="4-5", b="2-3")
        await node.settle()
        await node.manager.release("b")
        assert list(node.books.view.state.ledger.assignments) == ["uid-a", "#uid-b"]
        await node.admit(manifest("b", "1"))
        assert (await moving.ended()).done
        assert node.has() == {"a/c0": "4-5", "b/c0": "7"}
        assert allowed(node, "a", "b", "web") == {"a": "4-5", "b": "7", "web": "1-3,6"}

    run(scenario)


@pytest.mark.parametrize("at", range(1, 20))
def test_what_the_kernel_refuses_is_undone(at: int) -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", b="2", web="")
        node.cgroups.faults.calls = 0
        node.cgroups.faults.fail_at = {at}
        moving = await node.move(1.0, a="4-5", b="2-3")
        ended = await moving.ended()
        failed = node.cgroups.faults.calls >= at
        place = {"a/c0": "4-5", "b/c0": "2-3"}
        if not ended.done:
            assert failed
            assert "the kernel refused" in ended.problem
            place = {"a/c0": "2-3", "b/c0": "4-5"}
        assert node.has() == place
        assert node.store.move is None
        node.cgroups.faults.fail_at = set()
        async with node.books.change() as draft:
            await draft.grow_pool()

    run(scenario)


def test_what_cannot_be_undone_is_tried_until_it_can() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        node.cgroups.faults.calls = 0
        node.cgroups.faults.fail_at = set(range(2, 1000))
        moving = await node.move(a="4-5")
        await asyncio.sleep(5)
        (problem,) = node.books.problems()
        assert "cannot be undone so far" in problem
        node.cgroups.faults.fail_at = set()
        assert not (await moving.ended()).done
        assert node.has() == {"a/c0": "2-3"}
        assert list(node.books.problems()) == []

    run(scenario)


def test_a_disk_that_is_full_changes_nothing() -> None:
    async def scenario(node: Node) -> None:
        await pods(node, a="2", web="")
        node.store.faults.fail_all = True
        with pytest.raises(StoreError):
            await node.move(a="4-5")
        assert node.books.view.move is None
        assert node.has() == {"a/c0": "2-3"}
        node.store.faults.fail_all = False
        moving = await node.move(a="4-5")
        node.store.faults.fail_all = True
        await asyncio.sleep(30)
        node.store.faults.fail_all = False
        assert (await moving.ended()).done
        assert node.has() == {"a/c0": "4-5"}

    run(scenario)
