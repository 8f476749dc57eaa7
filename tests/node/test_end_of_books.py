"""What is under way when the books are closed, or who asked has gone, and what is not begun."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.node.drafted import Unwritten
from pinfold.ports.errors import StoreError
from tests.scenes.manager_harness import Harness, manifest, run
from tests.scenes.slow import Slow


def test_a_draft_that_is_open_at_the_end_is_not_carried_out() -> None:
    async def scenario(node: Harness) -> None:
        books, held, go = node.books, asyncio.Event(), asyncio.Event()
        before = books.view

        async def describe(*_: object) -> None:
            held.set()
            await go.wait()

        books.observers = replace(books.observers, describe=describe)
        admission = asyncio.create_task(node.admit(manifest("one", "2")))
        await held.wait()
        await node.manager.close()
        go.set()
        with pytest.raises(StoreError, match="the agent is stopping"):
            await admission
        await node.settle()
        assert books.view is before
        assert not node.store.pods
        assert node.cgroups.shared == before.pool
        assert not await books.containers.statuses()

    run(scenario)


def test_nor_is_the_pool_moved_by_it() -> None:
    async def scenario(node: Harness) -> None:
        node.cgroups.set_shared = slow = Slow(node.cgroups.set_shared)  # type: ignore[assignment, method-assign] # a kernel that is asked
        async with node.books.change() as draft:
            await node.books.close()
            with pytest.raises(StoreError, match="the agent is stopping"):
                await draft.apply_pool()
        assert not slow.begun.is_set()

    run(scenario)


def test_a_change_that_is_under_way_at_the_end_is_carried_out() -> None:
    async def scenario(node: Harness) -> None:
        node.cgroups.set_shared = slow = Slow(node.cgroups.set_shared)  # type: ignore[assignment, method-assign] # a kernel that takes its time
        admission = asyncio.create_task(node.admit(manifest("one", "2")))
        await slow.begun.wait()
        closing = asyncio.create_task(node.books.close())
        await node.settle()
        assert not closing.done()
        slow.go.set()
        await closing
        await asyncio.wait({admission})
        assert node.books.view.state.ledger.cpus_of("uid-one", "c0") == CPUSet([2, 3])
        assert node.cgroups.shared == node.books.view.pool == CPUSet([1, 4, 5, 6, 7])

    run(scenario)


def test_what_is_to_be_done_after_a_record_is_done_without_its_caller() -> None:
    async def scenario(node: Harness) -> None:
        node.store.commit = slow = Slow(node.store.commit)  # type: ignore[assignment, method-assign] # a disk that takes its time
        done: list[bool] = []

        async def after() -> None:
            await asyncio.sleep(1)
            done.append(node.books.is_changing)

        async def change() -> None:
            async with node.books.change() as draft:
                draft.note("seen")
                await draft.write(Unwritten.REFUSED, after)

        task = asyncio.create_task(change())
        await slow.begun.wait()
        task.cancel()
        await asyncio.wait({task})
        slow.go.set()
        async with node.books.change():
            assert done == [True], "before the next change"

    run(scenario)
