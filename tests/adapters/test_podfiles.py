"""Pods' files: named after any uid, replaced atomically, seen by inotify, never half."""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.podfiles import PodFileFolder, file_name
from pinfold.ports.errors import PortError
from pinfold.ports.podfiles import PodFiles

IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x80, 0x100, 0x200
EVENT = struct.Struct("iIII")


def publish(files: PodFiles, uid: str, document: str) -> None:
    asyncio.run(files.publish(uid, document))


def retract(files: PodFiles, uid: str) -> None:
    asyncio.run(files.retract(uid))


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@dataclass
class Watcher:
    """What an application does: inotify_add_watch(2) on the folder."""

    descriptor: int

    def events(self) -> list[tuple[int, str]]:
        """What happened since the last call."""
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return []
        found = []
        while data:
            _, mask, _, length = EVENT.unpack_from(data)
            name = data[EVENT.size : EVENT.size + length].rstrip(b"\0").decode()
            found.append((mask, name))
            data = data[EVENT.size + length :]
        return found


def watch(path: Path, mask: int) -> Watcher:
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert descriptor >= 0
    assert libc.inotify_add_watch(descriptor, os.fsencode(path), mask) >= 0
    return Watcher(descriptor)


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[Watcher]:
    """Watches for new names in the folder, and for files changed in place."""
    watcher = watch(tmp_path, IN_MOVED_TO | IN_MODIFY | IN_DELETE)
    yield watcher
    os.close(watcher.descriptor)


@dataclass(frozen=True)
class Tmpfs:
    """A file system of 64 KiB."""

    path: Path


@pytest.fixture
def tmpfs() -> Iterator[Tmpfs]:
    folder = Path(tempfile.mkdtemp())
    options = ["mount", "-t", "tmpfs", "-o", "size=64k", "pinfold-test", str(folder)]
    if os.geteuid() or subprocess.run(options, check=False, capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("mounting a small file system takes root")
    yield Tmpfs(folder)
    subprocess.run(["umount", str(folder)], check=True)
    folder.rmdir()


# ------------------------------------------------------------------------------------- contents


def test_a_published_file_is_there_for_everybody_to_read(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        files = PodFileFolder(tmp_path / "run" / "pods")
        publish(files, "u-1", '{"cpus": "2-3"}')
    finally:
        os.umask(old)
    path = tmp_path / "run" / "pods" / "u-1.json"
    assert path.read_text() == '{"cpus": "2-3"}'
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o755
    assert listed(path.parent) == ["u-1.json"]


def test_an_application_sees_one_event_for_a_change(tmp_path: Path, watcher: Watcher) -> None:
    files = PodFileFolder(tmp_path)
    publish(files, "u", "1")
    assert [event for event in watcher.events() if event[0] == IN_MOVED_TO] == [
        (IN_MOVED_TO, "u.json")
    ]
    publish(files, "u", "2")
    publish(files, "u", "3")
    events = watcher.events()
    assert [event for event in events if event[0] == IN_MOVED_TO] == [(IN_MOVED_TO, "u.json")] * 2
    assert (IN_MODIFY, "u.json") not in events
    retract(files, "u")
    assert watcher.events() == [(IN_DELETE, "u.json")]


def test_the_same_content_is_not_written_again(tmp_path: Path, watcher: Watcher) -> None:
    files = PodFileFolder(tmp_path)
    publish(files, "u", "same")
    publish(PodFileFolder(tmp_path), "other", "same")
    assert watcher.events()
    publish(files, "u", "same")
    restarted = PodFileFolder(tmp_path)
    publish(restarted, "u", "same")
    publish(restarted, "u", "same")
    assert watcher.events() == []
    publish(restarted, "u", "new")
    assert (tmp_path / "u.json").read_text() == "new"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_what_others_did_to_a_file_is_undone(tmp_path: Path, *, is_restarted: bool) -> None:
    path = tmp_path / "u.json"
    files = PodFileFolder(tmp_path)
    elsewhere = tmp_path / "elsewhere"

    def check() -> None:
        publish(PodFileFolder(tmp_path) if is_restarted else files, "u", "right")
        assert path.read_text() == "right"
        assert not path.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o644

    check()
    path.write_text("wrong")
    check()
    path.unlink()
    check()
    path.chmod(0o600)
    check()
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    check()
    assert elsewhere.read_text() == "right"
    path.unlink()
    os.mkfifo(path)
    check()


def test_retracting(tmp_path: Path) -> None:
    files = PodFileFolder(tmp_path)
    publish(files, "u", "1")
    publish(files, "v", "1")
    retract(files, "u")
    retract(files, "u")
    retract(PodFileFolder(tmp_path), "never")
    assert listed(tmp_path) == ["v.json"]
    publish(files, "u", "1")
    assert listed(tmp_path) == ["u.json", "v.json"]


def test_files_of_pods_that_ended_in_the_agents_absence(tmp_path: Path) -> None:
    files = PodFileFolder(tmp_path)
    for uid in ("a", "b", "../c"):
        publish(files, uid, "1")
    (tmp_path / "README").write_text("mine")
    PodFileFolder(tmp_path).retain(["b", "../c", "d"])
    assert listed(tmp_path) == ["%2E%2E%2Fc.json", "README", "b.json"]


def test_what_an_interrupted_agent_left_is_cleared_away(tmp_path: Path) -> None:
    for name in (".u.json.new", ".%2E.json.new", ".hidden", "u.json.new", "u.json"):
        (tmp_path / name).write_text("half")
    PodFileFolder(tmp_path)
    assert listed(tmp_path) == [".hidden", "u.json", "u.json.new"]


# ---------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("uid", "name"),
    [
        ("b5a1c9f0-3f0e-4a5e-9c47-0d1e6a3e7b11", "b5a1c9f0-3f0e-4a5e-9c47-0d1e6a3e7b11.json"),
        ("..", "%2E%2E.json"),
        ("a/b", "a%2Fb.json"),
        ("a%2Fb", "a%252Fb.json"),
        ("\0ü", "%00%C3%BC.json"),
        ("x~y", "x%7Ey.json"),
    ],
)
def test_names(tmp_path: Path, uid: str, name: str) -> None:
    assert file_name(uid) == name
    publish(PodFileFolder(tmp_path), uid, "1")
    assert listed(tmp_path) == [name]


@given(st.lists(st.text(min_size=1) | st.text("./%~", min_size=1), unique=True, max_size=20))
def test_no_two_uids_share_a_name(uids: list[str]) -> None:
    names = {file_name(uid) for uid in uids}
    assert len(names) == len(uids)
    assert not any("/" in name or name.startswith(".") for name in names)


def test_a_uid_of_any_length(tmp_path: Path) -> None:
    files = PodFileFolder(tmp_path)
    uids = [f"{letter * 5000}{end}" for letter in "a/ü" for end in "12"]
    for uid in uids:
        publish(files, uid, uid)
    assert {path.read_text() for path in tmp_path.iterdir()} == set(uids)
    # The 200 bytes that are kept as they are, and one more.
    publish(files, "b" * 200, "1")
    publish(files, "b" * 201, "2")
    assert (tmp_path / f"{'b' * 200}.json").read_text() == "1"


def test_an_empty_uid_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PortError, match="without a uid"):
        publish(PodFileFolder(tmp_path), "", "1")
    assert listed(tmp_path) == []


# ----------------------------------------------------------------------------------- never half


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    files = PodFileFolder(tmp_path)
    documents = [digit * 200_000 for digit in "0123456789"]
    publish(files, "u", documents[0])
    path = tmp_path / "u.json"
    seen: set[str] = set()
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            seen.add(path.read_text())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in range(200):
            publish(files, "u", documents[turn % 10])
    finally:
        is_over.set()
        reader.join()
    assert seen <= set(documents)
    assert len(seen) > 1


def test_killed_at_any_moment_it_leaves_whole_files(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from pinfold.adapters.podfiles import PodFileFolder
async def main():
    files = PodFileFolder(Path(sys.argv[1]))
    await files.publish("u", "0" * 100_000)
    print("ready", flush=True)
    for turn in range(10**9):
        await files.publish("u", str(turn % 10) * 100_000)
asyncio.run(main())
"""
    for turn in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE
        ) as agent:
            assert agent.stdout is not None
            agent.stdout.readline()
            threading.Event().wait(0.01 + 0.003 * turn)
            agent.kill()
        text = (tmp_path / "u.json").read_text()
        assert len(text) == 100_000
        assert len(set(text)) == 1
    PodFileFolder(tmp_path)
    assert listed(tmp_path) == ["u.json"]


# --------------------------------------------------------------------------------------- errors


def test_a_full_disk(tmpfs: Tmpfs) -> None:
    files = PodFileFolder(tmpfs.path)
    publish(files, "u", "old")
    with pytest.raises(PortError, match="No space left") as raised:
        publish(files, "u", "x" * 1_000_000)
    assert str(tmpfs.path / "u.json") in raised.value.problem
    assert "make room" in raised.value.remedy
    assert (tmpfs.path / "u.json").read_text() == "old"
    assert listed(tmpfs.path) == ["u.json"]
    publish(files, "u", "new")
    assert (tmpfs.path / "u.json").read_text() == "new"


def test_a_read_only_file_system(tmpfs: Tmpfs) -> None:
    files = PodFileFolder(tmpfs.path)
    publish(files, "u", "old")
    subprocess.run(["mount", "-o", "remount,ro", str(tmpfs.path)], check=True)
    publish(files, "u", "old")  # nothing to write, so nothing is refused
    with pytest.raises(PortError, match=r"cannot write .*u\.json: Read-only file system"):
        publish(files, "u", "new")
    with pytest.raises(PortError, match=r"cannot remove .*u\.json: Read-only file system"):
        retract(files, "u")
    with pytest.raises(PortError, match=r"cannot prepare .*pods: Read-only file system"):
        PodFileFolder(tmpfs.path / "pods")
    assert (tmpfs.path / "u.json").read_text() == "old"


def test_a_folder_that_vanished(tmp_path: Path) -> None:
    folder = tmp_path / "pods"
    files = PodFileFolder(folder)
    publish(files, "u", "1")
    (folder / "u.json").unlink()
    folder.rmdir()
    with pytest.raises(PortError, match=r"cannot write .*pods/u\.json: No such file") as raised:
        publish(files, "u", "1")
    assert raised.value.remedy
    retract(files, "u")
    with pytest.raises(PortError, match=r"cannot read .*pods"):
        files.retain([])
    folder.mkdir()
    publish(files, "u", "1")
    assert listed(folder) == ["u.json"]


def test_things_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PortError, match=r"cannot prepare .*file: File exists"):
        PodFileFolder(tmp_path / "file")
    files = PodFileFolder(tmp_path / "pods")
    (tmp_path / "pods" / "u.json").mkdir()
    with pytest.raises(PortError, match=r"cannot write .*u\.json"):
        publish(files, "u", "1")
    with pytest.raises(PortError, match=r"cannot remove .*u\.json"):
        retract(files, "u")
    assert listed(tmp_path / "pods") == ["u.json"]


def test_a_text_that_cannot_be_written(tmp_path: Path) -> None:
    files = PodFileFolder(tmp_path)
    publish(files, "u", "old")
    with pytest.raises(PortError, match="no Unicode text"):
        publish(files, "u", "\ud800")
    assert (tmp_path / "u.json").read_text() == "old"
