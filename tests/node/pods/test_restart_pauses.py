"""The pauses between a container's restarts."""

from __future__ import annotations

import asyncio

import pytest

from pinfold.node.settings import ManagerSettings
from tests.scenes.manager_harness import Harness, manifest, run


@pytest.mark.parametrize(
    ("ran", "clock", "waits"),
    [
        pytest.param(1.0, 1e6, [0, 10, 20, 40], id="short, and the clock was set on"),
        pytest.param(70.0, 0.0, [0, 0, 0, 0], id="long, and the clock was set back"),
    ],
)
def test_a_clock_that_is_set_changes_no_pause(ran: float, clock: float, waits: list[float]) -> None:
    async def scenario(node: Harness) -> None:
        loop = asyncio.get_running_loop()
        await node.admit(manifest("db", "2"))
        paused: list[float] = []
        for _ in waits:
            (status,) = node.runtime.known()
            await asyncio.sleep(ran)
            node.runtime.exit(status.id, 1, at=clock)
            ended = loop.time()
            for _ in range(200):
                await asyncio.sleep(0.5)
                if len(node.runtime.ran_on) > len(paused) + 1:
                    break
            paused.append(loop.time() - ended)
        assert [round(pause, -1) for pause in paused] == waits

    run(scenario, settings=ManagerSettings(calm=60.0))
