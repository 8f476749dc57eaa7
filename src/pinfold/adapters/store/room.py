"""Room on the disk that belongs to a record already, for the time when there is no other.

The kernel gives blocks beyond the end of the database and of its log (fallocate(2) with
``FALLOC_FL_KEEP_SIZE``): nobody else can have them, and SQLite, which does not see them, writes
into them.  A file system that cannot do that gives none.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import Final

from pinfold.adapters.store.place import log_of

RESERVE: Final = 1 << 20
"""Bytes beyond the end of each of the two files; the deletion of a pod takes some 60 KiB."""

_KEEP_SIZE: Final = 0x01
"""``FALLOC_FL_KEEP_SIZE`` of ``linux/falloc.h``."""

_BLOCK: Final = 512
_REMEDY: Final = "make room on the disk; what pods have written goes with them"
_NOT_HERE: Final = (errno.EOPNOTSUPP, errno.ENOSYS)


class Room:
    """Keeps room for the database at ``path``, until :meth:`close`.

    It has the files open: closed while SQLite has them, they would lose its locks.

    Raises:
        OSError: a file is not there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        libc = ctypes.CDLL(None, use_errno=True)
        self._fallocate = getattr(libc, "fallocate64", libc.fallocate)
        self._fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        self._files: list[int] = []
        try:
            for file in (path, log_of(path)):
                self._files.append(os.open(file, os.O_RDWR | os.O_CLOEXEC))
        except BaseException:
            self.close()
            raise

    def keep(self) -> str:
        """Take what is missing; "", or why nothing new should be begun."""
        try:
            for file in self._files:
                self._extend(file)
            system = os.statvfs(self._files[0])
        except OSError as error:
            problem = (
                f"{self._path}: {error.strerror}: what room there is, is kept for deleting pods"
            )
            return f"{problem} ({_REMEDY})"
        blocks = system.f_bavail if os.geteuid() else system.f_bfree
        if blocks * system.f_frsize < RESERVE:
            return (
                f"{self._path.parent}: less than {RESERVE >> 10} KiB are free on this disk, which "
                f"are kept for deleting pods ({_REMEDY})"
            )
        return ""

    def close(self) -> None:
        """Let go of the files, not of the room; SQLite has closed them."""
        while self._files:
            os.close(self._files.pop())

    def _extend(self, file: int) -> None:
        status = os.fstat(file)
        if status.st_blocks * _BLOCK >= status.st_size + RESERVE:
            return
        if self._fallocate(file, _KEEP_SIZE, status.st_size, RESERVE) != 0:
            number = ctypes.get_errno()
            if number not in _NOT_HERE:
                raise OSError(number, os.strerror(number))


def release_room(path: Path) -> None:
    """Give the room of a record back, so that it can be opened on a full disk.

    Nobody else has it open: SQLite needs room for files that are there only while it is open.
    """
    for file in (path, log_of(path)):
        with contextlib.suppress(OSError):
            os.truncate(file, file.stat().st_size)
