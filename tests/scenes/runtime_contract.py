"""What every :class:`pinfold.ports.runtime.Runtime` does, whatever runs the containers.

A test module subclasses :class:`RuntimeContract` and gives it a fixture ``world``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import pytest
from msgspec.structs import replace

from pinfold.core.pod.workload import Process
from pinfold.ports.errors import ContainerKey, RuntimeFailedError
from pinfold.ports.runtime import ContainerSpec, ContainerState, ContainerStatus, Runtime
from tests.scenes.waiting import until

PATIENCE = 120.0
"""Seconds after which a test has failed; no test is meant to take so long."""


R_co = TypeVar("R_co", bound=Runtime, covariant=True)
R = TypeVar("R", bound=Runtime)
T = TypeVar("T")


class Opener(Protocol[R_co]):
    """What has a runtime to open."""

    def open(self) -> R_co:
        """A runtime over the containers of this world; the one before was closed."""


class World(Opener[Runtime], Protocol):
    """One world outside, with what can run there."""

    def lasting(self) -> Process:
        """Runs until a signal ends it, and has no handlers for signals."""

    def ending(self, code: int) -> Process:
        """Ends by itself with ``code``, soon after it was started."""

    def missing(self) -> Process:
        """Cannot be executed: there is no such command."""

    def marking(self) -> tuple[Process, Callable[[], bool]]:
        """Leaves a mark with its first instruction and lasts; and whether the mark is there."""


def a_spec(process: Process, name: str = "main", attempt: int = 0) -> ContainerSpec:
    return ContainerSpec(ContainerKey("uid-1", name), "default", "web", process, attempt)


@contextlib.asynccontextmanager
async def opened(world: Opener[R]) -> AsyncIterator[R]:
    """A runtime that is closed afterwards, as by an agent that ends."""
    runtime = world.open()
    try:
        yield runtime
    finally:
        await runtime.close()


async def started(runtime: Runtime, process: Process, name: str = "main") -> ContainerStatus:
    created = await runtime.create(a_spec(process, name))
    return await runtime.start(created.id)


async def next_exit(runtime: Runtime) -> ContainerStatus:
    exits = runtime.exits()
    status = await anext(exits)
    assert hasattr(exits, "aclose")
    await exits.aclose()
    return status


async def no_exit(runtime: Runtime, seconds: float = 0.2) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await next_exit(runtime)


async def the(runtime: Runtime, container_id: str) -> ContainerStatus | None:
    found = [status for status in await runtime.containers() if status.id == container_id]
    assert len(found) <= 1
    return found[0] if found else None


async def until_exited(runtime: Runtime, container_id: str) -> ContainerStatus:
    while True:
        status = await the(runtime, container_id)
        assert status is not None
        if status.state is ContainerState.EXITED:
            return status
        await asyncio.sleep(0.01)


def play(case: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; it fails instead of hanging."""

    async def timed() -> T:
        async with asyncio.timeout(PATIENCE):
            return await case

    return asyncio.run(timed())


Story = Callable[[Any, World], Coroutine[Any, Any, None]]


def story(test: Story) -> Callable[[Any, World], None]:
    """A test that is a coroutine, and fails instead of hanging."""

    @functools.wraps(test)
    def run(case: object, world: World) -> None:
        play(test(case, world))

    return run


class RuntimeContract:
    @story
    async def test_a_created_container_waits_for_its_start(self, world: World) -> None:
        process, is_marked = world.marking()
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(process, attempt=3))
            assert (created.state, created.attempt) == (ContainerState.CREATED, 3)
            assert created.key == ContainerKey("uid-1", "main")
            assert created.pid is not None
            assert (created.exit_code, created.started_at, created.finished_at) == (None,) * 3
            await asyncio.sleep(0.1)
            assert not is_marked()
            running = await runtime.start(created.id)
            assert running.state is ContainerState.RUNNING
            assert (running.id, running.pid) == (created.id, created.pid)
            assert running.started_at is not None
            await until(is_marked)
            assert await the(runtime, created.id) == running

    @story
    async def test_an_exit_is_told_once_with_its_code(self, world: World) -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.ending(3))
            told = await next_exit(runtime)
            assert told.id == running.id
            assert (told.state, told.exit_code, told.pid) == (ContainerState.EXITED, 3, None)
            assert told.started_at is not None
            assert told.finished_at is not None
            assert told.started_at <= told.finished_at
            assert await the(runtime, running.id) == told
            await no_exit(runtime)

    @story
    async def test_an_exit_is_kept_until_somebody_asks(self, world: World) -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.ending(0))
            await until_exited(runtime, running.id)
            told = await next_exit(runtime)
            assert (told.id, told.exit_code) == (running.id, 0)

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
    def test_a_signal_ends_it(self, world: World, number: int) -> None:
        async def case(_: object, world: World) -> None:
            async with opened(world) as runtime:
                running = await started(runtime, world.lasting())
                await runtime.signal(running.id, number)
                told = await next_exit(runtime)
                assert (told.id, told.exit_code) == (running.id, 128 + number)

        story(case)(self, world)

    @story
    async def test_a_created_container_can_be_ended(self, world: World) -> None:
        process, is_marked = world.marking()
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(process))
            await runtime.signal(created.id, signal.SIGKILL)
            ended = await until_exited(runtime, created.id)
            assert (ended.exit_code, ended.pid) == (137, None)
            with pytest.raises(RuntimeFailedError):
                await runtime.start(created.id)
            assert not is_marked()

    @story
    async def test_a_created_container_can_be_removed(self, world: World) -> None:
        process, is_marked = world.marking()
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(process))
            await runtime.remove(created.id)
            assert await runtime.containers() == []
            assert not is_marked()

    @story
    async def test_a_missing_command_is_one_error(self, world: World) -> None:
        async with opened(world) as runtime:
            with pytest.raises(RuntimeFailedError) as raised:
                await started(runtime, world.missing())
            assert raised.value.problem
            left = await runtime.containers()
            assert {status.state for status in left} <= {ContainerState.EXITED}
            for status in left:
                assert status.exit_code
                await runtime.remove(status.id)
            assert await runtime.containers() == []

    @story
    async def test_a_start_happens_once(self, world: World) -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
            with pytest.raises(RuntimeFailedError):
                await runtime.start(running.id)
            assert await the(runtime, running.id) == running
            await runtime.remove(running.id)
            with pytest.raises(RuntimeFailedError):
                await runtime.start(running.id)

    @story
    async def test_what_is_gone_is_no_error(self, world: World) -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.ending(0))
            await until_exited(runtime, running.id)
            await runtime.signal(running.id, signal.SIGTERM)
            for _ in range(2):
                await runtime.remove(running.id)
                await runtime.signal(running.id, signal.SIGTERM)
            assert await runtime.containers() == []

    @story
    async def test_a_running_container_is_ended_when_removed(self, world: World) -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
            other = await started(runtime, world.lasting(), "other")
            await runtime.remove(running.id)
            assert [status.id for status in await runtime.containers()] == [other.id]
            await no_exit(runtime)

    @story
    async def test_an_id_is_used_once(self, world: World) -> None:
        async with opened(world) as runtime:
            ids = set()
            for attempt in range(3):
                created = await runtime.create(a_spec(world.lasting(), attempt=attempt))
                ids.add(created.id)
                await runtime.remove(created.id)
            both = [await runtime.create(a_spec(world.lasting())) for _ in range(2)]
            assert len(ids | {status.id for status in both}) == 5

    @story
    async def test_containers_outlive_the_runtime(self, world: World) -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
        async with opened(world) as runtime:
            assert await the(runtime, running.id) == running
            await runtime.signal(running.id, signal.SIGTERM)
            told = await next_exit(runtime)
            assert (told.id, told.exit_code) == (running.id, 143)

    @story
    async def test_an_exit_in_its_absence_is_not_lost(self, world: World) -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.ending(7))
        await asyncio.sleep(0.5)
        async with opened(world) as runtime:
            ended = await until_exited(runtime, running.id)
            assert (ended.exit_code, ended.pid) == (7, None)
            assert ended.finished_at is not None
            assert running.started_at is not None
            # A runtime may note the start when a short process has ended already.
            assert ended.started_at == min(running.started_at, ended.finished_at)
        async with opened(world) as runtime:
            assert await the(runtime, running.id) == ended

    @story
    async def test_a_created_container_waits_for_the_next_runtime(self, world: World) -> None:
        process, is_marked = world.marking()
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(process))
        async with opened(world) as runtime:
            assert await the(runtime, created.id) == created
            assert not is_marked()
            await runtime.start(created.id)
            await until(is_marked)

    @story
    async def test_a_removed_container_stays_removed(self, world: World) -> None:
        async with opened(world) as runtime:
            await runtime.remove((await started(runtime, world.lasting())).id)
        async with opened(world) as runtime:
            assert await runtime.containers() == []

    @story
    async def test_many_at_once(self, world: World) -> None:
        async with opened(world) as runtime:
            specs = [replace(a_spec(world.ending(n), f"c{n}"), attempt=n) for n in range(12)]
            created = await asyncio.gather(*map(runtime.create, specs))
            await asyncio.gather(*(runtime.start(status.id) for status in created))
            told = [await next_exit(runtime) for _ in specs]
            assert sorted(status.id for status in told) == sorted(s.id for s in created)
            assert all(status.exit_code == status.attempt for status in told)
            await asyncio.gather(*(runtime.remove(status.id) for status in created))
            assert await runtime.containers() == []
