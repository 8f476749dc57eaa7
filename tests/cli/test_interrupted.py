"""SIGINT and SIGTERM end every command, whenever they come: 128 + the signal, and no word."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scenes.command_lines import Lines, command_lines
from tests.scenes.small_experiment import experiment_file
from tests.scenes.waiting import wait_until

SILENT = ("Aborted", "Traceback", "Error", "Exception")
COMMANDS = ("plan", "simulate", "topology", "status", "history", "explain", "audit")


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    with command_lines(tmp_path_factory.mktemp("lines")) as found:
        yield found


def _begun(
    line: list[str], lines: Lines, stdout: int = subprocess.PIPE, stderr: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Start it, and wait until it is the program's: before that the signal is Python's."""
    env = {**os.environ, "PINFOLD_SOCKET": str(lines.socket)}
    program = subprocess.Popen(line, env=env, cwd=lines.folder, stdout=stdout, stderr=stderr)
    while program.poll() is None and not _catches(program.pid, signal.SIGTERM):
        time.sleep(0.001)
    return program


def _catches(pid: int, number: int) -> bool:
    for row in Path(f"/proc/{pid}/status").read_text().splitlines():
        if row.startswith("SigCgt:"):
            return bool(int(row.split()[1], 16) >> (number - 1) & 1)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("command", COMMANDS)
def test_at_any_moment(lines: Lines, command: str, number: signal.Signals) -> None:
    chance = random.Random(f"{command} {number}")  # noqa: S311 - the same every time
    statuses = set()
    for moment in (0.0, *(chance.random() for _ in range(6))):
        program = _begun(lines.of(command), lines)
        time.sleep(moment * (1.0 if command == "simulate" else 0.4))
        program.send_signal(number)
        _, err = program.communicate(timeout=60)
        # One may be done by then; an audit finds that what is recorded is not so.
        # The last that Python does is to have the signal as it was.
        done = {0, 1} if command == "audit" else {0}
        assert program.returncode in {*done, 128 + number, -number}, err
        assert not [word for word in SILENT if word.encode() in err], err
        statuses.add(program.returncode)
    assert 128 + number in statuses


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [("status", "--watch"), ("logs", "-f", "pod/db")])
def test_what_goes_on_until_then(lines: Lines, words: tuple[str, ...], number: int) -> None:
    program = _begun([sys.executable, "-m", "pinfold", *words], lines)
    assert program.stdout is not None
    assert program.stdout.readline()
    program.send_signal(number)
    _, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (128 + number, b"")


def test_a_terminal_is_as_it_was(tmp_path: Path, lines: Lines) -> None:
    file = experiment_file(tmp_path, after="100d")
    terminal, end = pty.openpty()
    line = [sys.executable, "-m", "pinfold", "simulate", str(file), "--workers", "1"]
    program = _begun(line, lines, stdout=end, stderr=end)
    os.close(end)
    shown = b""
    while b"placements/s" not in shown:
        shown += os.read(terminal, 65536)
    program.send_signal(signal.SIGINT)
    try:
        while True:
            shown += os.read(terminal, 65536)
    except OSError:
        os.close(terminal)
    assert program.wait(60) == 130
    assert b"Aborted" not in shown
    assert shown.rfind(b"\x1b[?25l") < shown.rfind(b"\x1b[?25h"), "the cursor is there again"


def test_who_ignores_an_interrupt_goes_on_ignoring_it(lines: Lines) -> None:
    """As a shell has it of what it has put into the background."""
    line = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *lines.of("topology")]
    program = _begun(line, lines)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, err) == (0, b"")
    assert out


def test_a_file_that_is_half_written_is_removed(lines: Lines, tmp_path: Path) -> None:
    for moment in range(8):
        out = tmp_path / f"{moment}.tar.xz"
        program = _begun([*lines.of("capture")[:-1], str(out)], lines)
        time.sleep(0.08 * moment)
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
        assert program.returncode in {0, 130, -signal.SIGINT}
    wait_until(lambda: not [*tmp_path.glob(".*")])
