"""A file or a folder that is one process's alone, as long as that process lives.

The kernel keeps the lock (``flock(2)``) with the inode and drops it when its holder dies, however
that happens; it is seen from every mount namespace.  What is at the path may be removed or replaced
at any moment, so that a lock says nothing until the two are compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")
_PAUSE: Final = 0.01

PATIENCE: Final = 1.0
"""Seconds for an agent that was just killed to let go of what another is to have."""

SECOND_AGENT: Final = (
    "give a second agent on this machine a cgroupName, a stateDir and a socket of its own, and "
    "reservedSystemCPUs that keep each off the CPUs which the other gives out"
)
"""What it takes beside the agent that is in the way; a remedy begins "stop that one, or"."""


class HeldError(Exception):
    """Another process has it; ``pid`` is None where the kernel does not tell.

    ``who`` is the process in words, with a blank before them, "" where it is not known.
    """

    def __init__(self, path: Path, pid: int | None) -> None:
        self.path = path
        self.pid = pid
        self.who = "" if pid is None else f" (process {pid})"
        super().__init__(f"{path}: locked by another process{self.who}")


class Lock:
    """What :func:`lock` gave; the kernel drops it with the process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @property
    def in_place(self) -> bool:
        """Whether what is locked is still what is found at the path."""
        return self.descriptor >= 0 and _is_at(self.path, self.descriptor)

    def leave(self, record: Path) -> None:
        """Let others have it; where the file is gone that it guards, nothing is left of it.

        Nothing may be done under the lock after this.  Others who have this one open look whether
        it is still at the path once they have it, and take the new one.
        """
        if not os.path.lexists(record) and self.in_place:
            with contextlib.suppress(OSError):
                self.path.unlink()
        self.release()

    def release(self) -> None:
        """Let others have it; again is no error."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def lock(path: Path, opened: Callable[[], int], *, patience: float = 0.0) -> Lock:
    """Lock what is at a path, and is there still when it is locked.

    Args:
        path: what others look for.
        opened: opens it, and makes it where it is missing; called again when somebody has removed
            or replaced it before it was locked.
        patience: seconds to wait for another process (one that was just killed lets go a moment
            later).

    Raises:
        HeldError: another process has it.
        OSError: from ``opened``.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            if (held := _tried(path, opened)) is not None:
                return held
        except HeldError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE)


@contextlib.asynccontextmanager
async def locked(
    path: Path, opened: Callable[[], int], *, patience: float = 0.0
) -> AsyncIterator[Lock]:
    """Have a lock for a while; arguments and errors as :func:`lock`, and others go on meanwhile."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        try:
            if (held := _tried(path, opened)) is not None:
                break
        except HeldError:
            if loop.time() >= deadline:
                raise
            await asyncio.sleep(_PAUSE)
    try:
        yield held
    finally:
        held.release()


def folder_of(path: Path) -> Callable[[], int]:
    """Opens a folder, to lock it."""
    return lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _tried(path: Path, opened: Callable[[], int]) -> Lock | None:
    """The lock; None where something else was at the path by the time that it was had."""
    descriptor = opened()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Lock(path, os.dup(descriptor)) if _is_at(path, descriptor) else None
    except BlockingIOError:
        raise HeldError(path, _holder(descriptor)) from None
    finally:
        # Also a lock on what has lost its name, which would keep nobody out.
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    mine = os.fstat(descriptor)
    try:
        found = path.stat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)


def _holder(descriptor: int) -> int | None:
    """Who has the lock, by ``proc_locks(5)``."""
    status = os.fstat(descriptor)
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    try:
        lines = _LOCKS.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == f"{device}:{status.st_ino}":
            # Of a process in another pid namespace the kernel says 0 or -1.
            return int(fields[4]) if fields[4].isdecimal() and fields[4] != "0" else None
    return None
