"""``pinfold run --wait`` where the CPUs are taken: any user, no agent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.roots import ROOT
from tests.scenes.waiting import PATIENCE

COUNT = len(os.sched_getaffinity(0))
ALL = str(COUNT - 1)
"""One CPU is left for the system."""

pytestmark = pytest.mark.skipif(COUNT < 2, reason="needs two CPUs")
HOLD = ("sh", "-c", "echo begun; read a")


def begin(folder: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pinfold", "run", f"--socket={folder / 's'}", *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PINFOLD_RUN_DIR": str(folder / "list")},
    )


def holder(folder: Path) -> subprocess.Popen[str]:
    """Somebody who has all CPUs that there are to be had."""
    one = begin(folder, "--cpus", ALL, "--", *HOLD)
    assert one.stdout is not None
    assert one.stdout.readline() == "begun\n"
    return one


def waits(one: subprocess.Popen[str]) -> None:
    """Return when it says that it waits."""
    assert one.stderr is not None
    told = one.stderr.readline()
    assert told.startswith("pinfold: waiting until CPUs are free: Unexpected"), told
    assert "not enough cpus available" in told


def test_it_waits_until_the_cpus_are_free(tmp_path: Path) -> None:
    first = holder(tmp_path)
    second = begin(tmp_path, "--wait", "--cpus", "1", "--", "sh", "-c", "echo ran; exit 5")
    waits(second)
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.5)
    assert first.communicate("\n")[0] == ""
    assert second.communicate(timeout=30 * PATIENCE)[0] == "ran\n"
    assert second.returncode == 5
    assert list((tmp_path / "list").iterdir()) == []


def test_it_gives_up_in_time(tmp_path: Path) -> None:
    first = holder(tmp_path)
    began = time.monotonic()
    second = begin(tmp_path, "--wait", "--timeout", "0.5", "--cpus", "1", "--", "echo", "ran")
    out, told = second.communicate(timeout=30 * PATIENCE)
    assert time.monotonic() - began >= 0.5
    assert (second.returncode, out) == (1, "")
    assert "; nothing was run within 0.5 s" in told
    first.communicate("\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_interrupted_waits_no_more(tmp_path: Path, number: signal.Signals) -> None:
    first = holder(tmp_path)
    second = begin(tmp_path, "--wait", "--cpus", "1", "--", "echo", "ran")
    waits(second)
    second.send_signal(number)
    assert second.communicate(timeout=30 * PATIENCE) == ("", "")
    assert second.returncode == 128 + number
    first.communicate("\n")
    assert list((tmp_path / "list").iterdir()) == []


@pytest.mark.parametrize(
    ("args", "status", "told"),
    [
        (("--wait", "--cpus", "4096"), 1, "not enough cpus available"),
        (("--timeout", "5", "--cpus", "1"), 2, "--timeout needs --wait"),
        (("--wait", "--timeout", "soon", "--cpus", "1"), 2, "soon"),
    ],
)
def test_what_waiting_does_not_help_is_told_at_once(
    tmp_path: Path, args: tuple[str, ...], status: int, told: str
) -> None:
    done = begin(tmp_path, *args, "--", "echo", "ran")
    out, problem = done.communicate(timeout=30 * PATIENCE)
    assert (done.returncode, out) == (status, "")
    assert told in problem
    assert "waiting" not in problem


def test_many_have_the_cpus_one_after_the_other(tmp_path: Path) -> None:
    script = f"mkdir {tmp_path}/on-$PINFOLD_CPUS && sleep 0.1 && rmdir {tmp_path}/on-$PINFOLD_CPUS"
    lives = [begin(tmp_path, "--wait", "--cpus", "1", "--", "sh", "-c", script) for _ in range(5)]
    told = [one.communicate(timeout=60 * PATIENCE)[1] for one in lives]
    assert [one.returncode for one in lives] == [0] * 5, told
    assert list((tmp_path / "list").iterdir()) == []
