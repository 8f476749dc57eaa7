"""Locks that hold what they say, and paths that no other user can turn."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.linux.folders import Purpose, check_own, check_path, make_folder, remove_made
from pinfold.linux.locks import HeldError, Lock, folder_of, lock, locked
from pinfold.linux.socket_files import socket_folder
from pinfold.ports.errors import PortError

PURPOSE = Purpose("what is written", "name another folder")
NOBODY = 65533
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def take(path: Path) -> Lock:
    return lock(path, lambda: opened(path))


def test_a_lock_keeps_others_out_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    mine = take(path)
    with pytest.raises(HeldError) as held:
        take(path)
    assert held.value.pid == os.getpid()
    assert held.value.who == f" (process {os.getpid()})"
    mine.release()
    mine.release()
    take(path).release()


def test_a_lock_that_is_waited_for_lets_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    async def run() -> list[str]:
        happened = []
        mine = take(path)

        async def other() -> None:
            async with locked(path, lambda: opened(path), patience=60.0) as held:
                happened.append(f"had, {held.in_place}")

        waiting = asyncio.create_task(other())
        await asyncio.sleep(0)
        happened.append("released")
        mine.release()
        await waiting
        take(path).release()
        mine = take(path)
        with pytest.raises(HeldError):
            async with locked(path, lambda: opened(path)):
                happened.append("never")
        mine.release()
        return happened

    assert asyncio.run(run()) == ["released", "had, True"]


def test_a_folder_can_be_locked_and_is_free_after_a_failure(tmp_path: Path) -> None:
    async def run() -> None:
        with pytest.raises(ValueError, match="in the block"):
            async with locked(tmp_path, folder_of(tmp_path)):
                raise ValueError("in the block")

    asyncio.run(run())
    lock(tmp_path, folder_of(tmp_path)).release()
    with pytest.raises(FileNotFoundError):
        lock(tmp_path / "none", folder_of(tmp_path / "none"))


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    script = (
        "import os, sys; from pathlib import Path; from pinfold.linux.locks import lock\n"
        "path = Path(sys.argv[1])\n"
        "held = lock(path, lambda: os.open(path, os.O_RDWR | os.O_CREAT))\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(HeldError) as held:
            take(path)
        assert held.value.pid == other.pid
        other.kill()
        lock(path, lambda: opened(path), patience=30).release()


def test_what_was_replaced_before_it_was_locked_is_not_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    calls = []

    def slow() -> int:
        descriptor = opened(path)
        calls.append(os.fstat(descriptor).st_ino)
        if len(calls) == 1:  # somebody removes it and makes another between the two calls
            path.rename(tmp_path / "away")
            path.touch()
        elif len(calls) == 2:  # and again, without another
            path.rename(tmp_path / "gone")
        return descriptor

    mine = lock(path, slow)
    assert len(calls) == 3
    with pytest.raises(HeldError):
        take(path)
    path.unlink()
    assert not mine.in_place
    mine.release()


def test_one_at_a_time_though_each_removes_it_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    inside = threading.Semaphore(1)
    overlaps: list[int] = []
    turns: list[int] = []

    def work() -> None:
        while len(turns) < 400:
            mine = lock(path, lambda: opened(path), patience=60)
            if not inside.acquire(blocking=False):
                overlaps.append(1)
            else:
                turns.append(1)
                inside.release()
            path.unlink()
            mine.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(turns) >= 400
    assert overlaps == []


# --------------------------------------------------------------------------------------- folders


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder such as ``/tmp``."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def problem(folder: Path) -> str:
    with pytest.raises(PortError) as refused:
        make_folder(folder, PURPOSE)
    assert "name another folder" in refused.value.remedy
    return refused.value.problem


def test_folders_are_made_for_their_user_and_taken_back(shared: Path) -> None:
    made = make_folder(shared / "a" / "b", PURPOSE)
    assert made == [shared / "a", shared / "a" / "b"]
    assert [folder.stat().st_mode & 0o777 for folder in made] == [0o700, 0o700]
    assert make_folder(shared / "a" / "b", PURPOSE) == []
    (shared / "a" / "kept").touch()
    remove_made(made)
    assert sorted(path.name for path in shared.rglob("*")) == ["a", "kept"]


@as_root
def test_what_another_user_has_made_is_refused(shared: Path) -> None:
    theirs = shared / "theirs"
    theirs.mkdir()
    os.chown(theirs, NOBODY, NOBODY)
    assert f"{theirs}: belongs to user {NOBODY}" in problem(theirs)
    assert f"{theirs}: belongs to user {NOBODY}" in problem(theirs / "deep" / "in")
    assert list(theirs.iterdir()) == []


@as_root
@pytest.mark.parametrize("target", ["/", "own", "../tmp/own", "missing"])
def test_a_link_of_another_user_is_refused_wherever_it_leads(shared: Path, target: str) -> None:
    (shared / "own").mkdir()
    link = shared / "link"
    link.symlink_to(target)
    make_folder(link / "in", PURPOSE) if target == "own" else check_path(shared, PURPOSE)
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    assert f"{link}: a link that belongs to user {NOBODY}" in problem(link)
    assert f"{link}: a link that belongs to user {NOBODY}" in problem(link / "in")


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        check_path(tmp_path / "a", PURPOSE)


def test_a_folder_in_which_others_write(tmp_path: Path, shared: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    assert "others may write there" in problem(folder / "in")
    with pytest.raises(PortError, match="others may write there"):
        check_own(folder, PURPOSE)
    check_own(shared, PURPOSE)


@as_root
def test_the_folder_of_a_socket_is_nobody_elses_to_turn(tmp_path: Path) -> None:
    """The last folder alone says nothing: whoever owns one above puts another in its place."""
    theirs = tmp_path / "theirs"
    (theirs / "mine").mkdir(parents=True)
    os.chown(theirs, NOBODY, NOBODY)
    for folder in (theirs / "mine", theirs / "new"):
        with pytest.raises(PortError, match=f"theirs: belongs to user {NOBODY}.*the socket"):
            socket_folder(folder, "elsewhere")
    assert [one.name for one in theirs.iterdir()] == ["mine"]
    socket_folder(tmp_path / "a" / "b", "elsewhere", group=NOBODY)
    for made in (tmp_path / "a", tmp_path / "a" / "b"):
        status = made.stat()
        assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (0o750, 0, NOBODY)
    (tmp_path / "file").touch()
    with pytest.raises(PortError, match="is no folder"):
        socket_folder(tmp_path / "file", "elsewhere")


@as_root
def test_what_another_has_left_in_a_shared_folder(shared: Path) -> None:
    (shared / "mine").touch()
    check_own(shared, PURPOSE)
    os.chown(shared / "mine", NOBODY, NOBODY)
    with pytest.raises(PortError, match=f"belongs to user {NOBODY}"):
        check_own(shared, PURPOSE)


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders and links: those whose name begins with ``x`` are another user's."""
    base = tmp_path_factory.mktemp("maze")
    for parent in (base, base / "a", base / "xa"):
        parent.mkdir(exist_ok=True)
        for name in ("a", "xa"):
            (parent / name).mkdir(exist_ok=True)
        for name, target in (("l", "a"), ("xl", "a"), ("up", ".."), ("lx", "xa"), ("ll", "l")):
            (parent / name).symlink_to(target)
        for path in parent.iterdir():
            if path.name.startswith("x"):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return base


@as_root
@given(parts=st.lists(st.sampled_from(["a", "xa", "l", "xl", "up", "lx", "ll", ".."]), max_size=6))
def test_every_step_of_a_path_is_looked_at(maze: Path, parts: list[str]) -> None:
    """As the kernel walks: whatever of another user it meets, the path is refused."""
    meets = False
    place = maze
    for part in parts:
        here = place / part
        meets = meets or part in ("xa", "xl", "lx")
        try:
            place = here.resolve(strict=True)
        except OSError:
            break
        if not place.is_relative_to(maze):
            break
        if part == "lx":
            meets = True
    path = maze.joinpath(*parts)
    if not path.exists():
        return
    outside = not os.path.realpath(path).startswith(str(maze))
    try:
        check_path(path, PURPOSE)
    except PortError:
        assert meets or outside
    else:
        assert not meets or outside
