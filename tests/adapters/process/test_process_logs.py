"""What plain processes write: kept, bounded, and never in the way of anybody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.process import ProcessRuntime, registry
from pinfold.adapters.process.launch import launch_reader
from pinfold.adapters.process.output import Log, as_lines
from pinfold.core.pod.workload import Process
from pinfold.logs.folders import LogFolders
from pinfold.logs.layout import LogLimits, parts
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.records import PodPhase, PodRecord
from pinfold.ports.runtime import ContainerState, ContainerStatus
from tests.scenes.log_texts import bytes_of, text_of
from tests.scenes.process_world import (
    ProcessWorld,
    is_alive,
    process_state,
    processes_of,
)
from tests.scenes.runtime_contract import a_spec, next_exit, opened, play, started, until_exited
from tests.scenes.small_disk import SmallDisk, small_disk
from tests.scenes.waiting import until, wait_until

FLOOD = "i=0; while :; do echo 0123456789012345678901234567890123456789; done"
LIMITS = LogLimits(size=64 * 1024, files=3)


class BoundedWorld(ProcessWorld):
    def open(self) -> ProcessRuntime:
        return ProcessRuntime(self.root, patience=self.patience, log_limits=LIMITS)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ProcessWorld]:
    world = BoundedWorld(tmp_path)
    yield world
    world.clear()


def sizes(log: Path) -> list[int]:
    """Of all files of a log; one may be removed meanwhile."""
    found = []
    for part in parts(log):
        with contextlib.suppress(FileNotFoundError):
            found.append(part.stat().st_size)
    return found


def python(script: str) -> Process:
    return Process((sys.executable, "-I", "-c", script))


def test_a_log_is_bounded_and_keeps_what_is_newest(world: ProcessWorld) -> None:
    count = 20_000

    async def run() -> None:
        async with opened(world) as runtime:
            script = f"for i in range({count}): print('line', i)"
            running = await started(runtime, python(script))
            await next_exit(runtime)
            log = runtime.log(running.id).resolve()
            assert len(sizes(log)) == LIMITS.files
            assert max(sizes(log)) <= LIMITS.size
            lines = text_of(log).splitlines()
            assert lines == [f"line {i}" for i in range(count - len(lines), count)]

    play(run())


def test_a_flood_is_bounded_at_every_moment(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, Process(("sh", "-c", FLOOD)))
            log = runtime.log(running.id).resolve()
            await until(lambda: len(parts(log)) == LIMITS.files)
            first = parts(log)[0].name
            while parts(log)[0].name == first:
                assert sum(sizes(log)) <= LIMITS.files * LIMITS.size
                await asyncio.sleep(0.001)
            await runtime.remove(running.id)

    play(run())


def test_a_log_outlives_its_container_and_not_the_next_but_one(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            for attempt in range(3):
                spec = a_spec(Process(("echo", f"attempt {attempt}")), attempt=attempt)
                created = await runtime.create(spec)
                log = runtime.log(created.id).resolve()
                await runtime.start(created.id)
                await next_exit(runtime)
                await runtime.remove(created.id)
        assert log == world.folder / "logs" / "default_web_uid-1" / "main" / "2.log"
        found = {path.name: text_of(path) for path in log.parent.iterdir()}
        assert found == {"1.log": "attempt 1\n", "2.log": "attempt 2\n"}

    play(run())


def test_lines_are_those_of_the_cri(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, Process(("sh", "-c", "echo a; echo b >&2; printf c")))
            await next_exit(runtime)
            lines = runtime.log(running.id).read_text().splitlines()
            time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z"
            for line, end in zip(lines, ("F a", "F b", "P c"), strict=True):
                assert re.fullmatch(f"{time} stdout {end}", line)

    play(run())


@given(st.lists(st.binary(max_size=30)), st.integers(1, 200), st.integers(2, 4))
def test_what_is_kept_is_the_end_of_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], size: int, count: int
) -> None:
    file = tmp_path_factory.mktemp("log") / "0.log"
    log = Log(os.fsencode(file), size, count)
    lines = b"".join(as_lines(chunk, b"x" * 30) for chunk in chunks).split(b"\n")
    longest = 1 + max(map(len, lines))
    for chunk in chunks:
        log.take(chunk)
        assert all(part.stat().st_size <= max(size, longest) for part in parts(file))
        assert len(parts(file)) <= count
    assert log.close() == ""
    assert b"".join(chunks).endswith(bytes_of(file) if parts(file) else b"")
    if len(parts(file)) < count:
        assert bytes_of(file) == b"".join(chunks)


def test_a_full_disk_costs_output_and_nothing_else(tmp_path: Path) -> None:
    with small_disk(tmp_path) as disk:
        play(_write_on_a_full_disk(disk))


async def _write_on_a_full_disk(disk: SmallDisk) -> None:
    """A container writes more than a pipe holds, while there is no room; then there is again."""
    go, mark = disk.folder / "go", disk.folder / "mark"
    script = (
        f"print('before', flush=True); import os, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        f"for i in range(80_000): print('x' * 50)\n"
        f"print(flush=True); open({str(mark)!r}, 'w')\n"
        f"while os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        f"print('after')"
    )
    async with opened(disk) as runtime:
        running = await started(runtime, python(script))
        log = runtime.log(running.id)
        # The file is there before what is written into it.
        await until(lambda: log.exists() and text_of(log))
        ballast = disk.fill()
        go.touch()
        await until(mark.exists)  # it was not held up
        supervisors = disk.processes()
        assert len(supervisors) == 1
        ballast.unlink()
        go.unlink()
        assert (await next_exit(runtime)).exit_code == 0
        text = text_of(log)
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        lost = re.search(
            r"^(\d+) bytes of output were lost: No space left on device$", text, re.MULTILINE
        )
        assert lost is not None
        assert int(lost[1]) > 1 << 20
        await runtime.remove(running.id)


def test_what_could_not_be_said_in_the_log_is_said_of_the_end(tmp_path: Path) -> None:
    async def run(disk: SmallDisk) -> None:
        go = disk.folder / "go"
        script = f"while [ ! -e {go} ]; do sleep 0.01; done; echo lost"
        async with opened(disk) as runtime:
            running = await started(runtime, Process(("sh", "-c", script)))
            ballast = disk.fill()
            go.touch()
            told = await next_exit(runtime)
            assert told.exit_code == 0
            assert told.message == "5 bytes of its output were lost: No space left on device"
            ballast.unlink()
            await runtime.remove(running.id)

    with small_disk(tmp_path) as disk:
        play(run(disk))


def test_a_log_that_is_removed_is_begun_anew(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, Process(("sh", "-c", FLOOD)))
            log = runtime.log(running.id).resolve()
            await until(log.exists)
            for part in parts(log):
                part.unlink(missing_ok=True)
            await until(log.exists)
            await runtime.remove(running.id)

    play(run())


def test_a_daemon_that_writes_on_does_not_hold_up_the_end(world: ProcessWorld) -> None:
    pid_file = world.folder / "daemon.pid"
    script = f"(setsid sh -c '{FLOOD}' & echo $! > {pid_file}); exit 3"

    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, Process(("sh", "-c", script)))
            told = await next_exit(runtime)
            assert (told.id, told.exit_code) == (running.id, 3)

    try:
        play(run())
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


def test_standard_output_can_be_opened_again_by_any_user(world: ProcessWorld) -> None:
    script = "import os; os.setuid(65534); print('again', file=open('/proc/self/fd/1', 'w'))"
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")

    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, python(script))
            assert (await next_exit(runtime)).exit_code == 0
            assert text_of(runtime.log(running.id)) == "again\n"

    play(run())


def reader_of(world: ProcessWorld) -> list[int]:
    """The processes that read what orphans write."""
    return [pid for pid in processes_of("output.succeed()") if pid in world.processes()]


async def _orphan(runtime: ProcessRuntime, world: ProcessWorld, *, go: Path) -> ContainerStatus:
    """One that writes more than a pipe holds once ``go`` is there, and whose supervisor is dead."""
    script = (
        "import os, time\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        "for i in range(200_000): print('line', i, flush=i == 199_999)\n"
        "time.sleep(1000)"
    )
    running = await started(runtime, python(script))
    (supervisor,) = world.processes()
    os.kill(supervisor, signal.SIGKILL)
    await until(lambda: not is_alive(supervisor))
    return running


def is_complete(log: Path) -> bool:
    return log.exists() and text_of(log).endswith("line 199999\n")


def test_an_orphan_s_output_is_read_on(world: ProcessWorld) -> None:
    go = world.folder / "go"

    async def run() -> None:
        async with opened(world) as runtime:
            running = await _orphan(runtime, world, go=go)
            go.touch()
            log = runtime.log(running.id).resolve()
            await until(lambda: is_complete(log))
            (reader,) = reader_of(world)
            os.kill(reader, signal.SIGKILL)
            # Another one takes its place.
            await until(lambda: reader_of(world) not in ([], [reader]))
            assert len(reader_of(world)) == 1
            await runtime.remove(running.id)

    play(run())
    wait_until(lambda: not reader_of(world))


def test_a_reader_that_cannot_work_is_not_started_again_and_again(
    world: ProcessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the link to its log is gone; it is the same when the program is being replaced."""
    begun: list[float] = []

    def counted(*args: Any) -> int | None:
        begun.append(time.monotonic())
        return launch_reader(*args)

    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
            (supervisor,) = world.processes()
            (world.root / running.id / "log").unlink()
            os.kill(supervisor, signal.SIGKILL)
            await until(lambda: len(begun) > 3)
            for pause, one, other in zip((0.1, 0.2, 0.4), begun, begun[1:], strict=False):
                assert other - one >= pause
            await runtime.remove(running.id)

    monkeypatch.setattr(registry, "launch_reader", counted)
    play(run())


def test_orphans_live_on_where_no_more_files_can_be_open(
    world: ProcessWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader was started, and the kernel has no room to say which process it is."""

    def short(pid: int) -> None:
        raise RuntimeFailedError(f"cannot look at process {pid}: Too many open files")

    async def run() -> None:
        async with opened(world) as runtime:
            running = [await started(runtime, world.lasting(), name) for name in "ab"]
            supervisors = world.processes()
            with monkeypatch.context() as patch:
                patch.setattr(registry, "identify", short)
                for supervisor in supervisors:
                    os.kill(supervisor, signal.SIGKILL)
                wait_until(lambda: all(process_state(one) in ("", "Z") for one in supervisors))
                for _ in range(3):
                    assert {one.state for one in await runtime.containers()} == {
                        ContainerState.RUNNING
                    }
            for one in running:
                await runtime.signal(one.id, signal.SIGTERM)
            assert {(await next_exit(runtime)).id for _ in running} == {one.id for one in running}


def test_a_log_that_was_removed_is_made_anew(world: ProcessWorld) -> None:
    go = world.folder / "go"
    script = f"echo before; while [ ! -e {go} ]; do sleep 0.01; done; echo after; sleep 100"

    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, Process(("sh", "-c", script)))
            log = runtime.log(running.id).resolve()
            await until(lambda: log.exists() and "before" in text_of(log))
            # As somebody does whose disk is full.
            shutil.rmtree(log.parent)
            go.touch()
            await until(lambda: log.exists() and "after" in text_of(log))
            assert "before" not in text_of(log)
            await runtime.remove(running.id)

    play(run())


def test_an_orphan_of_an_agent_that_is_gone_is_read_by_one_process(world: ProcessWorld) -> None:
    go = world.folder / "go"

    async def first() -> str:
        async with opened(world) as runtime:
            return (await _orphan(runtime, world, go=go)).id

    async def second(container_id: str) -> None:
        readers = []
        for _ in range(2):
            async with opened(world) as runtime:
                await runtime.containers()
                await until(lambda: len(reader_of(world)) > 0)
                readers.append(reader_of(world))
        assert readers[0] == readers[1]
        assert len(readers[0]) == 1
        go.touch()
        async with opened(world) as runtime:
            log = runtime.log(container_id).resolve()
            await until(lambda: is_complete(log))
            await runtime.remove(container_id)

    container_id = play(first())
    play(second(container_id))
    wait_until(lambda: not reader_of(world))


def test_a_container_of_an_older_program_is_adopted_with_its_log(world: ProcessWorld) -> None:
    """It writes to a file of its own, which is emptied where it becomes too large."""

    async def run() -> None:
        async with opened(world) as runtime:
            running = await started(runtime, world.lasting())
        folder = world.root / running.id
        for name in ("log", "output"):
            (folder / name).unlink()
        (supervisor,) = world.processes()
        os.kill(supervisor, signal.SIGKILL)
        log = folder / "log"
        log.write_bytes(bytes(LIMITS.size * LIMITS.files + 1))
        async with opened(world) as runtime:
            assert [status.id for status in await runtime.containers()] == [running.id]
            assert await runtime.bound_logs() == [
                f"{log}: emptied, as it had {LIMITS.size * LIMITS.files + 1} bytes"
            ]
            assert log.stat().st_size == 0
            assert await runtime.bound_logs() == []
            await runtime.signal(running.id, signal.SIGKILL)
            await until_exited(runtime, running.id)

    play(run())


def test_a_container_never_gets_sigpipe(world: ProcessWorld) -> None:
    """Its output is open both ways: it waits for the next reader instead."""

    async def run() -> None:
        async with opened(world) as runtime:
            script = "import os; print(os.get_blocking(1), oct(os.fstat(1).st_mode), flush=True)"
            running = await started(runtime, python(script))
            await next_exit(runtime)
            expected = f"True {oct(stat.S_IFIFO | 0o622)}\n"
            assert text_of(runtime.log(running.id)) == expected

    play(run())


def test_logs_of_pods_that_nobody_knows_are_removed(tmp_path: Path) -> None:
    root = tmp_path / "logs"

    def pod(name: str, uid: str) -> PodRecord:
        return PodRecord(uid, "default", name, "{}", PodPhase.FAILED)

    async def run() -> None:
        logs = LogFolders(root)
        known, strange, long = pod("web", "1"), pod("db", "2"), pod("x" * 250, "3")
        assert await logs.retain([]) == []
        for one in (known, strange, long):
            (logs.folder(one) / "main").mkdir(parents=True)
        (root / "lost+found").mkdir()
        assert await logs.retain([known]) == []
        assert sorted(path.name for path in root.iterdir()) == ["default_web_1", "lost+found"]
        await logs.remove(known)
        await logs.remove(known)
        assert [path.name for path in root.iterdir()] == ["lost+found"]

    play(run())


def test_supervisors_are_where_the_agent_is(world: ProcessWorld) -> None:
    """They work while containers write: after a restart with other reservations, somewhere else."""
    cpus = os.sched_getaffinity(0)
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")

    async def found() -> set[int]:
        async with opened(world) as runtime:
            await runtime.containers()
            (supervisor,) = world.processes()
            return os.sched_getaffinity(supervisor)

    async def begin() -> None:
        async with opened(world) as runtime:
            await started(runtime, world.lasting())

    try:
        os.sched_setaffinity(0, {min(cpus)})
        play(begin())
        os.sched_setaffinity(0, {max(cpus)})
        assert play(found()) == {max(cpus)}
    finally:
        os.sched_setaffinity(0, cpus)
