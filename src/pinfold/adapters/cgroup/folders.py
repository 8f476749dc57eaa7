"""Cgroups as folders: making, finding and removing them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import failure, read
from pinfold.adapters.cgroup.names import key_of
from pinfold.linux.descriptors import gone_or_raise
from pinfold.linux.kernel_files import descendants, read_ids, subfolders
from pinfold.ports.errors import CgroupError, ContainerKey, NoRoomError

_REMOVAL_TRIES: Final = 100
_REMOVAL_PAUSE: Final = 0.01


def make(path: Path) -> None:
    """Make a cgroup; one that is there is no error; raises CgroupError."""
    try:
        path.mkdir()
    except FileExistsError:
        return
    except OSError as error:
        raise failure(path, error, "making the cgroup: ") from None


def children(path: Path) -> list[Path]:
    """The child cgroups; none when it is gone."""
    return [path / name for name in subfolders(path)]


def members(path: Path | str) -> list[int]:
    """The processes in a cgroup and all below it; none when it is gone."""
    return [pid for folder in descendants(path) for pid in read_ids(f"{folder}/cgroup.procs")]


def is_populated(path: Path | str) -> bool:
    """Whether there are processes in a cgroup (v2) or below it; not when it is gone."""
    try:
        return "populated 1" in read(f"{path}/cgroup.events")
    except NoRoomError:
        raise
    except CgroupError:
        return False


class Listing:
    """The containers with their folders, in folders of pods, as they were listed last.

    A folder full of the kernel's files is slow to list; the number of its folders is not.
    """

    def __init__(self) -> None:
        self._pods: dict[str, tuple[int, int, list[tuple[ContainerKey, str]]]] = {}

    def containers(self, side: Path) -> Iterator[tuple[ContainerKey, str]]:
        """What is in a folder of pods."""
        for name in _undotted(side):
            pod = f"{side}/{name}"
            try:
                status = os.stat(pod)  # noqa: PTH116 - hundreds of them, in strings
            except OSError:
                continue  # removed meanwhile, or no folder of ours
            known = self._pods.get(pod)
            if known is None or known[:2] != (status.st_ino, status.st_nlink):
                found = [
                    (key, f"{pod}/{container}")
                    for container in _undotted(pod)
                    if (key := key_of(name, container)) is not None
                ]
                known = self._pods[pod] = (status.st_ino, status.st_nlink, found)
            yield from known[2]

    def changed(self, pod: Path) -> None:
        """A container's folder was made or removed in a pod's."""
        self._pods.pop(str(pod), None)


def _undotted(folder: Path | str) -> list[str]:
    """Names among which are the own folders; the kernel's files have a dot, all but a few."""
    try:
        return [name for name in os.listdir(folder) if "." not in name]  # noqa: PTH208 - strings
    except OSError as error:
        gone_or_raise(folder, error)
        return []


async def remove_tree(path: Path) -> None:
    """Remove a cgroup and what others made in it; none there is no error.

    Raises:
        CgroupError: there are processes in it, or the kernel holds on to it.
    """
    folders = list(descendants(path))
    # Looked at before anything goes, so that a refusal leaves all as it was.
    for attempt in range(_REMOVAL_TRIES):
        pids = members(path)
        if not pids:
            break
        if attempt == _REMOVAL_TRIES - 1:
            raise CgroupError(f"{path}: process {pids[0]} is still in it", "end it first")
        # One that is dying could not be moved, and is listed for a moment.
        await asyncio.sleep(_REMOVAL_PAUSE)
    for folder in folders:
        for attempt in range(_REMOVAL_TRIES):
            try:
                os.rmdir(folder)  # noqa: PTH106 - the walk is in strings
            except FileNotFoundError:
                break
            except OSError as error:
                # A process that has just died may hold it for a moment.
                if error.errno != errno.EBUSY or attempt == _REMOVAL_TRIES - 1:
                    raise failure(folder, error, "removing the cgroup: ") from None
                await asyncio.sleep(_REMOVAL_PAUSE)
            else:
                break


def remove_if_empty(path: Path) -> None:
    """Remove a cgroup that holds nothing any more."""
    try:
        path.rmdir()
    except OSError:
        return
