"""A pipe with a name, on which a process is told something: it waits there without any CPU time."""

from __future__ import annotations

import os
from pathlib import Path

from tests.scenes.waiting import wait_until


def bell(folder: Path) -> Path:
    """Make one; who opens it for reading waits until it is rung."""
    made = folder / "bell"
    os.mkfifo(made)
    return made


def ring(made: Path) -> None:
    """Let the one go on who waits there, as soon as he does."""
    wait_until(lambda: _rung(made))


def _rung(made: Path) -> bool:
    try:
        writer = os.open(made, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False  # nobody waits yet
    try:
        return os.write(writer, b"1\n") > 0
    finally:
        os.close(writer)
