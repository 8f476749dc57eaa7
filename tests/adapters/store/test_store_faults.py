"""The SQLite store on a disk that is full, may not be written, fails, or loses its files.

Whatever changes a process or a mount for good happens in a child: this module, run as a program.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from pinfold.adapters.store import SQLiteStore
from pinfold.ports.errors import StoreError
from pinfold.ports.records import Batch
from tests.roots import ROOT
from tests.scenes.store_contract import NODE, pod

BIG: Final = "x" * 5000


def child(scenario: str, path: Path, *before: str) -> str:
    """Run a scenario of this module in a process of its own; what it prints."""
    done = subprocess.run(
        [
            *before,
            sys.executable,
            "-m",
            "tests.adapters.store.test_store_faults",
            scenario,
            str(path),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@cache
def may_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def own_mounts() -> tuple[str, ...]:
    """What to put before a command for mounts that vanish with it."""
    if not may_mount():
        pytest.skip("needs root, and a kernel that lets it mount a tmpfs in a namespace of its own")
    return ("unshare", "--mount", "--propagation", "private")


async def names(store: SQLiteStore) -> list[str]:
    return [record.name for record in (await store.load()).pods.values()]


async def fill_up(store: SQLiteStore) -> tuple[list[str], StoreError]:
    """Commit until the store refuses, and see that it then holds what it held."""
    written = await names(store)
    for number in range(5000):
        name = f"p{number}"
        try:
            await store.commit(Batch(put=(pod(name, message=BIG),)))
        except StoreError as error:
            assert await names(store) == written
            return written, error
        written.append(name)
    raise AssertionError("the disk is never full")


# ------------------------------------------------------------------------------------------ full


async def full_disk(folder: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=600k", "none", str(folder))
    filler, path = folder / "filler", folder / "state" / "db"
    filler.write_bytes(b"x" * 100_000)
    store = SQLiteStore.open(path)
    written, error = await fill_up(store)
    assert "free some space" in error.remedy, error
    for _ in range(3):
        try:
            await store.commit(Batch(put=(pod("too much", message=BIG * 10),)))
        except StoreError as again:
            assert "free some space" in again.remedy, again  # noqa: PT017 - as often as it likes
        else:
            raise AssertionError("there was no room")
        assert await names(store) == written
    filler.unlink()
    await store.commit(Batch(NODE, (pod("after"),)))
    await store.close()
    store = SQLiteStore.open(path)
    assert await names(store) == [*written, "after"]
    await store.close()


def test_a_full_disk_changes_nothing_and_passes(
    tmp_path: Path, own_mounts: tuple[str, ...]
) -> None:
    child("full_disk", tmp_path, *own_mounts)


async def full_from_the_start(folder: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=64k", "none", str(folder))
    filler, path = folder / "filler", folder / "db"
    filler.write_bytes(b"x" * 50_000)
    try:
        SQLiteStore.open(path)
    except StoreError as error:
        assert "free some space" in error.remedy, error  # noqa: PT017 - a child without pytest
    else:
        raise AssertionError("there was no room")
    assert sorted(p.name for p in folder.iterdir()) == ["filler"]
    filler.unlink()
    mount("-o", "remount,size=1m", str(folder))
    store = SQLiteStore.open(path)
    await store.commit(Batch(NODE))
    await store.close()


def test_a_first_start_on_a_full_disk_leaves_nothing(
    tmp_path: Path, own_mounts: tuple[str, ...]
) -> None:
    child("full_from_the_start", tmp_path, *own_mounts)


async def small_files_only(folder: Path) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = SQLiteStore.open(folder / "db")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
    written, _ = await fill_up(store)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.commit(Batch(put=(pod("after"),)))
    assert await names(store) == [*written, "after"]
    await store.close()


def test_a_limit_on_files_changes_nothing_and_passes(tmp_path: Path) -> None:
    child("small_files_only", tmp_path)


# ---------------------------------------------------------------------------------------- rights


async def read_only_disk(folder: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=2m", "none", str(folder))
    path = folder / "db"
    store = SQLiteStore.open(path)
    await store.commit(Batch(NODE, (pod("a"),)))
    await store.close()
    mount("-o", "remount,ro", str(folder))
    for refused in (path, folder / "new" / "db"):
        try:
            SQLiteStore.open(refused)
        except StoreError as error:
            assert "Read-only file system" in error.problem, error  # noqa: PT017 - no pytest here
            assert "the disk is writable" in error.remedy, error  # noqa: PT017 - no pytest here
        else:
            raise AssertionError("it could not be written")
    reader = SQLiteStore.read_only(path)
    assert await names(reader) == ["a"]
    await reader.close()
    mount("-o", "remount,rw", str(folder))
    store = SQLiteStore.open(path)
    assert await names(store) == ["a"]
    await store.close()


def test_a_read_only_disk_is_refused_and_can_be_read(
    tmp_path: Path, own_mounts: tuple[str, ...]
) -> None:
    child("read_only_disk", tmp_path, *own_mounts)


async def nobody(folder: Path) -> None:
    """Ordinary users may not open the record of another, whatever is missing."""
    path = folder / "db"
    store = SQLiteStore.open(path)
    await store.close()
    folder.chmod(0o755)
    os.setgid(65534)
    os.setuid(65534)
    for opener in (SQLiteStore.open, SQLiteStore.read_only):
        for refused in (path, folder / "other" / "db"):
            try:
                opener(refused)
            except StoreError as error:
                sys.stdout.write(f"{error}\n")
            else:
                raise AssertionError("it may not be opened")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_rights_that_are_missing_are_named(tmp_path: Path, own_mounts: tuple[str, ...]) -> None:
    # A mount, as the folders above are closed to others.
    said = child("nobody_mounted", tmp_path, *own_mounts).splitlines()
    assert [("ermission denied" in line, "see the rights" in line) for line in said[:2]] == [
        (True, True),
        (True, True),
    ]
    assert "unable to open" in said[2]
    assert "see the rights" in said[2]
    assert "there is no record" in said[3]


async def nobody_mounted(_folder: Path) -> None:
    mount("-t", "tmpfs", "-o", "size=2m", "none", "/mnt")
    await nobody(Path("/mnt"))


# ---------------------------------------------------------------------------------------- failing

_WRITES: Final = (1, 18)  # write, pwrite64
_FLUSHES: Final = (74, 75)  # fsync, fdatasync


def fail_with_io_error(calls: tuple[int, ...]) -> None:
    """Let these system calls of the calling thread fail with EIO for ever (seccomp(2))."""

    class Filter(ctypes.Structure):
        _fields_ = (
            ("code", ctypes.c_ushort),
            ("jt", ctypes.c_ubyte),
            ("jf", ctypes.c_ubyte),
            ("k", ctypes.c_uint32),
        )

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter)))

    tests = [Filter(0x15, len(calls) - n, 0, call) for n, call in enumerate(calls)]
    program = [
        Filter(0x20, 0, 0, 0),  # the number of the call
        *tests,
        Filter(0x06, 0, 0, 0x7FFF0000),  # let it
        Filter(0x06, 0, 0, 0x00050000 | 5),  # EIO
    ]
    array = (Filter * len(program))(*program)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0, "no new privileges"
    assert libc.prctl(22, 2, ctypes.byref(Program(len(program), array)), 0, 0) == 0, "seccomp"


async def failing(folder: Path, calls: tuple[int, ...], *, die: bool) -> None:
    store = SQLiteStore.open(folder / "db")
    await store.commit(Batch(NODE, (pod("before"),)))
    # A thread's system calls are made to fail in the thread that makes them.
    await asyncio.wrap_future(store._worker.submit(fail_with_io_error, calls))  # noqa: SLF001 - see above
    for number in range(3):
        try:
            await store.commit(Batch(put=(pod(f"p{number}"),)))
        except StoreError as error:
            assert "disk I/O error" in error.problem, error  # noqa: PT017 - no pytest here
            assert "dmesg" in error.remedy, error  # noqa: PT017 - no pytest here
        else:
            raise AssertionError("the disk had failed")
        assert await names(store) == ["before"]
    if die:
        os._exit(0)
    store._worker = ThreadPoolExecutor(1)  # noqa: SLF001 - a thread whose calls succeed
    await store.commit(Batch(put=(pod("after"),)))
    assert await names(store) == ["before", "after"]
    await store.close()


SCENARIOS: Final[dict[str, Callable[[Path], Awaitable[None]]]] = {
    "full_disk": full_disk,
    "full_from_the_start": full_from_the_start,
    "small_files_only": small_files_only,
    "read_only_disk": read_only_disk,
    "nobody_mounted": nobody_mounted,
    "writes": lambda folder: failing(folder, _WRITES, die=False),
    "flushes": lambda folder: failing(folder, _FLUSHES, die=False),
    "writes die": lambda folder: failing(folder, _WRITES, die=True),
    "flushes die": lambda folder: failing(folder, _FLUSHES, die=True),
}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="knows the system calls of x86-64")
@pytest.mark.parametrize("what", ["writes", "flushes"])
def test_a_disk_that_fails_changes_nothing(tmp_path: Path, what: str) -> None:
    """Also for whoever opens the file after a crash: an fsync fails when all is written."""
    child(what, tmp_path / "passes")
    child(f"{what} die", tmp_path / "dies")

    async def look(folder: str) -> list[str]:
        store = SQLiteStore.open(tmp_path / folder / "db")
        try:
            return await names(store)
        finally:
            await store.close()

    assert asyncio.run(look("passes")) == ["before", "after"]
    assert asyncio.run(look("dies")) == ["before"]


# ----------------------------------------------------------------------------------- files are gone


@pytest.mark.parametrize("name", ["db", "db-wal", "db.lock"])
def test_a_file_that_is_taken_away_is_noticed(tmp_path: Path, name: str) -> None:
    """What SQLite went on to write would be in no file that anybody finds."""
    taken = tmp_path / "state" / name

    async def work() -> None:
        store = SQLiteStore.open(tmp_path / "state" / "db")
        await store.commit(Batch(NODE, (pod("a"),)))
        taken.rename(tmp_path / "away")
        with pytest.raises(StoreError, match=rf"{taken}: removed while .*put it back, or restart"):
            await store.commit(Batch(put=(pod("b"),)))
        shutil.copy(tmp_path / "away", taken)
        with pytest.raises(StoreError, match=rf"{taken}: replaced while"):
            await store.commit(Batch(put=(pod("b"),)))
        assert await names(store) == ["a"]
        (tmp_path / "away").rename(taken)
        await store.commit(Batch(put=(pod("c"),)))
        await store.close()
        store = SQLiteStore.open(tmp_path / "state" / "db")
        assert await names(store) == ["a", "c"]
        await store.close()

    asyncio.run(work())


def test_a_folder_that_is_removed_is_noticed(tmp_path: Path) -> None:
    async def work() -> None:
        store = SQLiteStore.open(tmp_path / "state" / "db")
        await store.commit(Batch(NODE, (pod("a"),)))
        shutil.rmtree(tmp_path / "state")
        with pytest.raises(StoreError, match="removed while the agent has it open"):
            await store.commit(Batch(put=(pod("b"),)))
        assert await names(store) == ["a"], "what was decided is still known"
        await store.close()
        assert not (tmp_path / "state").exists()
        store = SQLiteStore.open(tmp_path / "state" / "db")
        assert await names(store) == []
        await store.close()

    asyncio.run(work())


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    asyncio.run(SCENARIOS[sys.argv[1]](Path(sys.argv[2])))  # type: ignore[arg-type] # a coroutine
