"""Commands that write a file where the disk is full: one line, status 1, and what was there is."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from pinfold.cli import main
from tests.roots import ROOT
from tests.scenes.small_disk import fill, mounted
from tests.scenes.small_experiment import experiment_file

FULL = os.strerror(errno.ENOSPC)
OLD = b"what was there before\n"
STATE = ROOT / "examples" / "state" / "cpu_manager_state"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "4m"):
        yield tmp_path / "disk"


def refused(disk: Path, *arguments: str | Path) -> str:
    """Call a command when the disk is full: what it says; what is there is as it was."""
    ballast = fill(disk)
    there = {one: one.read_bytes() for one in disk.rglob("*") if one.is_file() and one != ballast}
    result = CliRunner().invoke(main, [str(one) for one in arguments])
    ballast.unlink()
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert FULL in line
    assert {one: one.read_bytes() for one in disk.rglob("*") if one.is_file()} == there
    return line


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_events_of_a_simulation(disk: Path, tmp_path: Path, form: str, workers: int) -> None:
    file = disk / f"events.{form}"
    file.write_bytes(OLD)
    experiment = experiment_file(tmp_path)
    line = refused(disk, "simulate", experiment, "--workers", str(workers), "--events", file)
    assert str(file) in line


def test_report_of_a_simulation(disk: Path, tmp_path: Path) -> None:
    page = disk / "report.html"
    page.write_bytes(OLD)
    line = refused(disk, "simulate", experiment_file(tmp_path), "--workers", "1", "--report", page)
    assert line == f"Error: --report {page}: {FULL}"


@pytest.mark.parametrize("more", [(), ("--show-node", "small-1")])
def test_pictures_of_a_simulation(disk: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    experiment = experiment_file(tmp_path)
    call = ["simulate", str(experiment), "--workers", "1", "--svg", str(disk), *more]
    assert CliRunner().invoke(main, call).exit_code == 0
    pictures = list(disk.iterdir())
    assert pictures
    for picture in pictures:
        picture.write_bytes(OLD)
    assert refused(disk, *call) == f"Error: --svg {disk}: {FULL}"


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize(
    "call", [("convert", "--to", "v2", "--drop-pod-entries"), ("repair", "--keep-pods", "none")]
)
def test_state_files(disk: Path, tmp_path: Path, call: tuple[str, ...], *, out: bool) -> None:
    """In place there is no backup either, and elsewhere the other file stays."""
    command, *more = call
    file = (tmp_path if out else disk) / "cpu_manager_state"
    file.write_bytes(STATE.read_bytes())
    if out:
        target = disk / "other"
        target.write_bytes(OLD)
        more += ["-o", str(target)]
    assert str(disk) in refused(disk, "state", command, file, *more)


@pytest.mark.parametrize("more", [(), ("--force",)])
def test_capture(disk: Path, more: tuple[str, ...]) -> None:
    file = disk / "node.tar"
    if more:
        file.write_bytes(OLD)
    assert (
        refused(disk, "capture", "-o", file, *more) == f"Error: {file}: cannot be written: {FULL}"
    )


def test_run_without_an_agent(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINFOLD_RUN_DIR", str(disk))
    call = ("run", f"--socket={disk / 's.sock'}", "--cpus", "1", "--", "true")
    assert str(disk) in refused(disk, *call)
