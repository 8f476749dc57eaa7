"""Containers as plain processes: those that somebody else started, and many of them."""

from __future__ import annotations

import asyncio
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pinfold.core.pod.workload import Process
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerState
from tests.scenes.process_world import (
    ProcessWorld,
    a_process_world,
)
from tests.scenes.runtime_contract import (
    a_spec,
    next_exit,
    no_exit,
    opened,
    play,
    started,
    the,
    until_exited,
)
from tests.scenes.waiting import wait_until

world = pytest.fixture(a_process_world)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process as ``pinfold run`` forks it in the foreground."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


SPEC = a_spec(Process(("sleep", "1000")), "foreground")


def test_an_attached_process_is_accounted_for(
    world: ProcessWorld, sleeper: subprocess.Popen[bytes]
) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            attached = await runtime.attach(SPEC, sleeper.pid)
            assert (attached.state, attached.pid) == (ContainerState.RUNNING, sleeper.pid)
            assert attached.key == SPEC.key
            assert attached.started_at is not None
            assert world.processes() == []
            await no_exit(runtime, 0.05)
        async with opened(world) as runtime:
            assert await the(runtime, attached.id) == attached
            with pytest.raises(RuntimeFailedError, match="it is RUNNING"):
                await runtime.start(attached.id)
            await runtime.signal(attached.id, signal.SIGTERM)
            told = await next_exit(runtime)
            assert (told.id, told.exit_code, told.pid) == (attached.id, None, None)
            assert "known only to the process that started it" in told.message
            # The zombie is the caller's to wait for, and its status was not taken away.
            assert sleeper.wait() == -signal.SIGTERM
        async with opened(world) as runtime:
            assert await the(runtime, attached.id) == told

    play(run())


def test_an_attached_process_that_ended_in_the_absence(
    world: ProcessWorld, sleeper: subprocess.Popen[bytes]
) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            attached = await runtime.attach(SPEC, sleeper.pid)
        sleeper.kill()
        await asyncio.to_thread(sleeper.wait)
        async with opened(world) as runtime:
            assert (await until_exited(runtime, attached.id)).exit_code is None

    play(run())


def test_removing_an_attached_process_ends_it(
    world: ProcessWorld, sleeper: subprocess.Popen[bytes]
) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            attached = await runtime.attach(SPEC, sleeper.pid)
            await runtime.remove(attached.id)
            assert await runtime.containers() == []
        assert sleeper.wait() == -signal.SIGKILL

    play(run())


def test_what_cannot_be_attached_is_an_error(world: ProcessWorld) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()

    async def run() -> None:
        async with opened(world) as runtime:
            for pid in (gone.pid, 0, -1, 1 << 40):
                with pytest.raises(RuntimeFailedError, match=f"no process {pid}"):
                    await runtime.attach(SPEC, pid)
            assert list(world.root.iterdir()) == []

    play(run())


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1200, reason="needs 1,200 open files"
)
def test_a_thousand_are_watched_and_listed_without_reading_a_file(
    world: ProcessWorld, sleeper: subprocess.Popen[bytes]
) -> None:
    """One end is told for each; the limit on open files is raised for it."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    opened_files = []
    listening = False

    def audit(event: str, arguments: tuple[object, ...]) -> None:
        if listening and event in ("open", "os.listdir", "os.scandir"):
            opened_files.append(arguments[0])

    sys.addaudithook(audit)

    async def run() -> None:
        nonlocal listening
        async with opened(world) as runtime:
            ids = {(await runtime.attach(SPEC, sleeper.pid)).id for _ in range(1000)}
            listening = True
            statuses = await runtime.containers()
            listening = False
            assert {status.id for status in statuses} == ids
            assert opened_files == []
            sleeper.kill()
            told = [await next_exit(runtime) for _ in ids]
            assert {status.id for status in told} == ids
            await no_exit(runtime, 0.01)

    try:
        play(run())
    finally:
        listening = False
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_two_hundred_containers_in_and_out(world: ProcessWorld) -> None:
    async def run() -> None:
        at_once = asyncio.Semaphore(8)
        async with opened(world) as runtime:

            async def in_and_out(number: int) -> None:
                async with at_once:
                    process = world.lasting() if number % 2 else world.ending(number)
                    running = await started(runtime, process, f"c{number}")
                    if number % 2 == 0:
                        assert (await until_exited(runtime, running.id)).exit_code == number
                    await runtime.remove(running.id)

            await asyncio.gather(*(in_and_out(number) for number in range(200)))
            assert await runtime.containers() == []
            assert list(world.root.iterdir()) == []

    play(run())
    wait_until(lambda: not world.processes())
