"""Cgroup v2: the shared pool is one parent cpuset, an owner has a cpuset of its own.

::

    NAME/shared                     cpuset.cpus: the shared pool
    NAME/shared/pod-UID/CONTAINER   no cpuset files at all: one write above moves everybody
    NAME/exclusive/pod-UID/CONTAINER   cpuset.cpus: the owner's, perhaps a partition

A pod with both kinds of containers has a folder on both sides.  Source: the kernel's
``Documentation/admin-guide/cgroup-v2.rst``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pinfold.adapters.cgroup.files import (
    children,
    make,
    numbers,
    read,
    read_cpus,
    remove_if_empty,
    remove_tree,
    write,
)
from pinfold.adapters.cgroup.limits import is_wish, v2_settings
from pinfold.adapters.cgroup.names import container_folder, key_of, pod_folder
from pinfold.adapters.cgroup.partitions import Partitions
from pinfold.adapters.cgroup.tasks import catch_strays, end_all, move, outside, tree, widen
from pinfold.core.cpuset import CPUSet
from pinfold.node.ports import (
    CgroupError,
    ContainerKey,
    Limits,
    ObservedCgroups,
    ObservedContainer,
    Partition,
    Placement,
)

SHARED: Final = "shared"
EXCLUSIVE: Final = "exclusive"
AGENT: Final = "agent"
CONTROLLERS: Final = ("cpuset", "cpu", "memory", "hugetlb", "pids")
_KILL_PAUSE: Final = 0.005
_ENTER_ROUNDS: Final = 100


class CgroupsV2:
    """The :class:`pinfold.node.ports.Cgroups` of a machine with cgroup v2.

    Args:
        parent: the cgroup below which the tree is made.
        name: the tree's own folder.
        root: where the hierarchy is mounted.
    """

    def __init__(self, parent: Path, name: str, root: Path) -> None:
        self._root = root
        self._parent = parent
        self._base = parent / name
        self._shared = self._base / SHARED
        self._exclusive = self._base / EXCLUSIVE
        self._partitions = Partitions(self._base, self._exclusive)
        self._controllers: frozenset[str] = frozenset()

    def describe(self) -> Mapping[str, Any]:
        """The version, the folder, and the controllers that are in force."""
        return {"version": 2, "path": str(self._base), "controllers": sorted(self._controllers)}

    async def open(self, shared: CPUSet) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        for folder in self._above():
            self._enable(folder, CONTROLLERS)
        make(self._base)
        self._controllers = self._enable(self._base, CONTROLLERS)
        if "cpuset" not in self._controllers:
            raise CgroupError(
                f"{self._base}: the cpuset controller is not available here",
                f"enable it in cgroup.subtree_control of {self._parent} and above",
            )
        for folder in (self._shared, self._exclusive):
            make(folder)
        self._enable(self._shared, self._limiting)
        self._enable(self._exclusive, CONTROLLERS)
        await self.set_shared(shared)

    @property
    def _limiting(self) -> tuple[str, ...]:
        return tuple(name for name in CONTROLLERS if name != "cpuset")

    def _above(self) -> Iterator[Path]:
        """From the root of the hierarchy down to the parent."""
        inside = self._parent.relative_to(self._root)
        yield from reversed([self._root / part for part in [inside, *inside.parents]])

    def _enable(self, folder: Path, wanted: tuple[str, ...]) -> frozenset[str]:
        """Give controllers to the children, one by one, for some may be refused."""
        available = set(read(folder / "cgroup.controllers").split())
        control = folder / "cgroup.subtree_control"
        enabled = set(read(control).split())
        for name in wanted:
            if name in available - enabled:
                try:
                    write(control, f"+{name}")
                except CgroupError:
                    if not self._step_aside(folder):
                        continue
                    try:
                        write(control, f"+{name}")
                    except CgroupError:
                        continue
        return frozenset(read(control).split()) & set(wanted)

    def _step_aside(self, folder: Path) -> bool:
        """Move the processes of a cgroup into a leaf: one with controllers may hold none.

        Only in the cgroup that was given to us; whether anything was moved.
        """
        if folder != self._parent or not (pids := numbers(folder / "cgroup.procs")):
            return False
        leaf = folder / AGENT
        make(leaf)
        for pid in pids:
            write(leaf / "cgroup.procs", str(pid))
        return True

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        if not cpus:
            raise CgroupError(f"{self._shared}: a cpuset with processes cannot be empty")
        write(self._shared / "cpuset.cpus", str(cpus))
        effective = read_cpus(self._shared / "cpuset.cpus.effective")
        if effective != cpus:
            raise CgroupError(
                f"{self._shared}: cpuset.cpus is {cpus}, but in force is {effective}",
                "a parent cgroup or a partition has taken the other CPUs, or they are offline",
            )
        strays = await catch_strays(self._sharing_threads, cpus)
        if strays:
            tid, mask = next(iter(strays.items()))
            raise CgroupError(f"{self._shared}: thread {tid} may still run on {mask - cpus}")

    def _sharing_threads(self) -> list[int]:
        found = []
        for _, folder in _containers(self._shared):
            found += numbers(folder / "cgroup.threads")
        return found

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.node.ports.Cgroups`."""
        folder = self._folder(key, exclusive=placement.cpus is not None)
        pod = folder.parent
        notes = []
        make(pod)
        self._enable(pod, CONTROLLERS if placement.cpus is not None else self._limiting)
        make(folder)
        if placement.cpus is not None:
            notes.append(self._pin(folder, placement.cpus, placement))
        old = self._folder(key, exclusive=placement.cpus is None)
        if old.exists():
            await self._leave(old, folder)
        notes += self._limit(pod, placement.pod_limits)
        notes += self._limit(folder, placement.limits)
        return "; ".join(note for note in notes if note)

    async def _leave(self, old: Path, new: Path) -> None:
        """Move a container that has changed sides."""
        for _ in range(_ENTER_ROUNDS):
            moved = [pid for pid in self._pids(old) if move(new, pid)]
            if not moved:
                break
        await remove_tree(old)
        remove_if_empty(old.parent)
        self._partitions.removed()

    def _pin(self, folder: Path, cpus: CPUSet, placement: Placement) -> str:
        if read(folder / "cpuset.cpus") != str(cpus):
            write(folder / "cpuset.cpus", str(cpus))
        if placement.mems is not None:
            write(folder / "cpuset.mems", str(placement.mems))
        note = self._partitions.wish(folder, cpus, placement.partition)
        effective = read_cpus(folder / "cpuset.cpus.effective")
        if effective != cpus:
            if placement.partition is not Partition.MEMBER:
                note = self._partitions.give_up(folder, f"in force is {effective}")
                effective = read_cpus(folder / "cpuset.cpus.effective")
            if not effective or effective - cpus:
                raise CgroupError(
                    f"{folder}: cpuset.cpus is {cpus}, but in force is {effective}",
                    "a parent cgroup has not these CPUs, or they are offline",
                )
        return note

    def _limit(self, folder: Path, limits: Limits) -> Iterator[str]:
        for setting in v2_settings(limits):
            controller, file, value = setting
            if controller in self._controllers and (folder / file).exists():
                write(folder / file, value)
            elif is_wish(setting):
                yield f"{file} {value} is not in force: no {controller} controller here"

    async def enter(self, key: ContainerKey, pid: int) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        folder = self._current(key)
        if folder is None:
            raise CgroupError(f"{self._base}: there is no cgroup of container {key}")
        inside: set[int] = set()
        for _ in range(_ENTER_ROUNDS):
            inside = set(numbers(folder / "cgroup.procs"))
            moved = [one for one in tree(pid) if one not in inside and move(folder, one)]
            if not moved:
                break
        else:
            raise CgroupError(f"{folder}: process {pid} forks faster than it can be moved")
        for one in inside:
            widen(one)

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        for folder in self._folders(key):
            if not folder.exists():
                continue
            left = await self._kill(folder, wait)
            if left:
                raise CgroupError(
                    f"{folder}: processes {', '.join(map(str, left[:10]))} do not end",
                    "they wait for a device or a file server in the kernel",
                )

    async def _kill(self, folder: Path, wait: float) -> list[int]:
        if not (folder / "cgroup.kill").exists():

            def freeze(*, frozen: bool) -> None:
                write(folder / "cgroup.freeze", "1" if frozen else "0")

            return await end_all(lambda: self._pids(folder), wait=wait, freeze=freeze)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        if _populated(folder):
            write(folder / "cgroup.kill", "1")
        while _populated(folder):
            if loop.time() > deadline:
                return self._pids(folder)
            await asyncio.sleep(_KILL_PAUSE)
        return []

    def _pids(self, folder: Path) -> list[int]:
        found = numbers(folder / "cgroup.procs")
        for child in children(folder):
            found += self._pids(child)
        return found

    async def remove(self, key: ContainerKey) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        for folder in self._folders(key):
            if folder.exists():
                await remove_tree(folder)
                remove_if_empty(folder.parent)
                self._partitions.removed()

    async def observe(self) -> ObservedCgroups:
        """See :class:`pinfold.node.ports.Cgroups`."""
        shared = read_cpus(self._shared / "cpuset.cpus.effective")
        found = {}
        for side in (self._shared, self._exclusive):
            for key, folder in _containers(side):
                try:
                    seen = self._observed(key, folder, shared)
                except CgroupError:
                    continue  # removed while it was looked at
                if key not in found or seen.populated:
                    found[key] = seen
        for mask in outside(self._sharing_threads(), shared).values():
            shared |= mask
        return ObservedCgroups(shared, read_cpus(self._shared / "cpuset.cpus"), found)

    def _observed(self, key: ContainerKey, folder: Path, shared: CPUSet) -> ObservedContainer:
        populated = _populated(folder)
        if folder.parent.parent == self._shared:
            return ObservedContainer(key, False, None, shared, None, populated)  # noqa: FBT003 - in the order of the fields
        return ObservedContainer(
            key,
            exclusive=True,
            configured=read_cpus(f"{folder}/cpuset.cpus"),
            effective=read_cpus(f"{folder}/cpuset.cpus.effective"),
            partition=read(f"{folder}/cpuset.cpus.partition"),
            populated=populated,
        )

    async def close(self, *, remove: bool) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        if not remove or not self._base.exists():
            return
        await remove_tree(self._base)
        leaf = self._parent / AGENT
        if leaf.exists():
            for name in read(self._parent / "cgroup.subtree_control").split():
                write(self._parent / "cgroup.subtree_control", f"-{name}")
            for pid in numbers(leaf / "cgroup.procs"):
                write(self._parent / "cgroup.procs", str(pid))
            await remove_tree(leaf)

    def _folder(self, key: ContainerKey, *, exclusive: bool) -> Path:
        side = self._exclusive if exclusive else self._shared
        return side / pod_folder(key.pod_uid) / container_folder(key)

    def _folders(self, key: ContainerKey) -> tuple[Path, Path]:
        return self._folder(key, exclusive=True), self._folder(key, exclusive=False)

    def _current(self, key: ContainerKey) -> Path | None:
        return next((folder for folder in self._folders(key) if folder.exists()), None)


def _containers(side: Path) -> Iterator[tuple[ContainerKey, Path]]:
    for pod in children(side):
        for container in children(pod):
            key = key_of(pod.name, container.name)
            if key is not None:
                yield key, container


def _populated(folder: Path) -> bool:
    try:
        return "populated 1" in read(f"{folder}/cgroup.events")
    except CgroupError:
        return False
