"""The kernel's own files, as of cgroups and sysfs: one value each, read and written whole.

What the kernel says is an ``OSError`` here.  Which place and which remedy go with it depends on the
file, and is said by who knows that.  What lists raises NoRoomError where nobody can tell.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pinfold.core.values.cpuset import CPUSet, CPUSetError
from pinfold.linux.descriptors import gone_or_raise
from pinfold.ports.errors import PortError

LEAF_LINKS: Final = 2
"""Links of a folder without folders."""
_CHUNK: Final = 16384
_SURELY_ALL: Final = 2048
"""The kernel fills a page before it ends a read; what is shorter needs no second one."""


def read_value(path: Path | str) -> str:
    """Read a file, stripped; raises OSError."""
    return _read(path).decode("utf-8", errors="surrogateescape").strip()


def _read(path: Path | str) -> bytes:
    return read_whole(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def read_whole(descriptor: int) -> bytes:
    """Read what was just opened, and close it; raises OSError."""
    try:
        data = chunk = os.read(descriptor, _CHUNK)
        while len(chunk) >= _SURELY_ALL:
            chunk = os.read(descriptor, _CHUNK)
            data += chunk
    finally:
        os.close(descriptor)
    return data


def write_value(path: Path | str, value: str | int) -> None:
    """Write one value, with one call: the kernel takes each for one; raises OSError."""
    # Write-only: some of these nobody may read.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        # The kernel never sees a write of no bytes, so "nothing" has to be a line, too.
        os.write(descriptor, f"{value}\n".encode())
    finally:
        os.close(descriptor)


class ValueFiles:
    """Such files, with the errors of an adapter, which each method raises.

    Args:
        failure: makes one of the place, what the kernel said, and what was being done.
    """

    def __init__(self, failure: Callable[[Path | str, OSError, str], PortError]) -> None:
        self._failure = failure

    def read(self, path: Path | str) -> str:
        """Read a file, stripped."""
        try:
            return read_value(path)
        except OSError as error:
            raise self._failure(path, error, "") from None

    def read_cpus(self, path: Path | str) -> CPUSet:
        """Read a list of CPUs or memory nodes."""
        text = self.read(path)
        try:
            return CPUSet.parse(text)
        except CPUSetError as error:
            raise self._failure(path, OSError(str(error)), "") from None

    def write(self, path: Path | str, text: str) -> None:
        """Write one value; the empty text as well, which the kernel sees as an empty line."""
        try:
            write_value(path, text)
        except OSError as error:
            raise self._failure(path, error, f"writing {text!r}: ") from None

    def put(self, path: Path | str, text: str) -> None:
        """Write one value where it is not there already."""
        if self.read(path) != text:
            self.write(path, text)


def read_ids(path: Path | str) -> list[int]:
    """The pids or tids in a cgroup's file; none when it is gone.

    Of a process in a PID namespace that is not shown here the kernel says 0: it is left out.
    """
    try:
        return [int(word) for word in _read(path).split() if word != b"0"]
    except OSError as error:
        gone_or_raise(path, error)
        return []


def subfolders(path: Path | str) -> list[str]:
    """The names of the folders in a folder, or cgroups in a cgroup; none when it is gone."""
    try:
        # The kernel counts a folder's folders as links, which spares most of the listings.
        if os.stat(path).st_nlink == LEAF_LINKS:  # noqa: PTH116 - hundreds of them, in strings
            return []
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        gone_or_raise(path, error)
        return []


def descendants(path: Path | str) -> Iterator[str]:
    """A folder and all below it, each after what it holds."""
    for name in subfolders(path):
        yield from descendants(f"{path}/{name}")
    yield str(path)
