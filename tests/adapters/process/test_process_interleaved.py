"""Containers as plain processes: an agent dies between any two steps of it and a supervisor."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerState, ContainerStatus
from tests.roots import ROOT
from tests.scenes.process_world import (
    ProcessWorld,
    a_process_world,
    process_state,
)
from tests.scenes.runtime_contract import opened, play
from tests.scenes.waiting import wait_until

POINTS = os.environ.get("PINFOLD_CRASH_POINTS", "8")
"""How many more pairs of steps to try, chosen by chance; ``all`` tries every one."""

NEVER = 0
LATE = 1000
STUCK = 0.2
"""Seconds after which an agent that waits for a stopped supervisor is killed where it is."""


world = pytest.fixture(a_process_world)


def stopped(world: ProcessWorld) -> list[int]:
    return [pid for pid in world.processes() if process_state(pid) == "T"]


def live_and_die(world: ProcessWorld, at: int, stop: int) -> str:
    """One life of an agent; what it printed when it was not killed."""
    program = [
        sys.executable,
        "-m",
        "tests.scenes.stepped_agent",
        str(world.root),
        str(at),
        str(stop),
    ]
    root = ROOT
    with subprocess.Popen(program, cwd=root, stdout=subprocess.PIPE, text=True) as agent:
        since = None
        while agent.poll() is None:
            since = (since or time.monotonic()) if stopped(world) else None
            if since is not None and time.monotonic() > since + STUCK:
                agent.kill()
            time.sleep(0.005)
        text, _ = agent.communicate()
    assert agent.returncode in (0, -signal.SIGKILL), (at, stop)
    return text


async def found(world: ProcessWorld) -> list[ContainerStatus]:
    async with opened(world) as runtime:
        return list(await runtime.containers())


def check(world: ProcessWorld, at: int, stop: int) -> bool:
    """Let an agent die there, and others come after it; whether the supervisor was stopped."""
    world.root.mkdir(exist_ok=True)
    live_and_die(world, at, stop)
    was_stopped = bool(stopped(world))
    # The next agent comes while the supervisor is where it is, and another when it has gone on.
    for status in play(found(world)):
        assert status.key == ContainerKey("uid-1", "main"), (at, stop)
        assert status.state in (ContainerState.CREATED, ContainerState.RUNNING), (at, stop)
    wait_until(lambda: is_accounted_for(world))

    async def go_on() -> None:
        async with opened(world) as runtime:
            for status in await runtime.containers():
                if status.state is ContainerState.CREATED:
                    assert (await runtime.start(status.id)).state is ContainerState.RUNNING
                await runtime.remove(status.id)
            assert await runtime.mended() == (), (at, stop)

    play(go_on())
    wait_until(lambda: not world.processes())
    assert list(world.root.iterdir()) == [], (at, stop)
    return was_stopped


def is_accounted_for(world: ProcessWorld) -> bool:
    """Whether supervisors and processes that wait are those of the containers, and no more."""
    if pids := stopped(world):
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        return False
    statuses = play(found(world))
    waiting = [s.pid for s in statuses if s.state is ContainerState.CREATED]
    return len(world.processes()) == len(statuses) + len(waiting)


def test_the_agent_may_be_killed_while_the_supervisor_is_anywhere(world: ProcessWorld) -> None:
    world.root.mkdir()
    effects = int(live_and_die(world, LATE, NEVER))
    world.clear()
    assert effects > 10
    stops = 0
    for stop in range(1, 100):
        if not check(world, LATE, stop):
            break
        stops = stop
    assert stops > 10
    for at in range(1, effects + 1):
        check(world, at, NEVER)
    pairs = [(at, stop) for at in range(1, effects + 1) for stop in range(1, stops + 1)]
    if POINTS != "all":
        pairs = random.Random(6).sample(pairs, min(int(POINTS), len(pairs)))  # noqa: S311 - moments, not secrets
    for at, stop in pairs:
        check(world, at, stop)
