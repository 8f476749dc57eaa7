"""Where containers are in the hierarchies of cgroup v1 that are not cpuset's.

::

    NAME/pod-UID/CONTAINER        everywhere
    NAME/idle/pod-UID/CONTAINER   instead, where the cpu controller is, for who borrows
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.folders import (
    Listing,
    make,
    members,
    remove_if_empty,
    remove_tree,
)
from pinfold.adapters.cgroup.names import GUARDIAN, IDLE, container_folder, pod_folder
from pinfold.ports.errors import ContainerKey

CPU: Final = "cpu"
FREEZER: Final = "freezer"
_MEMBERS: Final = (FREEZER, "pids", CPU, "memory")
"""The hierarchies that may tell who belongs to a container, the best first."""


class Places:
    """The tree's own folders by controller, ``bases``; of those mounted together they are one."""

    def __init__(self, bases: Mapping[str, Path]) -> None:
        self.bases = dict(bases)
        self._ranking = {one for one in bases if bases[one] == bases.get(CPU)}
        self._members = next((bases[one] for one in _MEMBERS if one in bases), None)
        self._listing = Listing()

    @property
    def tell_members(self) -> bool:
        """Whether one of them tells who belongs to whom."""
        return self._members is not None

    @property
    def homes(self) -> list[Path]:
        """Where a guardian sits, so that nobody freezes, throttles or starves it with the agent."""
        places = [self.bases[one] for one in (FREEZER, CPU, "memory") if one in self.bases]
        if not places and self._members is not None:
            places = [self._members]
        return [one / GUARDIAN for one in dict.fromkeys(places)]

    def open(self) -> None:
        """Make or adopt the tree's folders; raises CgroupError."""
        for base in self.bases.values():
            make(base)

    def make_idle(self) -> None:
        """Make the idle side, where it is here; raises CgroupError."""
        if CPU in self.bases:
            make(self.bases[CPU] / IDLE)

    def make(self, key: ContainerKey, *, idle: bool) -> dict[str, Path]:
        """Make what is missing of a container's places, by controller; raises CgroupError."""
        folders = {one: self._place(one, key, idle=idle) for one in self.bases}
        for folder in dict.fromkeys(folders.values()):
            self._listing.changed(folder.parent)
            make(folder.parent)
            make(folder)
        return folders

    def of(self, key: ContainerKey) -> dict[str, Path]:
        """Where a container is, or would be in the pool, by controller."""
        idle = self.borrows(key)
        return {one: self._place(one, key, idle=idle) for one in self.bases}

    def borrows(self, key: ContainerKey) -> bool:
        """Whether a container is on the idle side, where that is here."""
        return CPU in self.bases and self._place(CPU, key, idle=True).is_dir()

    def containers(self) -> Iterator[tuple[ContainerKey, str]]:
        """The containers, by the hierarchy that tells who belongs to them."""
        if self._members is None:
            return iter(())
        return chain.from_iterable(map(self._listing.containers, _sides(self._members)))

    def processes(self, key: ContainerKey) -> set[int]:
        """Who belongs to a container, by the same."""
        if self._members is None:
            return set()
        return {pid for side in _sides(self._members) for pid in members(_folder(side, key))}

    async def drop(self, key: ContainerKey, *, but: Iterable[Path] = ()) -> None:
        """Remove a container's places, but some; raises CgroupError."""
        everything = {
            self._place(one, key, idle=idle) for one in self.bases for idle in (False, True)
        }
        for folder in everything.difference(but):
            self._listing.changed(folder.parent)
            await remove_tree(folder)
            remove_if_empty(folder.parent)

    def _place(self, controller: str, key: ContainerKey, *, idle: bool) -> Path:
        base = self.bases[controller]
        return _folder(base / IDLE if idle and controller in self._ranking else base, key)


def _sides(base: Path) -> tuple[Path, Path]:
    return base, base / IDLE


def _folder(side: Path, key: ContainerKey) -> Path:
    return side / pod_folder(key.pod_uid) / container_folder(key)
