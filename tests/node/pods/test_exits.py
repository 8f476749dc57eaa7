"""Who waits for the end of a container is told it, and nothing is kept of those who do not."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.node.exits import Exits
from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerState, ContainerStatus

KEY = ContainerKey("uid", "main")


def running(name: str) -> ContainerStatus:
    return ContainerStatus(name, KEY, 0, ContainerState.RUNNING, 100)


def exited(name: str, code: int = 0) -> ContainerStatus:
    return ContainerStatus(name, KEY, 0, ContainerState.EXITED, None, exit_code=code)


def futures() -> int:
    """How many there are in this process."""
    gc.collect()
    return Counter(type(one) for one in gc.get_objects())[asyncio.Future]


async def cancelled(task: asyncio.Task[ContainerStatus]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def test_all_who_wait_are_told() -> None:
    async def scenario() -> None:
        exits = Exits()
        waiting = [asyncio.create_task(exits.wait(running("a"))) for _ in range(3)]
        await asyncio.sleep(0)
        exits.tell(exited("a", 7))
        assert [one.exit_code for one in await asyncio.gather(*waiting)] == [7, 7, 7]
        assert (await exits.wait(running("a"))).exit_code == 7, "he comes later"
        assert (await exits.wait(exited("b", 1))).exit_code == 1, "he knows it"

    asyncio.run(scenario())


def test_nothing_is_kept_of_who_waits_no_more() -> None:
    async def scenario() -> None:
        exits = Exits()
        before = futures()
        for number in range(100):
            task = asyncio.create_task(exits.wait(running(f"never told {number}")))
            await asyncio.sleep(0)
            await cancelled(task)
        del task
        assert futures() - before < 5

    asyncio.run(scenario())


def test_who_waits_no_more_takes_nothing_from_the_others() -> None:
    async def scenario() -> None:
        exits = Exits()
        first, second = (asyncio.create_task(exits.wait(running("a"))) for _ in range(2))
        await asyncio.sleep(0)
        await cancelled(first)
        exits.tell(exited("a", 3))
        assert (await second).exit_code == 3
        with pytest.raises(asyncio.CancelledError):
            first.result()

    asyncio.run(scenario())


@given(st.lists(st.tuples(st.sampled_from("wct"), st.integers(0, 4)), max_size=30))
def test_whatever_the_order_each_who_waits_on_is_told_the_exit(
    steps: list[tuple[str, int]],
) -> None:
    async def work() -> None:
        exits = Exits()
        tasks: dict[int, list[asyncio.Task[ContainerStatus]]] = {}
        told: set[int] = set()
        for step, number in steps:
            if step == "w":
                task = asyncio.create_task(exits.wait(running(str(number))))
                tasks.setdefault(number, []).append(task)
            elif step == "c" and tasks.get(number):
                await cancelled(tasks[number].pop(0))
            elif step == "t":
                exits.tell(exited(str(number), number))
                told.add(number)
            await asyncio.sleep(0)
        for number, waiting in tasks.items():
            for task in waiting:
                assert task.done() == (number in told)
                if task.done():
                    assert task.result().exit_code == number
                else:
                    await cancelled(task)

    asyncio.run(work())
