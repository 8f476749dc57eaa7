"""Run a command of which nothing stays: ``python -m mutants.contained SECONDS COMMAND...``.

Its output is handed on.  A command that says nothing for the given seconds is interrupted, and
killed some seconds later; the exit status is 124 then, else the command's own.  Whatever it has
started is gone when this ends, daemons with sessions of their own included.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SILENT: Final = 124
"""The exit status for a command that was silent for too long, as that of timeout(1)."""

_SECONDS_TO_TIDY_UP: Final = 20
_PR_SET_CHILD_SUBREAPER: Final = 36


class Contained:
    """A command, and all that comes of it."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it; from here on orphans become children of this process instead of init's."""
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "prctl")
        self._woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Who was started with it blocked would never hear of an end.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        output, its_output = os.pipe2(os.O_CLOEXEC)
        self._output = output
        self._child = subprocess.Popen(  # noqa: S603 - what this is for
            command, stdin=subprocess.DEVNULL, stdout=its_output, stderr=its_output
        )
        os.close(its_output)
        self._status: int | None = None

    def run(self, patience: float) -> int:
        """The exit status, as a shell has it."""
        if not self._follow(patience):
            self._child.send_signal(signal.SIGINT)
            self._follow(_SECONDS_TO_TIDY_UP)
            return SILENT
        assert self._status is not None  # noqa: S101 - it has ended
        code = os.waitstatus_to_exitcode(self._status)
        return code if code >= 0 else 128 - code

    def _follow(self, patience: float) -> bool:
        """Hand on the output until the command ends; False when it was silent for too long."""
        while self._status is None:
            ready, _, _ = select.select([self._output, self._woken], [], [], patience)
            if not ready:
                return False
            if self._woken in ready:
                os.read(self._woken, 1 << 10)
                self._reap()
            self._hand_on()
        return True

    def _hand_on(self) -> None:
        """What there is; a daemon may hold the pipe open for longer than the command lives."""
        while select.select([self._output], [], [], 0)[0]:
            piece = os.read(self._output, 1 << 16)
            if not piece:
                break
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()

    def _reap(self) -> None:
        """Take leave of the dead, orphans too: their numbers are waited for in vain else."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._child.pid:
                    self._status = ended[1]

    def end(self) -> None:
        """Kill all descendants: those of one that was killed are the next round's children."""
        while children := _children():
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)
            self._reap()


def _children() -> list[int]:
    """The processes whose parent is this one; dead ones are there until they are reaped."""
    mine = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                stat = (folder / "stat").read_text(encoding="utf-8", errors="replace")
                if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                    mine.append(int(folder.name))
    return mine


def main(arguments: Sequence[str]) -> int:
    """Run it, and return the exit status."""
    patience, *command = arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Who was started in the background of a shell ignores it, and so would the command.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    contained = Contained(command)
    try:
        return contained.run(float(patience))
    finally:
        contained.end()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
