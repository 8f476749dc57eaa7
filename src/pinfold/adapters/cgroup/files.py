"""Reading and writing the kernel's cgroup files; each failure names file and remedy."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pinfold.core.cpuset import CPUSet, CPUSetError
from pinfold.node.ports import CgroupError

_REMEDIES: Final = {
    errno.EACCES: "run as root, or have the cgroup delegated (systemd: Delegate=yes)",
    errno.EPERM: "run as root, or have the cgroup delegated (systemd: Delegate=yes)",
    errno.EROFS: "mount the cgroup hierarchy read-write",
    errno.ENOSPC: "cpuset.cpus or cpuset.mems of the cgroup is empty",
    errno.EBUSY: "processes or child cgroups still use it",
    errno.EINVAL: "the parent cgroup does not have these CPUs or memory nodes, or they are offline",
    errno.ENOENT: "somebody has removed the cgroup",
    errno.ENODEV: "somebody has removed the cgroup",
}
_REMOVAL_TRIES: Final = 100
_REMOVAL_PAUSE: Final = 0.01


def failure(path: Path | str, error: OSError, doing: str = "") -> CgroupError:
    """What the kernel said, with the place and the remedy."""
    what = f"{path}: {doing}{': ' if doing else ''}{error.strerror or error}"
    return CgroupError(what, _REMEDIES.get(error.errno or 0, ""))


def write(path: Path, text: str) -> None:
    """Write one value.

    Raises:
        CgroupError: the kernel does not take it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise failure(path, error, f"writing {text!r}") from None


def read(path: Path | str) -> str:
    """Read a file, stripped.

    Raises:
        CgroupError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            chunks = []
            while chunk := os.read(descriptor, 65536):
                chunks.append(chunk)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise failure(path, error) from None
    return b"".join(chunks).decode("utf-8", errors="surrogateescape").strip()


def read_cpus(path: Path | str) -> CPUSet:
    """Read a list of CPUs or memory nodes.

    Raises:
        CgroupError: it cannot be read, or is no list.
    """
    text = read(path)
    try:
        return CPUSet.parse(text)
    except CPUSetError as error:
        raise CgroupError(f"{path}: {error}") from None


def numbers(path: Path) -> list[int]:
    """The pids or tids in a file; none when the cgroup is gone."""
    try:
        return [int(word) for word in read(path).split() if word != "0"]
    except CgroupError:
        return []


def make(path: Path) -> None:
    """Make a cgroup; one that is there is no error.

    Raises:
        CgroupError: it cannot be made.
    """
    try:
        path.mkdir()
    except FileExistsError:
        return
    except OSError as error:
        raise failure(path, error, "making the cgroup") from None


def children(path: Path) -> list[Path]:
    """The child cgroups; none when it is gone."""
    try:
        with os.scandir(path) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return []


def descendants(path: Path) -> Iterator[Path]:
    """A cgroup and all below it, the innermost first."""
    for child in children(path):
        yield from descendants(child)
    yield path


async def remove_tree(path: Path) -> None:
    """Remove a cgroup and what others made in it; none there is no error.

    Raises:
        CgroupError: the kernel holds on to it.
    """
    for folder in list(descendants(path)):
        for attempt in range(_REMOVAL_TRIES):
            try:
                folder.rmdir()
            except FileNotFoundError:
                break
            except OSError as error:
                # A process that has just died may hold it for a moment.
                if error.errno != errno.EBUSY or attempt == _REMOVAL_TRIES - 1:
                    raise failure(folder, error, "removing the cgroup") from None
                await asyncio.sleep(_REMOVAL_PAUSE)
            else:
                break


def remove_if_empty(path: Path) -> None:
    """Remove a cgroup that holds nothing any more."""
    try:
        path.rmdir()
    except OSError:
        return
