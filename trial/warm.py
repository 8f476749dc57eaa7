"""Starts agents that have imported everything already, for machines where that takes half a minute.

``python -m trial.warm`` reads a line for each agent, a JSON list of its words and the file for what
it says, and forks; it prints ``started PID``, and ``exited PID STATUS`` once that has ended.  Only
this process and its children import ``pinfold``.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Final

_MODULES: Final = (
    "pinfold.cli.commands.agent",
    "pinfold.agent.service",
    "pinfold.agent.process",
    "pinfold.web.server",
)


class Agent:
    """An agent that was started so: what is used of ``subprocess.Popen``."""

    def __init__(self, starter: Starter, pid: int) -> None:
        self._starter = starter
        self.pid = pid

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        self._starter.listen(0)
        return self._starter.ended.get(self.pid)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended; raises subprocess.TimeoutExpired."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self._starter.ended.get(self.pid)) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self._starter.listen(left)
        return status

    def send_signal(self, number: int) -> None:
        """Send it a signal; nothing once it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


class Starter:
    """The process that forks them; it ends when this one does."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trial.warm"],
            # Whoever tries it may have told the command line of another agent.
            env={k: v for k, v in os.environ.items() if not k.startswith("PINFOLD_")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
        )
        assert self._process.stdin is not None  # noqa: S101 - both are pipes
        assert self._process.stdout is not None  # noqa: S101 - the same
        self._in: IO[bytes] = self._process.stdin
        self._out: IO[bytes] = self._process.stdout
        self.ended: dict[int, int] = {}
        self._started: list[int] = []
        self._rest = b""

    def launch(self, words: Sequence[str], log: Path) -> Agent:
        """Start an agent, with these words on its command line."""
        self._in.write(json.dumps([list(words), str(log)]).encode() + b"\n")
        self._in.flush()
        while not self._started:
            self.listen(None)
        return Agent(self, self._started.pop())

    def listen(self, seconds: float | None) -> None:
        """Hear what there is, or wait so long for it."""
        if not select.select([self._out], [], [], seconds)[0]:
            return
        data = os.read(self._out.fileno(), 4096)
        if not data:
            raise RuntimeError("who starts the agents has ended")
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, pid, *status = line.split()
            if word == b"started":
                self._started.append(int(pid))
            else:
                self.ended[int(pid)] = int(status[0])


def main() -> None:
    """See the module."""
    for name in _MODULES:
        import_module(name)
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    rest = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap()
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                words, log = json.loads(line)
                if (pid := os.fork()) == 0:
                    _become(words, log)
                os.write(1, f"started {pid}\n".encode())


def _reap() -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            os.write(1, f"exited {found[0]} {os.waitstatus_to_exitcode(found[1])}\n".encode())


def _become(words: Sequence[str], log: str) -> None:
    """Be an agent, as if started with these words."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for descriptor, number in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(descriptor, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.argv = ["pinfold", *words]
        import_module("pinfold.cli").main(prog_name="pinfold")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
