"""Cgroup v1: each controller is a hierarchy of its own.

::

    cpuset:  NAME/shared                       all shared containers' processes together
             NAME/exclusive/pod-UID/CONTAINER  one owner
    others:  NAME/pod-UID/CONTAINER            limits; one of them tells who belongs to whom

Since the cpuset hierarchy need not have the shape of the others, one write moves everybody here
too.  A cpuset's CPUs have to be those of its parent, so sets grow from the top down, and the two
parents of owners always have all CPUs.  Source: the kernel's
``Documentation/admin-guide/cgroup-v1/cpusets.rst``.
"""

from __future__ import annotations

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
from pinfold.adapters.cgroup.limits import is_wish, v1_settings
from pinfold.adapters.cgroup.names import container_folder, key_of, pod_folder
from pinfold.adapters.cgroup.tasks import (
    allowed,
    catch_strays,
    end_all,
    move,
    outside,
    tree,
    widen,
)
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

CPUSET: Final = "cpuset"
LIMITING: Final = ("cpu", "memory", "hugetlb", "pids", "freezer")
MEMBERS: Final = ("freezer", "pids", "cpu", "memory")
"""The hierarchies that may tell who belongs to a container, the best first."""

_ROUNDS: Final = 100


class CgroupsV1:
    """The :class:`pinfold.node.ports.Cgroups` of a machine with cgroup v1.

    Args:
        parents: the cgroup below which the tree is made, by controller.
        name: the tree's own folder.
    """

    def __init__(self, parents: Mapping[str, Path], name: str) -> None:
        self._cpuset = parents[CPUSET] / name
        self._shared = self._cpuset / "shared"
        self._exclusive = self._cpuset / "exclusive"
        self._bases = {
            controller: parents[controller] / name
            for controller in LIMITING
            # Controllers that are mounted together with cpuset have its shape.
            if controller in parents and parents[controller] != parents[CPUSET]
        }
        members = next((name for name in MEMBERS if name in self._bases), None)
        if members is None:
            raise CgroupError(
                "no cgroup hierarchy beside cpuset tells which process belongs to which container",
                f"mount one of {', '.join(MEMBERS)}",
            )
        self._members = self._bases[members]

    def describe(self) -> Mapping[str, Any]:
        """The version, the folder, and the controllers that are in force."""
        controllers = sorted([CPUSET, *self._bases])
        return {"version": 1, "path": str(self._cpuset), "controllers": controllers}

    async def open(self, shared: CPUSet) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        for base in self._bases.values():
            make(base)
        for folder in (self._cpuset, self._shared, self._exclusive):
            make(folder)
            self._inherit(folder, cpus=folder != self._shared)
        await self.set_shared(shared)

    def _inherit(self, folder: Path, *, cpus: bool = True) -> None:
        """Give a cpuset the memory nodes, and the CPUs, of its parent: a new one has none."""
        files = ["cpuset.mems", *(["cpuset.cpus"] if cpus else [])]
        for file in files:
            wanted = read(folder.parent / file)
            if read(folder / file) != wanted:
                write(folder / file, wanted)

    def _widen_parents(self) -> None:
        """After CPUs came back: the kernel has taken them out of every cpuset for good."""
        for folder in (self._cpuset, self._exclusive, *children(self._exclusive)):
            self._inherit(folder)

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        if not cpus:
            raise CgroupError(f"{self._shared}: a cpuset with processes cannot be empty")
        self._write_cpus(self._shared, cpus)
        strays = await catch_strays(self._sharing_threads, cpus)
        if strays:
            tid, mask = next(iter(strays.items()))
            raise CgroupError(f"{self._shared}: thread {tid} may still run on {mask - cpus}")

    def _sharing_threads(self) -> list[int]:
        return numbers(self._shared / "tasks")

    def _write_cpus(self, folder: Path, cpus: CPUSet) -> None:
        if cpus - read_cpus(folder.parent / "cpuset.cpus"):
            self._widen_parents()
        write(folder / "cpuset.cpus", str(cpus))
        effective = read_cpus(folder / "cpuset.effective_cpus")
        if effective != cpus:
            raise CgroupError(
                f"{folder}: cpuset.cpus is {cpus}, but in force is {effective}",
                "a parent cgroup has not these CPUs, or they are offline",
            )

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.node.ports.Cgroups`."""
        notes = []
        for base in self._bases.values():
            folder = self._folder(base, key)
            make(folder.parent)
            make(folder)
        if placement.cpus is None:
            old = self._folder(self._exclusive, key)
            if old.exists():
                self._move(key, self._shared)
                await remove_tree(old)
                remove_if_empty(old.parent)
        else:
            folder = self._folder(self._exclusive, key)
            for one in (folder.parent, folder):
                if not one.exists():
                    make(one)
                    self._inherit(one, cpus=one is not folder)
            self._write_cpus(folder, placement.cpus)
            if placement.mems is not None:
                write(folder / "cpuset.mems", str(placement.mems))
            self._move(key, folder)
        if placement.partition is not Partition.MEMBER:
            notes.append(f"partition {placement.partition.value} needs cgroup v2")
        notes += self._limit(self._pod_of(key), placement.pod_limits)
        notes += self._limit(
            Path(pod_folder(key.pod_uid)) / container_folder(key), placement.limits
        )
        return "; ".join(notes)

    def _limit(self, inside: Path, limits: Limits) -> Iterator[str]:
        for setting in v1_settings(limits):
            controller, file, value = setting
            base = self._bases.get(controller)
            if base is not None and (base / inside / file).exists():
                if read(base / inside / file) != value:
                    write(base / inside / file, value)
            elif is_wish(setting):
                yield f"{file} {value} is not in force: no {controller} hierarchy here"

    def _move(self, key: ContainerKey, cpuset: Path) -> None:
        """Move a container's processes to another cpuset."""
        for _ in range(_ROUNDS):
            here = set(numbers(cpuset / "cgroup.procs"))
            moved = [pid for pid in self._pids(key) if pid not in here and move(cpuset, pid)]
            if not moved:
                return
            for pid in moved:
                widen(pid)
        raise CgroupError(f"{cpuset}: container {key} forks faster than it can be moved")

    async def enter(self, key: ContainerKey, pid: int) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        exclusive = self._folder(self._exclusive, key)
        cpuset = exclusive if exclusive.exists() else self._shared
        targets = [self._folder(base, key) for base in self._bases.values()] + [cpuset]
        if not targets[0].exists():
            raise CgroupError(f"{targets[0]}: there is no cgroup of container {key}")
        for _ in range(_ROUNDS):
            pids = tree(pid)
            moved = False
            for target in targets:
                inside = set(numbers(target / "cgroup.procs"))
                for one in pids:
                    if one not in inside:
                        moved |= move(target, one)
            if not moved:
                break
        else:
            raise CgroupError(f"{cpuset}: process {pid} forks faster than it can be moved")
        for one in tree(pid):
            widen(one)

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        freezer = self._bases.get("freezer")
        state = None if freezer is None else self._folder(freezer, key) / "freezer.state"

        def freeze(*, frozen: bool) -> None:
            if state is not None and state.exists():
                write(state, "FROZEN" if frozen else "THAWED")

        left = await end_all(lambda: self._pids(key), wait=wait, freeze=freeze)
        if left:
            raise CgroupError(
                f"container {key}: processes {', '.join(map(str, left[:10]))} do not end",
                "they wait for a device or a file server in the kernel",
            )

    def _pids(self, key: ContainerKey) -> list[int]:
        """The container's processes: those of its own groups, and of the cpuset that it owns."""
        found = set(_all_pids(self._folder(self._members, key)))
        found.update(_all_pids(self._folder(self._exclusive, key)))
        return sorted(found)

    async def remove(self, key: ContainerKey) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        for base in (self._exclusive, *self._bases.values()):
            folder = self._folder(base, key)
            if folder.exists():
                await remove_tree(folder)
                remove_if_empty(folder.parent)

    async def observe(self) -> ObservedCgroups:
        """See :class:`pinfold.node.ports.Cgroups`."""
        shared = read_cpus(self._shared / "cpuset.effective_cpus")
        pool = set(numbers(self._shared / "cgroup.procs"))
        owners = dict(_containers(self._exclusive))
        found = {}
        for key, folder in {**dict(_containers(self._members)), **owners}.items():
            try:
                if key in owners:
                    found[key] = _owner(key, folder)
                else:
                    found[key] = _sharer(key, numbers(folder / "cgroup.procs"), pool, shared)
            except CgroupError:
                continue  # removed while it was looked at
        for mask in outside(self._sharing_threads(), shared).values():
            shared |= mask
        return ObservedCgroups(shared, read_cpus(self._shared / "cpuset.cpus"), found)

    async def close(self, *, remove: bool) -> None:
        """See :class:`pinfold.node.ports.Cgroups`."""
        if remove:
            for base in (self._cpuset, *self._bases.values()):
                if base.exists():
                    await remove_tree(base)

    def _pod_of(self, key: ContainerKey) -> Path:
        return Path(pod_folder(key.pod_uid))

    def _folder(self, base: Path, key: ContainerKey) -> Path:
        return base / self._pod_of(key) / container_folder(key)


def _all_pids(folder: Path) -> Iterator[int]:
    yield from numbers(folder / "cgroup.procs")
    for child in children(folder):
        yield from _all_pids(child)


def _containers(base: Path) -> Iterator[tuple[ContainerKey, Path]]:
    for pod in children(base):
        for container in children(pod):
            key = key_of(pod.name, container.name)
            if key is not None:
                yield key, container


def _owner(key: ContainerKey, folder: Path) -> ObservedContainer:
    return ObservedContainer(
        key,
        exclusive=True,
        configured=read_cpus(folder / "cpuset.cpus"),
        effective=read_cpus(folder / "cpuset.effective_cpus"),
        populated=bool(numbers(folder / "cgroup.procs")),
    )


def _sharer(
    key: ContainerKey, pids: list[int], pool: set[int], shared: CPUSet
) -> ObservedContainer:
    """A container of the shared pool; somebody may have moved its processes elsewhere."""
    strays = [mask for pid in pids if pid not in pool and (mask := allowed(pid))]
    return ObservedContainer(
        key,
        exclusive=False,
        configured=None,
        effective=strays[0] if strays else shared,
        populated=bool(pids),
    )
