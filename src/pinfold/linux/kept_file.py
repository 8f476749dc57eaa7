"""What is read again and again: files of the kernel and folders that are opened once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pinfold.linux.descriptors import file_limit
from pinfold.linux.kernel_files import LEAF_LINKS, read_whole

CHUNK: Final = 4096


class KeptFile:
    """Such a file; ``inode`` tells it from one that is later made at the same place.

    It stays open only while fewer than half of the files that this process may have are; else it is
    opened each time.  A file of a cgroup that was removed fails with ENODEV, also where there is a
    new one of that name: then it is closed, and opened anew the next time.
    """

    def __init__(self, path: Path | str, chunk: int = CHUNK) -> None:
        self._path = path
        self._chunk = chunk
        self._descriptor: int | None = None
        self.inode = 0

    @property
    def is_kept(self) -> bool:
        """Whether it is open."""
        return self._descriptor is not None

    def read(self) -> bytes:
        """What it says now, whole; raises OSError."""
        chunk, kept = self._chunk, self._descriptor
        try:
            descriptor = self._open() if kept is None else kept
            data = part = os.pread(descriptor, chunk, 0)
            while len(part) == chunk:
                part = os.pread(descriptor, chunk, len(data))
                data += part
        except OSError:
            self.close()
            raise
        if kept is None and descriptor >= file_limit() // 2:
            self.close()
        return data

    def _open(self) -> int:
        self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self._descriptor).st_ino
        return self._descriptor

    def close(self) -> None:
        """Let go of it; it may be read again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class KeptFolder:
    """A folder of the kernel's, such as a cgroup, whose files are opened without its whole path.

    For files that have to be opened anew each time.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def has_folders(self) -> bool:
        """Whether there are folders in it, which the kernel counts as links; raises OSError."""
        return os.fstat(self._open()).st_nlink > LEAF_LINKS

    def read(self, name: str) -> bytes:
        """What one of its files says; raises OSError."""
        return read_whole(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._open()))

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor

    def close(self) -> None:
        """Let go of it; it may be used again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
