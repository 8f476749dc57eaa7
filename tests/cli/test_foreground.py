"""What is left of a command that was held back and never began."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from pinfold.cli.foreground import Foreground


def test_signals_come_as_before_when_it_was_given_up(tmp_path: Path) -> None:
    """Whoever holds one blocked on purpose keeps it so; no other one stays blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        foreground = Foreground(("true",), str(tmp_path))
        foreground.give_up()
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before | {signal.SIGUSR2}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_command_has_the_mask_of_whoever_calls(tmp_path: Path) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    told = tmp_path / "blocked"
    try:
        foreground = Foreground(("cp", "/proc/self/status", str(told)), str(tmp_path))
        assert foreground.run({}) == os.EX_OK
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    (blocked,) = re.findall(r"SigBlk:\s*(\w+)", told.read_text())
    assert int(blocked, 16) == sum(1 << number - 1 for number in before | {signal.SIGUSR2})
