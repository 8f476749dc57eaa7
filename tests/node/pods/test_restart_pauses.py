"""The pauses between a container's restarts."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from pinfold.node.settings import NodeSettings
from pinfold.ports.runtime import ContainerState
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

    run(scenario, settings=NodeSettings(calm=60.0))


@pytest.mark.parametrize(
    ("ran", "waits"),
    [
        pytest.param(None, 20, id="not at all: the agent died before its start"),
        pytest.param(59.0, 20, id="short"),
        pytest.param(60.0, 0, id="long enough to begin anew"),
    ],
)
def test_one_that_ended_while_no_agent_was_there(ran: float | None, waits: float) -> None:
    async def scenario(node: Harness) -> None:
        loop = asyncio.get_running_loop()
        await node.admit(manifest("db", "2"))
        (status,) = node.runtime.known()
        spec = node.runtime.specs[status.id]
        await node.kill()
        await node.runtime.remove(status.id)
        status = await node.runtime.create(replace(spec, attempt=2))
        if ran is not None:
            await node.runtime.start(status.id)
        node.runtime.exit(status.id, 1, at=ran or 0.0)
        begun = len(node.runtime.ran_on)
        await node.start()
        started = loop.time()
        while len(node.runtime.ran_on) == begun:
            await asyncio.sleep(0.5)
            assert loop.time() < started + 100, node.problems
        assert round(loop.time() - started, -1) == waits

    run(scenario, settings=NodeSettings(calm=60.0))


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_a_runtime_that_is_away_is_no_crash_of_the_container(policy: str) -> None:
    async def scenario(node: Harness) -> None:
        loop = asyncio.get_running_loop()
        node.runtime.is_away = True
        await node.admit(manifest("db", "2", restartPolicy=policy), wait=False)
        await asyncio.sleep(100)
        assert "the runtime does not answer" in node.problems[-1]
        assert node.runtime.ran_on == []
        node.runtime.is_away = False
        back = loop.time()
        while not node.runtime.ran_on:
            await asyncio.sleep(0.1)
            assert loop.time() < back + 100, node.problems
        assert loop.time() - back < 2
        (status,) = node.runtime.known()
        assert (status.attempt, status.state) == (0, ContainerState.RUNNING)
        (pod,) = node.manager.books.view.pods.active.values()
        assert (pod.record.restarts, pod.record.exit_codes) == ({}, {})

    run(scenario)
