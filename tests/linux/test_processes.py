"""Processes: what ``stat`` says, who lives, and that nobody is taken for gone who was not seen."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.affinity import processes as affinity
from pinfold.adapters.process.processes import identify, parent_of
from pinfold.adapters.shield.threads import thread
from pinfold.linux.processes import (
    Stat,
    age,
    began,
    boot_id,
    is_over,
    lives,
    living_threads,
    parse_cgroups,
    parse_stat,
    pids,
    stat_of,
    threads,
)
from pinfold.ports.errors import CgroupError, NoRoomError, RuntimeFailedError
from tests.scenes.kernel_tree import AFTER_NAME
from tests.scenes.process_world import no_files


def stat_line(comm: str, *, start: int = 5, cpu: int = 3) -> str:
    return f"42 ({comm})" + AFTER_NAME.format(start=start, cpu=cpu)


@given(st.text(max_size=64), st.integers(0, 2**63), st.integers(0, 65535))
def test_any_name_is_read_whole(comm: str, start: int, cpu: int) -> None:
    found = parse_stat(stat_line(comm, start=start, cpu=cpu))
    assert found == Stat(
        pid=42,
        comm=comm,
        state="S",
        parent=41,
        group=7,
        session=8,
        flags=4194560,
        threads=6,
        start=start,
        processor=cpu,
    )


@pytest.mark.parametrize("comm", ["a) (b", ")", "(", "a\nb", ") R 1 1 1", "", " "])
def test_names_that_look_like_the_rest_of_the_file(comm: str) -> None:
    assert parse_stat(stat_line(comm)).comm == comm


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no name in parentheses"),
        ("42 (a", "no name in parentheses"),
        (") (", "no name in parentheses"),
        ("42 (a) S 1", "4 fields, at least 39 are needed"),
        (stat_line("a").replace("41", "x"), "'x' is no number"),
        (stat_line("a").replace("41", "9" * 30), "too long for a number"),
    ],
)
def test_what_is_no_stat_file(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_stat(text)


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "replace")))
def test_nothing_but_a_value_error_comes_out(text: str) -> None:
    try:
        parse_stat(text)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - what is raised is not known beforehand


@given(st.text(), st.data())
def test_a_damaged_stat_file(piece: str, data: st.DataObject) -> None:
    whole = stat_line("name")
    low, high = sorted(data.draw(st.integers(0, len(whole))) for _ in range(2))
    try:
        parse_stat(whole[:low] + piece + whole[high:])
    except ValueError as error:
        assert str(error)  # noqa: PT017 - what is raised is not known beforehand


PF_EXITING, PF_KTHREAD, PF_NO_SETAFFINITY = 0x4, 0x200000, 0x4000000


def placed(proc: Path, where: str, *, state: str = "S", flags: int = 0) -> None:
    """A ``stat`` file below another ``/proc``."""
    folder = proc / where
    folder.mkdir(parents=True, exist_ok=True)
    text = stat_line("x").replace(" S ", f" {state} ").replace("4194560", str(flags))
    (folder / "stat").write_text(text)


@pytest.mark.parametrize(
    ("state", "flags", "over"),
    [
        ("S", 0, False),
        ("R", PF_KTHREAD | PF_NO_SETAFFINITY, False),
        ("T", 0, False),
        ("D", PF_EXITING, True),
        ("Z", 0, True),
        ("X", 0, True),
        ("x", 0, True),
    ],
)
def test_who_executes_nothing_any_more(tmp_path: Path, state: str, flags: int, over: bool) -> None:
    placed(tmp_path, "42", state=state, flags=flags)
    placed(tmp_path, "42/task/42", state=state, flags=flags)
    found = stat_of(42, tmp_path)
    assert found is not None
    assert (found.is_over, is_over(42, tmp_path), lives(42, tmp_path)) == (over, over, not over)
    assert found.is_kernel == found.is_bound == bool(flags & PF_KTHREAD)


def test_a_process_without_its_first_thread_lives_as_long_as_another(tmp_path: Path) -> None:
    placed(tmp_path, "42", state="Z")
    placed(tmp_path, "42/task/42", state="Z")
    assert (lives(42, tmp_path), began(42, tmp_path)) == (False, None)
    placed(tmp_path, "42/task/43")
    assert (lives(42, tmp_path), began(42, tmp_path)) == (True, 5)
    assert list(living_threads(42, tmp_path)) == [43]
    placed(tmp_path, "42/task/43", flags=PF_EXITING)
    assert not lives(42, tmp_path)


def test_a_file_of_a_process_that_has_just_ended_is_empty(tmp_path: Path) -> None:
    (tmp_path / "42").mkdir()
    (tmp_path / "42/stat").touch()
    assert stat_of(42, tmp_path) is None
    assert not lives(42, tmp_path)


def test_this_process() -> None:
    me, found = os.getpid(), stat_of(os.getpid())
    assert found is not None
    assert (found.pid, found.parent) == (me, os.getppid())
    assert (found.group, found.session) == (os.getpgid(0), os.getsid(0))
    assert (me in pids(), lives(me), began(me)) == (True, True, found.start)
    assert 0.0 <= (age(me) or -1.0) < float(Path("/proc/uptime").read_text().split()[0]) + 1
    assert threading.get_native_id() in threads(me)
    assert len(boot_id()) == 36


def test_one_that_was_reaped_is_gone_and_a_zombie_has_no_beginning() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = stat_of(child.pid)
        assert zombie is not None
        assert zombie.is_defunct
        assert (lives(child.pid), began(child.pid), age(child.pid)) == (False, None, None)
    assert (stat_of(child.pid), threads(child.pid)) == (None, [])


@pytest.mark.parametrize(
    "look",
    [stat_of, threads, is_over, lives, began, age, identify, parent_of, thread],
)
def test_who_cannot_be_looked_at_is_not_gone(look: Callable[[int], object]) -> None:
    assert look(os.getpid()) is not None
    with no_files(), pytest.raises(NoRoomError, match="Too many open files") as caught:
        look(os.getpid())
    assert "LimitNOFILE" in caught.value.remedy
    # Whichever port it comes through.
    assert isinstance(caught.value, CgroupError)
    assert isinstance(caught.value, RuntimeFailedError)


def test_no_processes_are_not_taken_for_gone_by_affinity() -> None:
    me = stat_of(os.getpid())
    assert me is not None
    with no_files():
        with pytest.raises(CgroupError):
            affinity.look()
        with pytest.raises(NoRoomError):
            affinity.threads(me)
        with pytest.raises(NoRoomError):
            affinity.lineage()


@pytest.mark.parametrize(
    ("text", "controller", "path"),
    [
        ("3:cpuset:/a\n0::/\n", "cpuset", "/a"),
        ("2:cpu,cpuacct:/b:c\n", "cpu", "/b:c"),
        ("4:cpuacct:/x\n3:cpu:/y\n", "cpu", "/y"),
        ("3:cpuset:/a\n0::/user.slice\n", "", "/user.slice"),
        ("0::/gone (deleted)\n", "", "/gone"),
        ("1:name=systemd:/\n", "cpuset", None),
        ("", "", None),
        ("nonsense", "", None),
    ],
)
def test_the_cgroup_of_a_process(text: str, controller: str, path: str | None) -> None:
    assert parse_cgroups(text).get(controller) == path


@given(st.text())
def test_any_text_can_be_read_for_cgroups(text: str) -> None:
    found = parse_cgroups(text)
    assert found.get("cpuset") is None or ":" in text
    assert all(path.startswith("/") for path in found.values())
