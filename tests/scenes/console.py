"""Runs what the documents show: ```` ```console ```` blocks, their output and exit status.

A line that starts with ``$ `` is a command (a trailing backslash goes on); the lines after it are
its output, where ``...`` stands for any text in a line and, alone, for any lines.  No lines mean
that any output will do.  ``<!-- exit: 1 -->`` before a block is the status that its last command
has to have; ``<!-- not run: reason -->`` leaves the block out.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_MARKER = re.compile(r"<!-- (exit|not run): (.*?) -->")
_FENCE = re.compile(r"^(`{3,})(\w*)")


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a document and what it promises."""

    line: int
    text: str
    output: list[str] = field(default_factory=list)
    status: int = 0


def commands(document: str) -> Iterator[Command]:
    """The commands of all console blocks, in order."""
    marker: tuple[str, str] | None = None
    lines = iter(enumerate(document.splitlines(), start=1))
    for _, line in lines:
        if found := _MARKER.fullmatch(line.strip()):
            marker = (found[1], found[2])
        elif fence := _FENCE.match(line):
            block = []
            for number, inside in lines:
                if inside.startswith(fence[1]):
                    break
                block.append((number, inside))
            if fence[2] == "console" and (marker is None or marker[0] != "not run"):
                yield from _block(block, int(marker[1]) if marker else 0)
            marker = None
        elif line.strip():
            marker = None


def _block(lines: list[tuple[int, str]], status: int) -> list[Command]:
    found: list[Command] = []
    going_on = False
    for number, line in lines:
        if going_on:
            last = found[-1]
            found[-1] = Command(last.line, f"{last.text}\n{line}")
            going_on = line.endswith("\\")
        elif line.startswith("$ "):
            found.append(Command(number, line[2:]))
            going_on = line.endswith("\\")
        elif found:
            found[-1].output.append(line.rstrip())
        else:
            raise ValueError(f"line {number}: a console block has to start with a command")
    if found:
        last = found[-1]
        found[-1] = Command(last.line, last.text, last.output, status)
    return found


def run(command: Command, folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder`` with ``programs`` first on the path; output as in a pipe."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "PINFOLD_SOCKET")
    }
    environment |= {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}
    return subprocess.run(
        ["/bin/sh", "-c", command.text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )


def matches(expected: list[str], output: str) -> bool:
    """Whether the output is what the document shows."""
    while expected and not expected[-1]:
        expected = expected[:-1]
    if not expected:
        return True
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else _line_pattern(line) for line in expected
    )
    shown = "".join(line.rstrip() + "\n" for line in output.splitlines())
    return re.fullmatch(pattern + r"\n*", shown) is not None


def _line_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split("...")) + "\n"
