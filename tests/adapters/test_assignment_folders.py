"""Folders in which containers read their CPUs: the kubelet's layout, and nothing in there hurts."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.adapters.podfiles import AssignmentFolders
from pinfold.adapters.podfiles.acknowledgements import PAUSE, cut, number_in
from pinfold.core.pod.workload import ACKNOWLEDGEMENT
from pinfold.linux.inotify import Event, Inotify
from pinfold.ports.errors import ContainerKey
from pinfold.ports.tellers import TellingError
from tests.scenes.teller_contract import (
    ANNOUNCED,
    FIRST,
    OTHER,
    OWNER,
    check_acknowledgements,
    check_telling,
)
from tests.scenes.waiting import PATIENCE

CUT = "{place} was larger than any number, and is empty now: its container fills a disk"


class World:
    """Folders, and what was reported."""

    def __init__(self, root: Path) -> None:
        self.root = root / "assignments"
        self.problems: list[str] = []
        self.folders = self.again()

    def again(self) -> AssignmentFolders:
        return AssignmentFolders(self.root, lambda _pod, problem: self.problems.append(problem))

    def file(self, name: str | Path) -> Path:
        return Path(self.folders.folder(OWNER), name)

    def acknowledge(self, text: str) -> None:
        self.file(ACKNOWLEDGEMENT).write_text(text)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_meets_the_contract(world: World) -> None:
    async def acknowledge(owner: ContainerKey, generation: int) -> None:
        Path(world.folders.folder(owner), ACKNOWLEDGEMENT).write_text(f"{generation}\n")

    asyncio.run(check_telling(world.folders, world.again))
    asyncio.run(check_acknowledgements(world.folders, acknowledge))
    assert world.problems == [
        f"container {OWNER} acknowledges generation 3, and was told 2: that counts for nothing"
    ]


def test_an_application_reads_it_in_the_layout_of_a_kubelet(world: World) -> None:
    asyncio.run(world.folders.tell(OWNER, FIRST))
    before = str(world.file("..data").readlink())
    asyncio.run(world.folders.tell(OWNER, ANNOUNCED))
    assert world.file("assigned.cpuset").read_text() == "4"
    assert world.file("assigned.memset").read_text() == "1"
    assert json.loads(world.file("assignment.json").read_text()) == {
        "version": 1,
        "generation": 2,
        "current": {"cpus": "2-4", "mems": "0-1"},
        "coming": {"cpus": "4", "mems": "1"},
        "previous": {"cpus": "2-3", "mems": "0"},
        "reason": "resize",
        "deadline": "2026-09-21T14:13:20.250000Z",
    }
    now = str(world.file("..data").readlink())
    assert now != before
    names = ["assigned.cpuset", "assigned.memset", "assignment.json"]
    assert sorted(p.name for p in world.file("").iterdir()) == sorted(
        ["..data", now, "ack", *names]
    )
    assert {str(world.file(name).readlink()) for name in names} == {f"..data/{n}" for n in names}
    asyncio.run(world.folders.tell(OWNER, ANNOUNCED))
    assert str(world.file("..data").readlink()) == now


def test_only_the_acknowledgement_is_writable(world: World) -> None:
    old = os.umask(0o077)
    try:
        asyncio.run(world.folders.tell(OWNER, FIRST))
    finally:
        os.umask(old)
    paths = [world.root, *world.root.rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    open_ones = [path for path, mode in modes.items() if mode & 0o022]
    assert open_ones == [world.file(ACKNOWLEDGEMENT)]
    assert all(mode & 0o004 for mode in modes.values())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_any_user_may_acknowledge() -> None:
    # The folder of a test is for its user only.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        check_any_user(World(Path(folder)))


def check_any_user(world: World) -> None:
    asyncio.run(world.folders.tell(OWNER, FIRST))
    program = (
        "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "open(sys.argv[1], 'w').write('1')\n"
        "try: open(sys.argv[2] + '/x', 'w')\n"
        "except PermissionError: print('kept out')"
    )
    place = world.file(ACKNOWLEDGEMENT)
    done = subprocess.run(
        [sys.executable, "-c", program, str(place), str(place.parent)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "kept out\n"
    asyncio.run(asyncio.wait_for(world.folders.acknowledged(OWNER, 1), 20 * PATIENCE))


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    (path.parent / "elsewhere").write_text("1")
    path.symlink_to("elsewhere")


def make_folder(path: Path) -> None:
    (path / "1").mkdir(parents=True)


def make_sparse(path: Path) -> None:
    path.write_text("1")
    os.truncate(path, 1 << 40)


def make_huge(path: Path) -> None:
    path.write_text("1" * 5_000_000)


def make_binary(path: Path) -> None:
    path.write_bytes(b"\xff\x00\xb2")


HOSTILE = [make_fifo, make_link, make_folder, make_sparse, make_huge, make_binary]


@pytest.mark.parametrize("make", HOSTILE)
def test_hostile_acknowledgements_count_for_nothing(world: World, make: object) -> None:
    async def scene() -> None:
        await world.folders.tell(OWNER, FIRST)
        place = world.file(ACKNOWLEDGEMENT)
        waiting = asyncio.create_task(world.folders.acknowledged(OWNER, 1))
        await asyncio.sleep(0)
        place.unlink()
        make(place)  # type: ignore[operator] # one of the above
        assert number_in(place) is None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.05)
        # The next news are told, and who writes a number after all is heard.
        await world.folders.tell(OWNER, ANNOUNCED)
        place.rename(place.with_name("aside"))
        place.write_text("1")
        await asyncio.wait_for(waiting, 20 * PATIENCE)
        await world.folders.forget(OWNER.pod_uid)

    asyncio.run(scene())
    place = world.file(ACKNOWLEDGEMENT)
    is_large = make in (make_sparse, make_huge)
    assert world.problems == [CUT.format(place=place)] * is_large


def test_what_takes_room_is_cut(tmp_path: Path) -> None:
    place = tmp_path / "generation"
    place.write_text("7\n")
    assert not cut(place)
    assert place.read_text() == "7\n"
    with place.open("ab") as file:
        # Behind its end, where nobody reads it.
        libc = ctypes.CDLL(None, use_errno=True)
        keeps_size, where, size = 1, ctypes.c_long(0), ctypes.c_long(1 << 20)
        if libc.fallocate(file.fileno(), keeps_size, where, size) != 0:
            pytest.skip("this file system reserves no room")
    assert place.stat().st_blocks * 512 >= 1 << 20
    assert cut(place)
    assert place.stat().st_blocks == 0
    link = tmp_path / "link"
    (tmp_path / "other").write_bytes(b"1" * (1 << 20))
    link.symlink_to("other")
    assert not cut(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_container_fills_no_disk_but_the_small_one(tmp_path: Path) -> None:
    # A mount namespace of its own, in which a folder is shared: what is mounted ends with it.
    scene = "mount -t tmpfs x $1 && mount --make-shared $1 && exec $2 -m $3 $1"
    program = [str(tmp_path), sys.executable, "tests.scenes.small_disk_scene"]
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", scene, "sh", *program],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("nothing can be mounted here")
    assert (done.stdout, done.stderr) == ("well\n", "")


@pytest.mark.parametrize("text", ["", " ", "1 2", "0x1", "-1", "1.0", "٣", str(2**200)])
def test_what_is_no_number_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation").write_text(text)
    assert number_in(tmp_path / "generation") is None


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("7\n", 7), (" 0012 \n", 12)])
def test_numbers_are_read_with_blanks_around(tmp_path: Path, text: str, number: int) -> None:
    (tmp_path / "generation").write_text(text)
    assert number_in(tmp_path / "generation") == number


def test_what_is_damaged_is_told_anew(world: World) -> None:
    async def scene() -> None:
        await world.folders.tell(OWNER, FIRST)
        world.file("..data").unlink()
        world.file("..data").symlink_to("nowhere")
        assert await world.folders.told(OWNER) is None
        await world.folders.tell(OWNER, FIRST)
        (world.file("..data") / "assignment.json").write_bytes(b"\0" * 80)
        assert await world.folders.told(OWNER) is None
        await world.folders.tell(OWNER, FIRST)
        assert await world.folders.told(OWNER) == FIRST

    asyncio.run(scene())


@pytest.mark.parametrize("name", ["..data", "assignment.json", ACKNOWLEDGEMENT, ""])
def test_what_is_removed_is_not_told_any_more(world: World, name: str) -> None:
    async def scene() -> None:
        await world.folders.tell(OWNER, FIRST)
        assert world.folders.is_told(OWNER)
        world.file(name).rename(world.root / "elsewhere")
        assert not world.folders.is_told(OWNER)
        await world.folders.tell(OWNER, FIRST)
        assert world.folders.is_told(OWNER)
        assert await world.folders.told(OWNER) == FIRST

    asyncio.run(scene())


def test_what_cannot_be_written_is_one_clear_error(world: World) -> None:
    world.root.write_text("in the way")
    with pytest.raises(TellingError, match=r"^cannot write .*assignments.*: .*make room"):
        asyncio.run(world.folders.tell(OWNER, FIRST))
    with pytest.raises(TellingError, match="no folder can have this name"):
        asyncio.run(world.folders.tell(ContainerKey("x" * 300, "main"), FIRST))


def test_pods_that_ended_in_our_absence_are_forgotten(world: World) -> None:
    async def scene() -> None:
        odd = ContainerKey("..", "main")
        for owner in (OWNER, OTHER, odd):
            await world.folders.tell(owner, replace(FIRST, generation=5))
        again = world.again()
        await again.retain([odd.pod_uid])
        assert await again.told(OWNER) is None
        assert await again.told(odd) == replace(FIRST, generation=5)
        await again.retain([])
        assert list(world.root.iterdir()) == []

    asyncio.run(scene())


def test_who_writes_without_pause_is_looked_at_now_and_then(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    events = Inotify.events

    def counted(inotify: Inotify) -> list[Event]:
        nonlocal looks
        looks += 1
        return events(inotify)

    async def scene() -> None:
        await world.folders.tell(OWNER, ANNOUNCED)
        waiting = asyncio.create_task(world.folders.acknowledged(OWNER, 2))
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(500):
            world.acknowledge("1")
            await asyncio.sleep(0)
        assert 0 < looks <= 1 + (loop.time() - began) / PAUSE
        world.acknowledge("2")
        await asyncio.wait_for(waiting, 20 * PATIENCE)

    monkeypatch.setattr(Inotify, "events", counted)
    asyncio.run(scene())


def test_a_kernel_that_has_no_room_to_tell_of_it_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        real = loop.add_reader

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        await world.folders.tell(OWNER, ANNOUNCED)
        for add_reader in (refuse, real):
            monkeypatch.setattr(loop, "add_reader", add_reader)
            world.acknowledge("1")
            waiting = asyncio.create_task(world.folders.acknowledged(OWNER, 2))
            await asyncio.sleep(0)
            assert not waiting.done()
            world.acknowledge("2")
            await asyncio.wait_for(waiting, 20 * PATIENCE)

    asyncio.run(scene())
