"""When a service manager is told that the agent is ready."""

from __future__ import annotations

import asyncio

from pinfold.agent.service import at_work
from tests.scenes.manager_harness import run_virtually


def test_it_is_when_nothing_keeps_it_from_its_work() -> None:
    async def story() -> None:
        problems = ["the agent is starting", "no runtime"]
        waiting = asyncio.create_task(at_work(lambda: problems))
        for _ in range(2):
            await asyncio.sleep(1)
            assert not waiting.done()
            problems.pop()
        await asyncio.sleep(1)
        assert waiting.done()

    run_virtually(story())


def test_what_lasts_is_not_waited_for_for_ever() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await at_work(lambda: ["NRI is off"], patience=10)
        assert 10 <= loop.time() - began < 11

    run_virtually(story())
