"""A command in the foreground: held back until it may start, then the caller's own child."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Final

from pinfold.cli.start.exit_statuses import NOT_EXECUTABLE, NOT_FOUND
from pinfold.core.pod.workload import FACTS
from pinfold.linux.endings import BY_SIGNAL, exit_status

_FORWARDED: Final = frozenset(
    {
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGWINCH,
        signal.SIGCONT,
    }
)
_ENDING: Final = frozenset({signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})
_FROM_KERNEL: Final = 0x80
"""``SI_KERNEL``: from the terminal, which tells every process of the foreground group itself."""


class Foreground:
    """A child that waits before its first instruction.

    Terminal, standard streams and process group are the caller's, so that pipes, Ctrl-C and Ctrl-Z
    work as without Pinfold.
    """

    def __init__(self, command: tuple[str, ...], working_dir: str) -> None:
        reader, self._writer = os.pipe()
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._writer)
            _wait_and_execute(reader, command, working_dir, self._mask)
        os.close(reader)

    def pause(self, seconds: float) -> None:
        """Wait with the child; whom a signal is to end does not wait on.

        Raises:
            SystemExit: a signal has come; 128 + its number.
        """
        told = signal.sigtimedwait(_ENDING, seconds)
        if told is not None:
            raise SystemExit(BY_SIGNAL + told.si_signo)

    def give_up(self) -> None:
        """End the child before it has begun; signals come as they came before it was there."""
        os.close(self._writer)
        os.waitpid(self.pid, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def run(self, env: Mapping[str, str]) -> int:
        """Let it go with these variables added, pass signals on; return its status.

        The status is 128 + the signal where one ended it.
        """
        with open(self._writer, "w", encoding="utf-8") as writer:  # noqa: PTH123 - a descriptor
            json.dump(dict(env), writer)
        while True:
            told = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
            if told.si_signo == signal.SIGCHLD:
                status = self._ended()
                if status is not None:
                    return status
            elif told.si_code != _FROM_KERNEL:
                os.kill(self.pid, told.si_signo)

    def _ended(self) -> int | None:
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return None
        if os.WIFSTOPPED(status):
            # Ctrl-Z: the caller's shell waits for the group's leader to stop, too.
            os.kill(os.getpid(), signal.SIGSTOP)
            return None
        return exit_status(os.waitstatus_to_exitcode(status))


def _wait_and_execute(
    reader: int, command: tuple[str, ...], working_dir: str, mask: Iterable[int]
) -> None:
    """The child's side; never returns."""
    place = "the word to go"
    try:
        with open(reader, encoding="utf-8") as file:
            text = file.read()
        if not text:
            os._exit(NOT_EXECUTABLE.code)  # given up
        # Those of a container in which this is run tell of that container.
        inherited = {name: value for name, value in os.environ.items() if name not in FACTS}
        env = {**inherited, **json.loads(text)}
        # What a signal does here before the command is there is what it would do to that.
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        place = working_dir
        os.chdir(working_dir)
        place = command[0]
        os.execvpe(command[0], command, env)  # noqa: S606 - a command is run as it is given
    except FileNotFoundError as error:
        _fail(f"{place}: {error.strerror}", NOT_FOUND.code)
    except OSError as error:
        _fail(f"{place}: {error.strerror}", NOT_EXECUTABLE.code)
    finally:
        os._exit(NOT_EXECUTABLE.code)


def _fail(problem: str, status: int) -> None:
    os.write(2, f"pinfold run: {problem}\n".encode(errors="replace"))
    os._exit(status)
