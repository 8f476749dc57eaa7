"""Containers as plain processes: full disks, processes that do not behave, limits."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.core.pod.workload import Process
from pinfold.linux.processes import stat_of
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.runtime import ContainerState
from tests.scenes.process_world import (
    ProcessWorld,
    a_process_world,
    answer,
    is_alive,
    process_state,
    processes_of,
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
from tests.scenes.small_disk import SmallDisk, small_disk
from tests.scenes.waiting import until, wait_until

world = pytest.fixture(a_process_world)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path) as world:
        yield world


def test_a_full_disk_refuses_a_container_and_leaves_nothing(disk: SmallDisk) -> None:
    async def run() -> None:
        async with opened(disk) as runtime:
            first = await started(runtime, disk.lasting())
            supervisors = disk.processes()
            ballast = disk.fill()
            before = set(disk.root.iterdir())
            with pytest.raises(RuntimeFailedError, match="No space left on device"):
                await runtime.create(a_spec(disk.lasting(), "other"))
            assert set(disk.root.iterdir()) == before
            assert disk.processes() == supervisors
            assert await runtime.containers() == [first]
            ballast.unlink()
            await started(runtime, disk.lasting(), "other")

    play(run())


@pytest.mark.parametrize("pages", range(1, 7))
def test_a_disk_that_fills_up_meanwhile_leaves_nothing(disk: SmallDisk, pages: int) -> None:
    """There is room for the first files of a container, but not for all."""

    async def run() -> None:
        async with opened(disk) as runtime:
            await runtime.containers()
            ballast = disk.fill()
            os.truncate(ballast, ballast.stat().st_size - pages * 4096)
            try:
                created = await runtime.create(a_spec(disk.lasting()))
            except RuntimeFailedError as error:
                assert "o space left" in str(error) or "no room" in str(error)  # noqa: PT017 - either
                assert list(disk.root.iterdir()) == []
                assert await runtime.containers() == []
            else:
                await runtime.remove(created.id)
            assert disk.processes() == []

    play(run())


def test_a_full_disk_does_not_lose_an_exit(disk: SmallDisk) -> None:
    async def run() -> None:
        async with opened(disk) as runtime:
            running = await started(runtime, Process(("sh", "-c", "sleep 0.2; exit 6")))
            disk.fill()
            assert (await next_exit(runtime)).exit_code == 6
        async with opened(disk) as runtime:
            assert (await until_exited(runtime, running.id)).exit_code == 6
            await runtime.remove(running.id)

    play(run())


def test_a_start_that_cannot_be_written_down_does_not_happen(disk: SmallDisk) -> None:
    """An agent that comes later would take the container for one that only waits."""
    process, is_marked = disk.marking()

    async def run() -> None:
        async with opened(disk) as runtime:
            created = await runtime.create(a_spec(process))
            disk.fill()
            with pytest.raises(RuntimeFailedError, match=r"cannot write .*started"):
                await runtime.start(created.id)
            status = await the(runtime, created.id)
            assert status is not None
            assert (status.state, status.exit_code) == (ContainerState.EXITED, 126)
        assert not is_marked()

    play(run())


def test_a_disk_that_cannot_be_written_is_an_error(disk: SmallDisk) -> None:
    async def run() -> None:
        async with opened(disk) as runtime:
            # A disk with a file open for writing cannot become read-only, so close the log.
            quiet = Process(("sh", "-c", "exec sleep 1000 >&- 2>&-"))
            running = await started(runtime, quiet)
            await until(lambda: disk.remounts("ro"))
            try:
                with pytest.raises(RuntimeFailedError, match="Read-only file system"):
                    await runtime.create(a_spec(disk.lasting(), "other"))
                # The supervisor tries for a second to write the exit down.
                for _ in range(2):
                    with pytest.raises(RuntimeFailedError, match="Read-only file system"):
                        await runtime.remove(running.id)
                lost = await next_exit(runtime)
                assert (lost.id, lost.exit_code) == (running.id, 137)
                assert await the(runtime, running.id) == lost
                await no_exit(runtime, 0.01)
            finally:
                assert disk.remounts("rw")
            await runtime.remove(running.id)
            assert await runtime.containers() == []

    play(run())


def test_a_stopped_process_runs_and_can_be_removed(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
            await runtime.signal(running.id, signal.SIGSTOP)
            pid = running.pid
            assert pid is not None
            await until(lambda: process_state(pid) == "T")
            await runtime.signal(running.id, signal.SIGTERM)
            await no_exit(runtime, 0.1)
            assert await the(runtime, running.id) == running
            await runtime.signal(running.id, signal.SIGCONT)
            assert (await next_exit(runtime)).exit_code == 143
            other = await started(runtime, world.lasting())
            await runtime.signal(other.id, signal.SIGSTOP)
            await runtime.remove(other.id)
            assert other.pid is not None
            assert not is_alive(other.pid)

    play(run())


def test_a_process_that_ignores_sigterm_is_killed(world: ProcessWorld) -> None:
    process, is_marked = world.marking()
    script = f"trap '' TERM; {process.argv[2]}"  # what is ignored stays so when executed

    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, Process(("sh", "-c", script)))
            await until(is_marked)
            await runtime.signal(running.id, signal.SIGTERM)
            await no_exit(runtime, 0.1)
            await runtime.signal(running.id, signal.SIGKILL)
            assert (await next_exit(runtime)).exit_code == 137

    play(run())


def test_a_daemon_s_container_ends_with_its_main_process(world: ProcessWorld) -> None:
    """What it leaves behind lives on, and is found by the cgroup, which is not the runtime's."""
    pid_file = world.folder / "daemon.pid"
    script = f"(setsid sleep 1000 & echo $! > {pid_file}) ; exit 2"

    async def run() -> None:
        async with opened(world) as runtime:
            await started(runtime, Process(("sh", "-c", script)))
            assert (await next_exit(runtime)).exit_code == 2
            daemon = int(pid_file.read_text())
            assert is_alive(daemon)
            os.kill(daemon, signal.SIGKILL)

    play(run())
    wait_until(lambda: not world.processes())


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, 40])
def test_an_end_by_a_signal_is_its_number_and_128(world: ProcessWorld, number: int) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, Process(("sh", "-c", f"kill -{int(number)} $$")))
            assert (await until_exited(runtime, running.id)).exit_code == 128 + number

    play(run())


@pytest.mark.parametrize("number", [-1, 65, 1 << 40])
def test_a_signal_that_does_not_exist_is_an_error(world: ProcessWorld, number: int) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
            with pytest.raises(RuntimeFailedError, match=f"signal {number} to process"):
                await runtime.signal(running.id, number)
            assert await the(runtime, running.id) == running

    play(run())


def test_a_start_that_hangs_is_given_up_for_good(world: ProcessWorld) -> None:
    """A process in a frozen cgroup does not hear the word; it must not hear it later either."""
    process, is_marked = world.marking()

    async def run() -> None:
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(process))
        assert created.pid is not None
        os.kill(created.pid, signal.SIGSTOP)
        with world.of_patience(0.2):
            async with opened(world) as runtime:
                with pytest.raises(RuntimeFailedError, match="could not be started and was killed"):
                    await runtime.start(created.id)
                assert (await until_exited(runtime, created.id)).exit_code == 137
        assert not is_marked()

    play(run())


def test_a_start_that_is_cancelled_may_have_happened(world: ProcessWorld) -> None:
    """The word cannot be taken back; the container says what became of it, and its exit is told."""
    process, is_marked = world.marking()

    async def run() -> None:
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(process))
            pid = created.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: process_state(pid) == "T")
            task = asyncio.create_task(runtime.start(created.id))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await the(runtime, created.id) == created
            os.kill(pid, signal.SIGCONT)
            await until(is_marked)
            status = await the(runtime, created.id)
            assert status is not None
            assert status.state is ContainerState.RUNNING
            await runtime.signal(created.id, signal.SIGTERM)
            assert (await next_exit(runtime)).id == created.id

    play(run())


def test_a_supervisor_that_hangs_is_no_obstacle(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
        (supervisor,) = processes_of(str(world.root))
        os.kill(supervisor, signal.SIGSTOP)
        with world.of_patience(0.3):
            async with opened(world) as runtime:
                await runtime.remove(running.id)
                assert await runtime.containers() == []

    play(run())


def test_a_creation_that_is_cancelled_leaves_nothing(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            for moment in (0, 2, 4, 6, 7, 8, 9, 10, 12, 15, 20):
                task = asyncio.create_task(runtime.create(a_spec(world.lasting())))
                await asyncio.sleep(moment / 1000)
                task.cancel()
                try:
                    created = await task
                except asyncio.CancelledError:
                    pass
                else:
                    await runtime.remove(created.id)
            assert await runtime.containers() == []
            assert list(world.root.iterdir()) == []
            assert world.processes() == []

    play(run())


def children() -> set[int]:
    """Of this process, dead ones that nobody has waited for included."""
    stats = (stat_of(int(pid)) for pid in os.listdir("/proc") if pid.isdecimal())
    return {stat.pid for stat in stats if stat is not None and stat.parent == os.getpid()}


def test_a_supervisor_that_never_answers_is_given_up(
    world: ProcessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = world.folder / "python"
    hung.write_text("#!/bin/sh\nkill -STOP $$\n")
    hung.chmod(0o755)
    before = children()

    async def run() -> None:
        async with opened(world) as runtime:
            with pytest.raises(RuntimeFailedError, match="no supervisor came up"):
                await runtime.create(a_spec(world.lasting()))
            assert await runtime.containers() == []
            assert world.processes() == []

    monkeypatch.setattr(sys, "executable", str(hung))
    with world.of_patience(0.2):
        play(run())
    assert list(world.root.iterdir()) == []
    assert children() <= before


def test_too_few_files_are_one_error(world: ProcessWorld) -> None:
    """At the limit, containers are refused and those that run are kept."""
    text = answer(
        world,
        "from pinfold.ports.errors import RuntimeFailedError",
        "made = 0",
        "try:",
        "    while made < 60:",
        "        await started(runtime, Process(('sleep', '1000')), f'c{made}')",
        "        made += 1",
        "except RuntimeFailedError as error:",
        "    folders = os.listdir(runtime.log('x').parents[1])",
        "    print(made, len(await runtime.containers()), len(folders))",
        "    print(error)",
        under=("prlimit", "--nofile=24:24"),
    )
    figures, message = text.strip().split("\n")
    made, known, folders = map(int, figures.split())
    assert 0 < made == known == folders
    assert os.strerror(errno.EMFILE) in message
    wait_until(lambda: len(world.processes()) == made)


def test_a_creation_that_runs_out_of_files_leaves_no_folder(world: ProcessWorld) -> None:
    """Wherever it does: each has one more."""
    text = answer(
        world,
        "import resource",
        "from pinfold.ports.errors import RuntimeFailedError",
        "await runtime.containers()",
        "had = resource.getrlimit(resource.RLIMIT_NOFILE)",
        "used, refused, left = len(os.listdir('/proc/self/fd')) - 1, 0, []",
        "for more in range(16):",
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, had[1]))",
        "    try:",
        "        made = await runtime.create(a_spec(Process(('sleep', '1000')), f'c{more}'))",
        "    except RuntimeFailedError:",
        "        refused += 1",
        "    else:",
        "        resource.setrlimit(resource.RLIMIT_NOFILE, had)",
        "        await runtime.remove(made.id)",
        "    resource.setrlimit(resource.RLIMIT_NOFILE, had)",
        "    left += os.listdir(runtime.log('x').parents[1])",
        "print(refused, len(left))",
    )
    refused, left = map(int, text.split())
    assert 2 < refused < 16
    assert left == 0
    wait_until(lambda: not world.processes())


def test_a_folder_deleted_by_somebody_else_is_told_at_the_end(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
            shutil.rmtree(world.root / running.id)
            await runtime.signal(running.id, signal.SIGTERM)
            told = await next_exit(runtime)
            assert (told.id, told.state) == (running.id, ContainerState.EXITED)
            await runtime.remove(running.id)
            assert await runtime.containers() == []

    play(run())
