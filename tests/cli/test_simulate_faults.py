"""``pinfold simulate`` is interrupted, killed, or loses a worker: what is left then."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.scenes.small_experiment import experiment_file

LONG = "100d"
PROGRAM = (sys.executable, "-m", "pinfold", "simulate")


def _started(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _family(leader: int) -> list[int]:
    """All processes of its session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def _workers(leader: int) -> list[int]:
    """Those that make runs."""
    return [
        pid for pid in _family(leader) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def _until_busy(program: subprocess.Popen[str], workers: int) -> list[int]:
    """Wait until this many workers have run for a moment."""
    deadline = time.monotonic() + 60
    ticks = os.sysconf("SC_CLK_TCK")
    while time.monotonic() < deadline:
        found = _workers(program.pid) if workers else [program.pid]
        used = [
            sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
            for pid in found
        ]
        if len(found) >= workers and used and min(used) > 1.5 * ticks:
            return found
        assert program.poll() is None, program.communicate()
        time.sleep(0.05)
    raise AssertionError("they never began")


def _all_gone(leader: int) -> None:
    deadline = time.monotonic() + 10
    while _family(leader):
        assert time.monotonic() < deadline, f"left behind: {_family(leader)}"
        time.sleep(0.05)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("number", "to_all"),
    [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)],
)
def test_an_interrupted_simulation_tells_what_there_is(
    number: signal.Signals, workers: int, tmp_path: Path, *, to_all: bool
) -> None:
    file = experiment_file(tmp_path, after=LONG)
    program = _started(file, "--workers", str(workers), "-o", "json")
    _until_busy(program, 0 if workers == 1 else workers)
    if to_all:
        os.killpg(program.pid, number)
    else:
        program.send_signal(number)
    out, err = program.communicate(timeout=60)
    assert program.returncode == 128 + number
    assert err == ""
    document = json.loads(out)
    runs = document["runs"]
    assert len(runs) == workers
    for run in runs:
        assert not run["complete"]
        assert 0 < run["until"] < 100 * 86400
    assert len(runs) + len(document["missing"]) == 4
    _all_gone(program.pid)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    file = experiment_file(tmp_path, after=LONG)
    program = _started(file, "--workers", "2", "-o", "json")
    for pid in _until_busy(program, 2):
        os.kill(pid, signal.SIGSTOP)
    program.send_signal(signal.SIGINT)
    time.sleep(1)
    assert program.poll() is None, "it waits for those who could tell what they have"
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=30)
    assert program.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    _all_gone(program.pid)


def test_killed_at_any_time_it_goes_on_with_what_had_ended(tmp_path: Path) -> None:
    needed = {"precision": 0.5}
    file = experiment_file(tmp_path, after="2d", seeds=[1, 2, 3], nodesNeeded=needed)
    arguments = (file, "-o", "json", "--workers", "2")
    alone = subprocess.check_output([*PROGRAM, *map(str, arguments)], text=True)
    folder = tmp_path / "kept"
    chance = random.Random(5)  # noqa: S311 - the same every time
    for ended in range(1, 5):
        program = _started(*arguments, "--resume", folder)
        while len(list(folder.glob("*.run.json"))) < ended:
            assert program.poll() is None, program.communicate()
            time.sleep(0.01)
        time.sleep(0.2 * chance.random())
        os.kill(program.pid, signal.SIGKILL)
        program.communicate(timeout=30)
        _all_gone(program.pid)
    program = _started(*arguments, "--resume", folder)
    out, err = program.communicate(timeout=120)
    assert (program.returncode, err) == (0, "")
    assert out == alone


def test_a_worker_that_is_killed_is_told_with_its_run(tmp_path: Path) -> None:
    file = experiment_file(tmp_path, after=LONG, seeds=[7])
    program = _started(file, "--workers", "2")
    pid, _ = _until_busy(program, 2)
    os.kill(pid, signal.SIGKILL)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (1, "")
    (line,) = err.splitlines()
    assert line.startswith("Error: a worker died during ")
    assert ("none, seed 7 (its worker got SIGKILL)" in line) != (
        "whole cores, seed 7 (its worker got SIGKILL)" in line
    ), "of one run, not of the other"
    _all_gone(program.pid)


def test_a_terminal_has_a_bar(tmp_path: Path) -> None:
    file = experiment_file(tmp_path, after="30d", seeds=[1])
    terminal, end = pty.openpty()
    with (tmp_path / "out").open("wb") as out:
        command = [*PROGRAM, str(file), "--workers", "1", "-o", "json"]
        program = subprocess.Popen(command, stdout=out, stderr=end)
    os.close(end)
    shown = b""
    while True:
        try:
            shown += os.read(terminal, 65536)
        except OSError:
            break  # nobody has the other end any more
    os.close(terminal)
    assert program.wait(timeout=30) == 0
    assert len(json.loads((tmp_path / "out").read_text())["runs"]) == 2
    lines = [line for line in shown.decode().split("\r") if "placements/s" in line]
    assert len(lines) > 2
    assert "0/2 runs" in lines[0]
    assert "2/2 runs" in lines[-1]
    assert "100%" in lines[-1]
    assert all(len(line.rstrip()) < 80 for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--executor", "nobody"), "'nobody' is no executor"),
        (("--executor-option", "x"), "an option is NAME=VALUE"),
        (("--executor-address", "tcp://x:1"), "of the executor dask only"),
        (("--resume", "/proc/nowhere"), "name a folder that you may write to"),
        (("--events", "events.txt"), "ends with .csv or .parquet"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    program = _started(experiment_file(tmp_path, after="1h"), *arguments)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("Error: ")
    assert message in line


def test_results_are_out_before_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    file = experiment_file(tmp_path, after="1h")
    program = _started(file, "-o", "json", "--report", "/dev/full")
    out, err = program.communicate(timeout=60)
    assert program.returncode == 1
    assert len(json.loads(out)["runs"]) == 4
    (line,) = err.splitlines()
    assert line.startswith("Error: --report /dev/full: ")


def test_arrivals_from_a_pipe_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pods.csv")
    file = experiment_file(tmp_path, after="1h", arrivals={"csv": {"file": "pods.csv"}})
    program = _started(file)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out) == (2, "")
    (line,) = err.splitlines()
    assert "pods.csv: a pipe or a device" in line
