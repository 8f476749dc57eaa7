"""Processes of this machine: which one a pid means, and when it ends.

A pid is used again; a pid with the time of its start is not, as long as the machine runs.  A pidfd
(pidfd_open(2), Linux 5.3) holds on to a process whatever becomes of its pid.  Where nobody knows,
NoRoomError is raised.
"""

from __future__ import annotations

import contextlib
import os
import select

from msgspec import Struct

from pinfold.linux import signals
from pinfold.linux.processes import stat_of
from pinfold.ports.errors import RuntimeFailedError


class ProcessId(Struct, frozen=True):
    """One process since the boot: ``start`` is in clock ticks since then."""

    pid: int
    start: int


def identify(pid: int) -> ProcessId | None:
    """Which process ``pid`` is now; None where there is none."""
    stat = stat_of(pid)
    return None if stat is None else ProcessId(pid, stat.start)


def parent_of(pid: int) -> int | None:
    """The pid of a process's parent; None where there is no such process."""
    stat = stat_of(pid)
    return None if stat is None else stat.parent


def open_process(process: ProcessId) -> int | None:
    """A pidfd of exactly this process; None when it is gone; raises RuntimeFailedError."""
    try:
        return signals.open_process(process.pid, process.start)
    except OSError as error:
        raise RuntimeFailedError(
            f"cannot watch process {process.pid}: {error.strerror}", "Linux 5.3 is needed"
        ) from None


def send_signal(process: ProcessId, number: int) -> None:
    """Send a signal to exactly this process, if it is there; raises RuntimeFailedError."""
    try:
        signals.send_signal(process.pid, process.start, number)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RuntimeFailedError(
            f"cannot send signal {number} to process {process.pid}: {reason}",
            "run the agent as root" if isinstance(error, PermissionError) else "",
        ) from None


def move_here(process: ProcessId | None) -> None:
    """Have a process run on the CPUs of this one, as far as the kernel lets it."""
    if process is not None and identify(process.pid) == process:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(process.pid, os.sched_getaffinity(0))


class ProcessWatch:
    """Tells which of many processes ended, with one system call however many are watched.

    ``fileno()`` is readable when there is something to tell, and can itself be waited for.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._tokens: dict[int, tuple[str, bool]] = {}

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._epoll.fileno()

    def add(self, process: ProcessId, token: str, *, reap: bool) -> bool:
        """Watch a process, and tell its end as ``token``; False when it is gone already.

        With ``reap`` it is reaped where it turns out to be a child of this process: one that was
        forked here, or an orphan where this process is the init of a PID namespace.

        Raises:
            RuntimeFailedError: see :func:`open_process`.
        """
        descriptor = open_process(process)
        if descriptor is None:
            return False
        try:
            self._epoll.register(descriptor, select.EPOLLIN)
        except OSError as error:
            os.close(descriptor)
            raise RuntimeFailedError(
                f"cannot watch process {process.pid}: {error.strerror}",
                "raise fs.epoll.max_user_watches",
            ) from None
        self._tokens[descriptor] = (token, reap)
        return True

    def ended(self) -> list[str]:
        """The tokens of the processes that ended since the last call."""
        if not self._tokens:
            return []
        tokens = []
        for descriptor, _ in self._epoll.poll(0, len(self._tokens)):
            token, reap = self._tokens.pop(descriptor)
            tokens.append(token)
            if reap:
                with contextlib.suppress(ChildProcessError):
                    os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG)
            self._epoll.unregister(descriptor)
            os.close(descriptor)
        return tokens

    def close(self) -> None:
        """Watch nothing any more."""
        for descriptor in self._tokens:
            os.close(descriptor)
        self._tokens.clear()
        self._epoll.close()
