"""Containers as plain processes: what the next agent finds, also after the worst."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.process import ProcessRuntime
from pinfold.adapters.process.command import resolve
from pinfold.adapters.process.documents import Identity, Processes
from pinfold.adapters.process.folder import ContainerFolder
from pinfold.adapters.process.launch import supervisor_command
from pinfold.adapters.process.processes import ProcessId, identify
from pinfold.core.pod.workload import Process
from pinfold.linux.processes import boot_id
from pinfold.logs.layout import LogLimits
from pinfold.ports.errors import ContainerKey, RuntimeFailedError
from pinfold.ports.runtime import ContainerState, ContainerStatus, Runtime
from tests.scenes.process_world import (
    ProcessWorld,
    a_process_world,
    agent,
    is_alive,
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
from tests.scenes.waiting import until, wait_until

world = pytest.fixture(a_process_world)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is nobody's container and has to live on."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        assert process.poll() is None
        process.kill()


def processes(world: ProcessWorld, container_id: str) -> tuple[int, int]:
    """The pids of a container's supervisor and main process, from the disk."""
    lines = (world.root / container_id / "state").read_text().splitlines()
    values = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(values["supervisor"].split()[0]), int(values["main"].split()[0])


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def running_then_closed(world: ProcessWorld, process: Process) -> ContainerStatus:
    async with opened(world) as runtime:
        return await started(runtime, process)


def test_containers_live_on_when_their_agent_is_killed(world: ProcessWorld) -> None:
    with agent(
        world,
        "a = await started(runtime, Process(('sleep', '1000')), 'a')",
        "b = await runtime.create(a_spec(Process(('sh', '-c', 'exit 4')), 'b'))",
        "c = await started(runtime, Process(('sh', '-c', 'sleep 0.3; exit 9')), 'c')",
        "print(a.id, b.id, c.id, a.pid, flush=True)",
        "os.kill(os.getpid(), signal.SIGKILL)",
    ) as process:
        text, _ = process.communicate(timeout=30)
    first, second, third, pid = text.split()

    async def run() -> None:
        async with opened(world) as runtime:
            found = {status.key.name: status for status in await runtime.containers()}
            assert [found[name].id for name in "abc"] == [first, second, third]
            assert found["a"].state is ContainerState.RUNNING
            assert found["a"].pid == int(pid)
            assert found["b"].state is ContainerState.CREATED
            assert (await until_exited(runtime, third)).exit_code == 9
            await runtime.start(second)
            assert (await until_exited(runtime, second)).exit_code == 4
            await runtime.signal(first, signal.SIGTERM)
            assert (await until_exited(runtime, first)).exit_code == 143

    assert parent(processes(world, first)[0]) != process.pid
    play(run())


def test_an_agent_killed_at_any_moment_leaves_no_stray(world: ProcessWorld) -> None:
    """Whatever it was doing: what waits or runs is a container of the next agent, and no more."""
    seed = random.Random(5)  # noqa: S311 - moments, not secrets
    for _ in range(8):
        with agent(
            world,
            "print(flush=True)",
            "while True:",
            "    c = await started(runtime, Process(('sleep', '1000')))",
            "    await runtime.remove((await runtime.create(a_spec(Process(('true',))))).id)",
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(seed.uniform(0, 0.06))
            process.kill()
            process.communicate()

    async def run() -> list[ContainerStatus]:
        async with opened(world) as runtime:
            return list(await runtime.containers())

    # A supervisor that was just being started finds its folder gone, or is adopted once complete.
    wait_until(lambda: len(world.processes()) <= len(play(run())) * 2)

    def accounted_for() -> bool:
        statuses = play(run())
        lasting = [s for s in statuses if s.state is not ContainerState.EXITED]
        living = {processes(world, s.id)[0] for s in lasting}
        waiting = {s.pid for s in statuses if s.state is ContainerState.CREATED}
        return set(world.processes()) == living | waiting

    wait_until(accounted_for)
    names = sorted(path.name for path in world.root.iterdir())
    assert names == sorted(s.id for s in play(run()))


@pytest.mark.parametrize("present", [True, False], ids=["agent there", "agent away"])
def test_a_killed_supervisor_does_not_end_its_container(world: ProcessWorld, present: bool) -> None:
    async def seen(runtime: Runtime, running: ContainerStatus) -> None:
        supervisor, main = processes(world, running.id)
        assert main == running.pid
        await no_exit(runtime, 0.1)
        assert await the(runtime, running.id) == running
        await runtime.signal(running.id, signal.SIGTERM)
        told = await next_exit(runtime)
        assert (told.state, told.exit_code, told.pid) == (ContainerState.EXITED, 137, None)
        assert f"its supervisor (process {supervisor}) was killed" in told.message

    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
            if present:
                os.kill(processes(world, running.id)[0], signal.SIGKILL)
                await seen(runtime, running)
        if not present:
            os.kill(processes(world, running.id)[0], signal.SIGKILL)
            async with opened(world) as runtime:
                await seen(runtime, running)
        async with opened(world) as runtime:
            first = await the(runtime, running.id)
        async with opened(world) as runtime:
            assert first is not None
            assert first.finished_at is not None
            assert await the(runtime, running.id) == first, "the conclusion is kept"

    play(run())


def test_supervisor_and_main_killed_in_the_absence(world: ProcessWorld) -> None:
    async def run() -> None:
        running = await running_then_closed(world, world.lasting())
        for pid in processes(world, running.id):
            os.kill(pid, signal.SIGKILL)
        async with opened(world) as runtime:
            assert (await until_exited(runtime, running.id)).exit_code == 137

    play(run())


def test_a_process_that_waits_dies_with_its_supervisor(world: ProcessWorld) -> None:
    process, is_marked = world.marking()

    async def run() -> None:
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(process))
            assert created.pid is not None
            os.kill(processes(world, created.id)[0], signal.SIGKILL)
            told = await next_exit(runtime)
            assert (told.id, told.exit_code) == (created.id, 137)
            assert not is_alive(created.pid)
            with pytest.raises(RuntimeFailedError):
                await runtime.start(created.id)
        assert not is_marked()

    play(run())


def test_a_word_that_a_killed_agent_gave_counts(world: ProcessWorld) -> None:
    process, is_marked = world.marking()

    async def run() -> None:
        async with opened(world) as runtime:
            created = await runtime.create(a_spec(process))
        (world.root / created.id / "go").write_bytes(b"\n")
        await until(is_marked)
        async with opened(world) as runtime:
            found = await the(runtime, created.id)
            assert found is not None
            assert (found.state, found.pid) == (ContainerState.RUNNING, created.pid)
            assert found.started_at is not None

    play(run())


def test_after_a_reboot_pids_mean_nothing(
    world: ProcessWorld, bystander: subprocess.Popen[bytes]
) -> None:
    async def run() -> None:
        running = await running_then_closed(world, world.ending(0))
        wait_until(lambda: not world.processes())
        folder = world.root / running.id
        (folder / "exit").unlink()
        me = identify(bystander.pid)
        assert me is not None
        boot = "00000000-0000-0000-0000-000000000000"
        who = f"supervisor {me.pid} {me.start}\nmain {me.pid} {me.start}\n"
        (folder / "state").write_text(f"pinfold-process 1\nboot {boot}\n{who}note \nend\n")
        async with opened(world) as runtime:
            status = await the(runtime, running.id)
            assert status is not None
            assert (status.state, status.exit_code) == (ContainerState.EXITED, 255)
            assert status.message == "the machine was restarted"
            await runtime.signal(running.id, signal.SIGKILL)
            await runtime.remove(running.id)

    play(run())


def test_a_pid_that_was_used_again_is_somebody_else(
    world: ProcessWorld, bystander: subprocess.Popen[bytes]
) -> None:
    """The kernel gives the pid of a dead main process to a stranger, who must not be touched."""

    async def run() -> None:
        running = await running_then_closed(world, world.ending(0))
        wait_until(lambda: not world.processes())
        folder = world.root / running.id
        (folder / "exit").unlink()
        stranger = identify(bystander.pid)
        assert stranger is not None
        dead = ProcessId(stranger.pid, stranger.start - 1)
        ContainerFolder(folder).write_processes(Processes(boot_id(), dead, dead))
        async with opened(world) as runtime:
            assert (await until_exited(runtime, running.id)).exit_code == 137
            await runtime.signal(running.id, signal.SIGKILL)
            await runtime.remove(running.id)

    play(run())


CORRUPT = {
    "state empty": ("state", b"", "truncated"),
    "state truncated": ("state", b"pinfold-process 1\nboot x\nsuper", "truncated"),
    "state no text": ("state", b"\xff\xfe\nend\n", "makes no sense"),
    "state no pids": ("state", b"boot x\nmain a b\nnote \nend\n", "makes no sense"),
    "state huge": ("state", b"x" * 100_000, "larger than"),
    "exit empty": ("exit", b"", "truncated"),
    "exit no number": ("exit", b"code x\nat 1\nmessage \nend\n", "makes no sense"),
    "spec empty": ("spec.json", b"", "makes no sense"),
    "spec of another kind": ("spec.json", b'{"version": 1}', "makes no sense"),
}


@pytest.mark.parametrize("case", CORRUPT)
def test_a_corrupt_record_is_told_and_can_be_removed(world: ProcessWorld, case: str) -> None:
    name, content, words = CORRUPT[case]

    async def run() -> None:
        running = await running_then_closed(world, world.ending(0))
        wait_until(lambda: not world.processes())
        (world.root / running.id / name).write_bytes(content)
        async with opened(world) as runtime:
            other = await started(runtime, world.lasting(), "other")
            status = await the(runtime, running.id)
            assert status is not None
            assert status.state is ContainerState.EXITED
            assert words in status.message
            assert str(world.root / running.id / name) in status.message
            assert status.key == running.key, "the other files say whose it is"
            await runtime.remove(running.id)
            assert await runtime.containers() == [other]

    play(run())


def test_a_record_that_is_a_folder_is_told(world: ProcessWorld) -> None:
    async def run() -> None:
        running = await running_then_closed(world, world.ending(0))
        wait_until(lambda: not world.processes())
        (world.root / running.id / "exit").unlink()
        (world.root / running.id / "exit").mkdir()
        async with opened(world) as runtime:
            assert "no regular file" in (await until_exited(runtime, running.id)).message

    play(run())


def test_a_container_without_its_specification_can_be_ended(world: ProcessWorld) -> None:
    async def run() -> None:
        running = await running_then_closed(world, world.lasting())
        (world.root / running.id / "spec.json").unlink()
        async with opened(world) as runtime:
            status = await the(runtime, running.id)
            assert status is not None
            assert (status.state, status.pid) == (ContainerState.RUNNING, running.pid)
            assert status.key == running.key
            await runtime.remove(running.id)
        assert running.pid is not None
        assert not is_alive(running.pid)

    play(run())


def test_what_is_half_made_or_half_removed_is_cleared_away(world: ProcessWorld) -> None:
    world.root.mkdir()
    half = world.root / ("1" * 32)
    half.mkdir()
    (half / "spec.json").write_text("{}")
    removing = world.root / ("2" * 32 + ".removing")
    removing.mkdir()
    (removing / "log").write_text("")
    foreign = [world.root / "lost+found", world.root / "notes"]
    foreign[0].mkdir()
    foreign[1].write_text("mine")

    async def run() -> None:
        async with opened(world) as runtime:
            assert await runtime.containers() == []

    play(run())
    assert sorted(world.root.iterdir()) == foreign


def test_a_supervisor_that_was_just_in_time_is_adopted(world: ProcessWorld) -> None:
    """It wrote its state a moment before an agent, since killed, put the folder aside."""

    async def run() -> None:
        running = await running_then_closed(world, world.lasting())
        folder = world.root / running.id
        folder.rename(folder.with_name(f"{running.id}.removing"))
        async with opened(world) as runtime:
            assert await runtime.containers() == [running]
            await runtime.signal(running.id, signal.SIGTERM)
            assert (await next_exit(runtime)).exit_code == 143

    play(run())


def test_a_supervisor_that_was_overtaken_gives_up(world: ProcessWorld) -> None:
    """Its agent was killed, the next one cleared the folder away: the command never runs."""
    world.root.mkdir()
    folder = ContainerFolder(world.root / ("3" * 32))
    folder.make(world.folder / "log")
    process, is_marked = world.marking()
    with subprocess.Popen(
        supervisor_command(folder, Identity(ContainerKey("uid-1", "main")), LogLimits()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as supervisor:

        async def run() -> None:
            async with opened(world) as runtime:
                assert await runtime.containers() == []

        play(run())
        assert not folder.path.exists()
        text, _ = supervisor.communicate(resolve(a_spec(process)).order("boot", 100))
    assert b"No such file" in text
    assert supervisor.returncode == 1
    assert world.processes() == []
    assert not is_marked()


def test_a_folder_is_for_one_agent(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            await runtime.containers()
            second = world.open()
            with pytest.raises(RuntimeFailedError, match="used by another agent"):
                await second.containers()
            await second.close()
        async with opened(world) as runtime:
            assert await runtime.containers() == []

    play(run())


def test_a_folder_that_cannot_be_used_is_an_error(world: ProcessWorld) -> None:
    async def run() -> None:
        (world.folder / "file").write_text("")
        runtime = ProcessRuntime(world.folder / "file" / "root")
        with pytest.raises(RuntimeFailedError, match="Not a directory"):
            await runtime.containers()
        await runtime.close()

    play(run())


def test_a_closed_runtime_tells_no_more_exits(world: ProcessWorld) -> None:
    async def run() -> None:
        runtime = world.open()
        waiting = [asyncio.ensure_future(anext(runtime.exits(), None)) for _ in range(2)]
        await asyncio.sleep(0.01)
        await runtime.close()
        await runtime.close()
        assert await asyncio.gather(*waiting) == [None, None]
        with pytest.raises(RuntimeFailedError, match="was closed"):
            await runtime.containers()

    play(run())


def test_a_supervisor_ignores_the_signals_that_mean_the_agent(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
            supervisor, _ = processes(world, running.id)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(supervisor, number)
            await no_exit(runtime, 0.1)
            assert is_alive(supervisor)
            assert os.getsid(supervisor) == supervisor
            assert processes_of(str(world.root)) == [supervisor]

    play(run())
