"""Noticing that somebody else wrote to a cpuset, or to the rank or the cap of the idle side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import put, read, write
from pinfold.adapters.cgroup.folders import children
from pinfold.adapters.cgroup.names import key_of
from pinfold.linux.inotify import Event, Inotify
from pinfold.ports.errors import CgroupError, ContainerKey

CPUS: Final = "cpuset.cpus"
MEMS: Final = "cpuset.mems"
PARTITION: Final = "cpuset.cpus.partition"
RANK: Final = "cpu.idle"
_WATCHED: Final = frozenset({CPUS, MEMS, PARTITION})


class Written:
    """What was written to the files of cpusets last, to tell a foreign write from an own one."""

    def __init__(self) -> None:
        self._texts: dict[Path, str] = {}

    def write(self, path: Path, text: str) -> None:
        """Write one value."""
        self._texts[path] = text
        write(path, text)

    def put(self, path: Path, text: str) -> None:
        """Write one value where it is not there already."""
        self._texts[path] = text
        put(path, text)

    def forget(self, folder: Path) -> None:
        """The files of a cgroup are gone."""
        for name in _WATCHED:
            self._texts.pop(folder / name, None)

    def knows(self, folder: Path) -> bool:
        """Whether this is a cgroup whose cpuset was written here, and not forgotten."""
        return any(folder / name in self._texts for name in _WATCHED)

    def is_own(self, path: Path) -> bool:
        """Whether the file has what was written to it here; one that is gone has."""
        known = self._texts.get(path)
        try:
            return known is not None and read(path) == known
        except CgroupError:
            return True


async def watch_cpusets(
    base: Path, written: Written, ranked: Path | None, keeps: Callable[[str], bool]
) -> AsyncIterator[ContainerKey | None]:
    """The containers whose cpusets others change or remove, for ever.

    None stands for a cpuset above the containers (the shared pool), for the rank or the cap of the
    idle side that somebody took, or for "look everywhere" after more events than the kernel keeps.
    Several writes at once may give one item.

    Args:
        base: the tree: ``base/SIDE/pod-UID/CONTAINER``.
        written: the own writes.
        ranked: the idle side's cgroup of the cpu controller, wherever that is; it may not be there
            yet.
        keeps: whether a file of that has what was written there.

    Raises:
        CgroupError: the kernel has no room to watch so many.
    """
    inotify = Inotify()
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(inotify.descriptor, ready.set)
    try:
        _watch_all(inotify, base, 3)
        if ranked is not None:
            inotify.watch(ranked.parent)
            inotify.watch(ranked)
        while True:
            await ready.wait()
            ready.clear()
            changed: dict[ContainerKey | None, bool] = {}
            while events := inotify.events():
                for event in events:
                    if ranked is not None and _is_idle_side_lost(inotify, event, ranked, keeps):
                        changed[None] = True
                    inside = event.folder is None or event.folder.is_relative_to(base)
                    if inside and _is_foreign(inotify, base, event, written):
                        changed[_key(base, event)] = True
            for key in changed:
                yield key
    finally:
        loop.remove_reader(inotify.descriptor)
        inotify.close()


def _watch_all(inotify: Inotify, folder: Path, depth: int) -> None:
    """Watch a cgroup and those below it, as deep as containers are."""
    if inotify.watch(folder) and depth:
        for child in children(folder):
            _watch_all(inotify, child, depth - 1)


def _is_foreign(inotify: Inotify, base: Path, event: Event, written: Written) -> bool:
    if event.folder is None:
        _watch_all(inotify, base, 3)
        return True
    path = event.folder / event.name
    if event.created:
        depth = 3 - len(path.relative_to(base).parts)
        if depth >= 0:
            _watch_all(inotify, path, depth)
        return False
    if event.deleted:
        inotify.forget(path)
        return written.knows(path)
    return event.name in _WATCHED and not written.is_own(path)


def _is_idle_side_lost(
    inotify: Inotify, event: Event, ranked: Path, keeps: Callable[[str], bool]
) -> bool:
    """Whether somebody took the rank or the cap of the idle side, which comes and goes."""
    path = None if event.folder is None else event.folder / event.name
    if path is None or (path == ranked and event.created):
        inotify.watch(ranked)
    elif path == ranked and event.deleted:
        inotify.forget(ranked)
    return path is not None and path.parent == ranked and not keeps(path.name)


def _key(base: Path, event: Event) -> ContainerKey | None:
    if event.folder is None:
        return None
    path = event.folder / event.name
    parts = path.relative_to(base).parts
    return key_of(parts[1], parts[2]) if len(parts) >= 3 else None
