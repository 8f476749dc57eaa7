"""Files that are whole or not there: modes, links in the way, and every way to fail."""

from __future__ import annotations

import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from pinfold.linux.durable import create, replace, sync_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_the_mode_is_what_was_asked_for_whatever_the_umask_is(tmp_path: Path, mode: int) -> None:
    before = os.umask(0o077)
    try:
        create(tmp_path / "made", b"a", mode=mode)
        replace(tmp_path / "replaced", b"a", mode=mode)
        create(tmp_path / "left", b"a", mode=None)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {"made": mode, "replaced": mode, "left": 0o600}


def test_a_new_file_takes_nobodys_place(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"old")
    (tmp_path / "link").symlink_to("elsewhere")
    for name in ("there", "link"):
        with pytest.raises(FileExistsError):
            create(tmp_path / name, b"new")
    assert (tmp_path / "there").read_bytes() == b"old"
    assert names(tmp_path) == ["link", "there"]


def test_a_replaced_file_is_another_one_and_tells_which(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        status = replace(path, b"new")
        assert reader.read() == b"old"
    assert path.read_bytes() == b"new"
    assert (status.st_ino, status.st_mtime_ns) == (path.stat().st_ino, path.stat().st_mtime_ns)


def test_what_lies_in_the_way_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".f.new").symlink_to(victim)
    (tmp_path / "f").symlink_to(victim)
    replace(tmp_path / "f", b"new")
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "f").read_bytes() == b"new"
    assert not (tmp_path / "f").is_symlink()


def test_what_a_killed_writer_left_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".f.new").write_bytes(b"half")
    replace(tmp_path / "f", b"new")
    assert names(tmp_path) == ["f"]


def test_a_folder_in_its_place_is_left_and_nothing_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with pytest.raises(IsADirectoryError):
        replace(tmp_path / "f", b"new")
    assert names(tmp_path) == ["f"]


def test_where_there_is_no_room_the_old_content_stays(tmp_path: Path) -> None:
    path = tmp_path / "f"
    replace(path, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    heard = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            replace(path, bytes(2000))
        with pytest.raises(OSError, match="too large"):
            create(tmp_path / "g", bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, heard)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["f"]


SYNCS = """
import os, sys
from pathlib import Path
from pinfold.linux.durable import replace
calls = []
def hear(event, args):
    if event == "os.rename":
        calls.append(("rename", os.path.basename(args[1])))
real = os.fsync
def fsync(descriptor):
    calls.append(("fsync", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
    real(descriptor)
sys.addaudithook(hear)
os.fsync = fsync
replace(Path(sys.argv[1]), b"new", sync=sys.argv[2] == "yes")
print(calls)
"""


@pytest.mark.parametrize("sync", ["yes", "no"])
def test_the_order_in_which_it_reaches_the_disk(tmp_path: Path, sync: str) -> None:
    """In a process of its own, which listens to its own system calls."""
    folder = tmp_path / "d"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SYNCS, folder / "f", sync],
        check=True,
        capture_output=True,
        text=True,
    )
    whole = [("fsync", ".f.new"), ("rename", "f"), ("fsync", "d")]
    expected = whole if sync == "yes" else [("rename", "f")]
    assert done.stdout.strip() == str(expected)


def test_a_folder_that_is_not_there_cannot_be_brought_to_the_disk(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    with pytest.raises(FileNotFoundError):
        sync_folder(tmp_path / "none")
