"""Files that stay open, and threads that are known by theirs."""

from __future__ import annotations

import os
import resource
import subprocess
from functools import partial
from pathlib import Path

import pytest

from pinfold.adapters.observation.thread_waits import ThreadWaits, schedstat_works
from pinfold.core.observation.rates import Stalls
from pinfold.linux.descriptors import open_files
from pinfold.linux.kept_file import KeptFile, KeptFolder
from pinfold.linux.pressure import parse_pressure


def test_a_kept_file_is_read_whole_and_anew(tmp_path: Path) -> None:
    path = tmp_path / "value"
    path.write_text("a" * 20)
    file = KeptFile(path, 8)
    assert file.read() == b"a" * 20
    path.write_text("b" * 16)
    assert file.read() == b"b" * 16
    stays = file.is_kept
    assert stays
    assert file.inode == path.stat().st_ino
    file.close()
    file.close()
    assert not file.is_kept
    path.unlink()
    with pytest.raises(FileNotFoundError):
        file.read()


def thread(proc: Path, tid: int, waited: int) -> None:
    (proc / str(tid)).mkdir(exist_ok=True)
    (proc / str(tid) / "schedstat").write_text(f"5 {waited} 1\n")


def test_with_few_files_nothing_stays_open_and_threads_are_told_of(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    thread(tmp_path, 1, 100)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = open_files() + 100
    # Whichever numbers are free, the next one is of the upper half.
    while (taken := os.dup(0)) < limit // 2:
        request.addfinalizer(partial(os.close, taken))
    request.addfinalizer(partial(os.close, taken))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    request.addfinalizer(partial(resource.setrlimit, resource.RLIMIT_NOFILE, before))
    file = KeptFile(tmp_path / "1" / "schedstat")
    assert file.read() == file.read() == b"5 100 1\n"
    assert not file.is_kept
    waits = ThreadWaits(tmp_path)
    assert (waits.look([1]), waits.unseen) == (0, 1)


def test_a_thread_counts_from_the_first_look_that_sees_it(tmp_path: Path) -> None:
    waits = ThreadWaits(tmp_path)
    thread(tmp_path, 1, 100)
    assert waits.look([1, 2]) == 0  # there is no 2
    thread(tmp_path, 1, 130)
    thread(tmp_path, 2, 1000)
    assert waits.look([1, 2]) == 30
    thread(tmp_path, 2, 1005)
    assert waits.look([2]) == 35  # 1 is gone, and what it waited stays counted
    thread(tmp_path, 1, 500)
    assert waits.look([1, 2]) == 35  # another, or the same that was elsewhere
    thread(tmp_path, 2, 0)
    assert waits.look([1, 2]) == 35  # never back
    waits.close()


def test_a_number_that_is_anothers_now_is_another_thread() -> None:
    """Of the running kernel: an open file of a thread that has ended says so."""
    if not schedstat_works():
        pytest.skip("this kernel counts no waits")
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        pid = sleeper.pid
        waits, before = ThreadWaits(), open_files()
        assert waits.look([pid]) == 0
        assert open_files() == before + 1
        sleeper.kill()
        sleeper.wait()
        waits.look([pid])
        assert open_files() == before
    waits.close()


def test_a_kept_folder_knows_its_folders(tmp_path: Path) -> None:
    folder = KeptFolder(tmp_path)
    has_any = folder.has_folders
    assert not has_any
    (tmp_path / "one").mkdir()
    assert folder.has_folders
    (tmp_path / "tasks").write_text("1\n2\n")
    assert folder.read("tasks") == b"1\n2\n"
    folder.close()


def test_pressure_as_kernels_write_it() -> None:
    line = b"avg10=0.00 avg60=0.00 avg300=0.00 total="
    assert parse_pressure(b"some " + line + b"12\nfull " + line + b"3\n") == Stalls(12, 3)
    assert parse_pressure(b"some " + line + b"12\n") == Stalls(12, None)  # before Linux 5.13
    with pytest.raises(ValueError, match="no line some"):
        parse_pressure(b"")
