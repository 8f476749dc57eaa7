"""Containers as plain processes: whatever is done to their files, nobody who lives is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.process.living import supervisors
from pinfold.core.pod.workload import Process
from pinfold.ports.runtime import ContainerState
from tests.scenes.process_world import (
    ProcessWorld,
    a_process_world,
    is_alive,
)
from tests.scenes.runtime_contract import (
    a_spec,
    next_exit,
    opened,
    play,
    started,
    the,
    until_exited,
)
from tests.scenes.waiting import wait_until

FIFOS = ("go", "outcome", "output")
FILES = ("spec.json", "state", "started", "exit.new", "log", *FIFOS)
ROUNDS = int(os.environ.get("PINFOLD_DAMAGE_ROUNDS", "2"))
"""How many bits of each file are flipped, and how often it is cut short."""


world = pytest.fixture(a_process_world)


def flipped(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


def cut(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size + 1))


def emptied(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def removed(path: Path, _: random.Random) -> None:
    path.unlink()


def a_folder(path: Path, _: random.Random) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


def a_fifo(path: Path, _: random.Random) -> None:
    path.unlink()
    os.mkfifo(path)


def a_dead_link(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def a_link_to_a_device(path: Path, _: random.Random) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def closed(path: Path, _: random.Random) -> None:
    path.chmod(0)


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(flipped, cut, emptied, removed),
    *(a_folder, a_fifo, a_dead_link, a_link_to_a_device, closed),
)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", FILES)
def test_no_file_of_a_container_loses_it(
    world: ProcessWorld, name: str, damage: Callable[[Path, random.Random], None]
) -> None:
    """One that runs, one that waits, and one that ended; each is found again as what it was."""
    chance = random.Random(f"{name} {damage.__name__}")  # noqa: S311 - bits, not secrets

    async def run() -> None:
        async with opened(world) as runtime:
            runs = await started(runtime, world.lasting(), "runs")
            waits = await runtime.create(a_spec(world.lasting(), "waits", attempt=3))
            ended = await started(runtime, world.ending(7), "ended")
            await until_exited(runtime, ended.id)
            fine = await started(runtime, world.lasting(), "fine")
        for one in (runs, waits, ended):
            path = world.root / one.id / name
            if path.exists() and not (name in FIFOS and damage in (flipped, cut, emptied)):
                damage(path, chance)
        for _ in range(2):  # also after what the first start made of it
            async with opened(world) as runtime:
                found = {one.id: one for one in await runtime.containers()}
                assert found[fine.id] == fine
                again = found[runs.id]
                assert (again.state, again.pid) == (ContainerState.RUNNING, runs.pid)
                assert (again.key, again.attempt) == (runs.key, 0)
                assert again.started_at is not None
                assert abs(again.started_at - (runs.started_at or 0)) < 5
                if (other := found.get(waits.id)) is not None:
                    assert (other.state, other.pid) == (ContainerState.CREATED, waits.pid)
                    assert (other.key, other.attempt) == (waits.key, 3)
                else:
                    assert not (world.root / waits.id).exists()
                    assert (name, damage) == ("state", removed), "it is as if it was never made"
                if (other := found.get(ended.id)) is not None:
                    assert (other.state, other.key) == (ContainerState.EXITED, ended.key)
                else:
                    assert name == "state", "without it, it is a deletion that was interrupted"
        async with opened(world) as runtime:
            await runtime.signal(runs.id, signal.SIGTERM)
            assert (await until_exited(runtime, runs.id)).exit_code == 143
            await runtime.remove(runs.id)

    for _ in range(ROUNDS if damage in (flipped, cut) else 1):
        play(run())


@pytest.mark.parametrize("name", ["state", "started", "spec.json"])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_nor_one_that_somebody_else_started(
    world: ProcessWorld, name: str, damage: Callable[[Path, random.Random], None]
) -> None:
    chance = random.Random(f"{name} {damage.__name__}")  # noqa: S311 - bits, not secrets

    async def run(sleeper: subprocess.Popen[bytes]) -> None:
        async with opened(world) as runtime:
            attached = await runtime.attach(a_spec(world.lasting()), sleeper.pid)
        damage(world.root / attached.id / name, chance)
        for _ in range(2):
            async with opened(world) as runtime:
                again = await the(runtime, attached.id)
                assert again is not None
                assert (again.state, again.pid) == (ContainerState.RUNNING, sleeper.pid)
                assert again.key == attached.key
        async with opened(world) as runtime:
            await runtime.remove(attached.id)

    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        play(run(sleeper))


def test_a_folder_that_was_removed_is_made_again(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            runs = await started(runtime, Process(("sh", "-c", "sleep 1000; :")), "runs")
            waits = await runtime.create(a_spec(world.lasting(), "waits"))
        for one in (runs, waits):
            shutil.rmtree(world.root / one.id)
        async with opened(world) as runtime:
            (again,) = await runtime.containers()
            assert (again.id, again.key, again.pid) == (runs.id, runs.key, runs.pid)
            assert again.state is ContainerState.RUNNING
            (problem,) = await runtime.mended()
            assert "uid-1/runs: its folder was removed" in problem
            assert waits.pid is not None
            wait_until(lambda: not is_alive(waits.pid or 0))
            await runtime.signal(runs.id, signal.SIGTERM)
            assert (await next_exit(runtime)).exit_code == 143
            await runtime.remove(runs.id)

    play(run())


def copied(one: Path, other: Path, *names: str) -> None:
    for name in names:
        shutil.copy2(one / name, other / name)


def swapped(one: Path, other: Path, *names: str) -> None:
    for first, second in [(one / name, other / name) for name in names] or [(one, other)]:
        aside = first.with_name("aside")
        first.rename(aside)
        second.rename(first)
        aside.rename(second)


@pytest.mark.parametrize("is_orphan", [False, True], ids=["supervised", "supervisor dead"])
@pytest.mark.parametrize(
    ("change", "names"),
    [
        *((change, ("spec.json",)) for change in (copied, swapped)),
        *((change, ("state", "spec.json")) for change in (copied, swapped)),
        (copied, ("state",)),
        (swapped, ("state",)),
        (swapped, ()),
    ],
    ids=lambda value: "+".join(value) or "folder" if isinstance(value, tuple) else value.__name__,
)
def test_files_of_another_container_change_nobodys_name(
    world: ProcessWorld, change: Callable[..., None], names: tuple[str, ...], is_orphan: bool
) -> None:
    """They are whole, and lie: who a process is, is not for them to say."""

    async def run() -> None:
        async with opened(world) as runtime:
            before = []
            for name in ("own", "other"):
                spec = replace(a_spec(world.lasting(), name), keepsake=f"of {name}")
                before.append(await runtime.start((await runtime.create(spec)).id))
        if is_orphan:
            for pid in world.processes():
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not world.processes())
        change(*(world.root / one.id for one in before), *names)
        for number in range(2):
            async with opened(world) as runtime:
                found = {one.pid: one for one in await runtime.containers()}
                expected = (
                    before[:1] if is_orphan and "state" in names and change is copied else before
                )
                assert {pid: one.key for pid, one in found.items()} == {
                    one.pid: one.key for one in expected
                }
                assert all(one.state is ContainerState.RUNNING for one in found.values())
                if number == 0:
                    # A main process without a supervisor has no other folder than says ``state``.
                    moved = is_orphan and change is swapped and names != ("spec.json",)
                    assert await runtime.mended() or (moved and names != ("state",))
                if change is swapped and not is_orphan:
                    assert [one.id for one in found.values()] == [one.id for one in before]
                    for one in before:
                        assert await runtime.keepsake(one.id) == f"of {one.key.name}"
            assert all(is_alive(one.pid or 0) for one in before)
        for one in before:
            os.kill(one.pid or 0, signal.SIGKILL)

    play(run())


@pytest.mark.parametrize("name", ["0" * 32, "f" * 32])
@pytest.mark.parametrize("state", ["supervised", "supervisor dead", "somebody else's", "renamed"])
def test_a_copy_of_a_folder_is_no_container(world: ProcessWorld, name: str, state: str) -> None:
    async def run(sleeper: subprocess.Popen[bytes]) -> None:
        async with opened(world) as runtime:
            if state == "somebody else's":
                runs = await runtime.attach(a_spec(world.lasting()), sleeper.pid)
            else:
                runs = await started(runtime, world.lasting())
        if state == "supervisor dead":
            for pid in world.processes():
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not world.processes())
        folder = world.root / runs.id
        shutil.copytree(
            folder,
            world.root / name,
            symlinks=True,
            ignore=shutil.ignore_patterns(*FIFOS),
        )
        if state == "renamed":
            shutil.rmtree(folder)
        for number in range(2):
            async with opened(world) as runtime:
                (again,) = await runtime.containers()
                assert (again.pid, again.key) == (runs.pid, runs.key)
                assert again.state is ContainerState.RUNNING
                if state != "somebody else's":
                    assert again.id == runs.id
                if number == 0:
                    assert "its processes are those of container" in (await runtime.mended())[0]
            assert is_alive(runs.pid or 0)
        (aside,) = (world.root / "damaged").iterdir()
        assert (aside / "state").exists()

    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        try:
            play(run(sleeper))
            world.clear()
        finally:
            sleeper.kill()


def test_damage_is_told_once_for_each_file(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            runs = await started(runtime, world.lasting())
            assert await runtime.mended() == ()
        for name in ("spec.json", "state"):
            (world.root / runs.id / name).write_bytes(b"?")
        async with opened(world) as runtime:
            problems = await runtime.mended()
            assert len(problems) == 2
            for name, problem in zip(("spec.json", "state"), problems, strict=True):
                assert problem.startswith(f"container uid-1/main: {world.root / runs.id / name}")

    play(run())


def test_whose_nobody_knows_is_moved_aside_and_stops_nothing(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            fine = await started(runtime, world.lasting())
        for number in (1, 2):
            strange = world.root / (f"{number}" * 32)
            strange.mkdir()
            (strange / "state").write_bytes(b"?")
            if number == 2:
                (world.root / "damaged" / strange.name).mkdir()
                (world.root / "damaged" / strange.name / "x").write_text("")
            async with opened(world) as runtime:
                assert await runtime.containers() == [fine]
                problem = (await runtime.mended())[-1]
                assert f"container {strange.name} is passed over" in problem
                assert (world.root / "damaged" / strange.name) in (
                    path for path in (world.root / "damaged").iterdir()
                )
            assert not strange.exists()

    play(run())


def test_files_of_the_version_before_are_read(world: ProcessWorld) -> None:
    """They have no checksums, and whose it is stands in ``spec.json`` alone."""

    async def run() -> None:
        async with opened(world) as runtime:
            runs = await started(runtime, world.lasting())
            ended = await started(runtime, world.ending(3), "ended")
            ended = await until_exited(runtime, ended.id)
        for one in (runs, ended):
            folder = world.root / one.id
            for name in ("state", "exit"):
                if (folder / name).exists():
                    lines = (folder / name).read_text().splitlines()
                    kept = [li for li in lines if li.split()[0] not in ("sum", "identity")]
                    (folder / name).write_text("\n".join([*kept, ""]))
            text = (folder / "spec.json").read_text()
            text = text.replace('"version":2', '"version":1').partition(',"attached"')[0] + "}"
            (folder / "spec.json").write_text(text)
        async with opened(world) as runtime:
            assert list(await runtime.containers()) == [runs, ended]
            assert await runtime.mended() == ()

    play(run())


def test_a_supervisor_is_known_by_its_command_line(world: ProcessWorld) -> None:
    async def run() -> None:
        async with opened(world) as runtime:
            runs = await started(runtime, world.lasting(), "runs")
            waits = await runtime.create(a_spec(world.lasting(), "waits"))
            found = supervisors(world.root)
            assert found.keys() == {runs.id, waits.id}
            assert [found[one.id].waits for one in (runs, waits)] == [False, True]
            main = found[runs.id].executed()
            assert main is not None
            assert main.pid == runs.pid
            assert found[waits.id].executed() is None
            assert supervisors(world.folder) == {}

    play(run())
