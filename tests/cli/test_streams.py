"""Standard output that is full or closed, and one that nobody reads on: alike in every command."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.cli import COMMANDS
from pinfold.cli.start.exit_statuses import REFUSED, UNREAD
from tests.scenes.command_lines import SILENT, Lines, command_lines, leaves

LEAVES = [name for name, _ in leaves()]
FULL = f"Error: standard output: {os.strerror(errno.ENOSPC)}\n"
CLOSED = "Error: standard output: it is closed; >/dev/null is for what nobody wants to read\n"


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    with command_lines(tmp_path_factory.mktemp("lines")) as found:
        yield found


def test_each_command_has_a_line(lines: Lines) -> None:
    assert {*lines.words, *SILENT} == {*LEAVES}
    assert {name.split()[0] for name in LEAVES} == {*COMMANDS}


def _last(text: bytes) -> str:
    """The error, without what a command has noted before."""
    return text.decode().splitlines(keepends=True)[-1]


@pytest.mark.parametrize("command", [name for name in LEAVES if name not in SILENT])
def test_what_a_command_prints_has_no_room(lines: Lines, command: str) -> None:
    for how, said in ((">/dev/full", FULL), (">&-", CLOSED)):
        done = lines.run(lines.of(command), how)
        assert (done.returncode, _last(done.stderr)) == (REFUSED.code, said)
        assert b"Traceback" not in done.stderr
    for how in (">/dev/full 2>&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full"):
        done = lines.run(lines.of(command), how)
        assert done.returncode == REFUSED.code, "also where nobody can be told"


@pytest.mark.parametrize("command", LEAVES)
def test_the_help_of_a_command_has_no_room(lines: Lines, command: str) -> None:
    line = [sys.executable, "-m", "pinfold", *command.split(), "--help"]
    done = lines.run(line, ">/dev/full")
    assert (done.returncode, done.stderr.decode()) == (REFUSED.code, FULL)
    done = lines.run(line, "2>&-")
    assert done.returncode == 0
    assert done.stdout.startswith(b"Usage: pinfold")


@pytest.mark.parametrize("command", ["schema", "topology", "status", "logs", "profile show"])
def test_who_reads_no_more_is_not_told(lines: Lines, command: str) -> None:
    line = lines.of(command)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            line,
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            env={**os.environ, "PINFOLD_SOCKET": str(lines.socket)},
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (UNREAD.code, b"")


def test_what_is_written_is_never_written_into_a_file(lines: Lines, tmp_path: Path) -> None:
    """A closed descriptor would be that of the next file that is opened."""
    written = []
    for how, status in (("<&- >&- 2>&-", REFUSED.code), ("", 0)):
        out = tmp_path / f"{status}" / "node.tar"
        out.parent.mkdir()
        line = [*lines.of("capture")[:-1], str(out)]
        assert lines.run(line, how).returncode == status
        written.append(out.read_bytes())
    assert written[0] == written[1]


def test_standard_input_that_is_closed_is_one_line(lines: Lines) -> None:
    line = [sys.executable, "-m", "pinfold", "plan", "--machine", "1s4c1t", "-"]
    done = lines.run(line, "<&-")
    assert done.returncode == 2
    (said,) = done.stderr.decode().splitlines()
    assert said.startswith("Error: ")
