"""The cpuset hierarchy of cgroup v1: the shared pool, and a cpuset for each owner.

::

    NAME/shared                        all shared containers' processes together
    NAME/idle                          all borrowers' processes together, where there are any
    NAME/exclusive/pod-UID/CONTAINER   one owner; with the pool's CPUs, where it is mixed

A cpuset's CPUs have to be among those of its parent, so sets grow from the top down and shrink from
the bottom up; the parents of owners always have all CPUs.  Where another controller is mounted
together with cpuset, or no other tells who belongs to whom, a shared container has a cpuset of its
own, ``NAME/shared/pod-UID/CONTAINER``, a copy of the pool's, and so has a borrower.  Source: the
kernel's ``Documentation/admin-guide/cgroup-v1/cpusets.rst``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pinfold.adapters.cgroup.files import read, read_cpus
from pinfold.adapters.cgroup.folders import (
    Listing,
    children,
    make,
    members,
    remove_if_empty,
    remove_tree,
)
from pinfold.adapters.cgroup.names import (
    EXCLUSIVE,
    IDLE,
    SHARED,
    can_be_named,
    container_folder,
    pod_folder,
)
from pinfold.adapters.cgroup.watch import CPUS, MEMS, Written
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.kernel_files import descendants, read_ids
from pinfold.ports.errors import CgroupError, ContainerKey

EFFECTIVE = "cpuset.effective_cpus"


class CpusetTree:
    """The cpusets of the tree ``name`` below ``parent``.

    ``nested`` is whether containers without CPUs of their own have cpusets of their own.
    """

    def __init__(self, parent: Path, name: str, *, nested: bool) -> None:
        self.base = parent / name
        self.shared = self.base / SHARED
        self.idle = self.base / IDLE
        self._exclusive = self.base / EXCLUSIVE
        self._nested = nested
        self.written = Written()
        self._listing = Listing()

    @property
    def sides(self) -> tuple[Path, Path]:
        """The folders that it is never without."""
        return self.shared, self._exclusive

    def open(self) -> None:
        """Make or adopt the tree; raises CgroupError."""
        for folder in (self.base, self.shared, self._exclusive):
            make(folder)
            self._inherit(folder, MEMS)
            if folder != self.shared:
                self._inherit(folder, CPUS)

    def _inherit(self, folder: Path, file: str) -> None:
        """Give a cpuset what its parent has: a new one has nothing, and nobody can enter it."""
        self.written.put(folder / file, read(folder.parent / file))

    def _widen_parents(self) -> None:
        """After CPUs came back: the kernel has taken them out of every cpuset for good."""
        for folder in (self.base, self._exclusive, *children(self._exclusive)):
            self._inherit(folder, CPUS)

    def set_shared(self, cpus: CPUSet) -> None:
        """Set the pool's CPUs; raises CgroupError."""
        if cpus - read_cpus(self.base / CPUS):
            self._widen_parents()
        self._set(self.shared, cpus)
        self._confirm(self.shared, cpus)

    def _set(self, folder: Path, cpus: CPUSet) -> None:
        """Set a cpuset and those below it, which always have to be within.

        Those below the pool are copies of it; what others made is cut.
        """
        below = {
            child: cpus if self._is_copy(child) else (had & cpus or cpus)
            for child in children(folder)
            if (had := read_cpus(child / CPUS))
        }
        if below:
            self.written.put(folder / CPUS, str(read_cpus(folder / CPUS) | cpus))
            for child, wanted in below.items():
                self._set(child, wanted)
        self.written.put(folder / CPUS, str(cpus))

    def _is_copy(self, folder: Path) -> bool:
        return self._nested and not {self.shared, self.idle}.isdisjoint(folder.parents)

    def _confirm(self, folder: Path, cpus: CPUSet) -> None:
        effective = read_cpus(folder / EFFECTIVE)
        if effective != cpus:
            raise CgroupError(
                f"{folder}: {CPUS} is {cpus}, but in force is {effective}",
                "a parent cgroup has not these CPUs, or they are offline",
            )

    def sharing_threads(self) -> list[int]:
        """The threads of the pool."""
        return [tid for folder in descendants(self.shared) for tid in read_ids(f"{folder}/tasks")]

    def make_idle(self) -> None:
        """Make the cpuset of the idle side where it is missing; raises CgroupError."""
        make(self.idle)
        self._inherit(self.idle, MEMS)

    def share(self, key: ContainerKey, *, idle: bool = False) -> Path:
        """The cpuset for a container in the pool, or on the idle side; raises CgroupError.

        It is made where it has its own.
        """
        side = self.idle if idle else self.shared
        if not self._nested:
            return side
        folder = self._folder(side, key)
        self._listing.changed(folder.parent)
        for one in (folder.parent, folder):
            make(one)
            self._inherit(one, MEMS)
            self._inherit(one, CPUS)
        return folder

    def pin(self, key: ContainerKey, cpus: CPUSet, mems: CPUSet | None) -> tuple[Path, str]:
        """Make or change an owner's cpuset; where it is, and which CPUs are missing as a text.

        Raises:
            CgroupError: none of the CPUs is there.
        """
        folder = self._folder(self._exclusive, key)
        self._listing.changed(folder.parent)
        make(folder.parent)
        self._inherit(folder.parent, MEMS)
        self._inherit(folder.parent, CPUS)
        make(folder)
        there = cpus & self._reach(folder, cpus)
        if not there:
            raise CgroupError(
                f"{folder}: every CPU of {cpus} is offline, or taken from the parent cgroup",
                "bring one of them online",
            )
        self._set(folder, there)
        self._confirm(folder, there)
        if mems is None:
            self._inherit(folder, MEMS)
        else:
            self.written.put(folder / MEMS, str(mems))
        missing = cpus - there
        return folder, f"CPUs {missing} are not in force: offline" if missing else ""

    def owned(self, key: ContainerKey) -> Path:
        """The cpuset of an owner; it need not be there."""
        return self._folder(self._exclusive, key)

    def effective(self, folder: Path) -> CPUSet:
        """The CPUs that are in force."""
        return read_cpus(folder / EFFECTIVE)

    def give(self, folder: Path, cpus: CPUSet) -> CPUSet:
        """Give an owner's cpuset other CPUs, as far as they are online; what is in force then.

        Raises:
            CgroupError: the kernel does not take them.
        """
        self._set(folder, cpus & self._reach(folder, cpus))
        return self.effective(folder)

    def _reach(self, folder: Path, cpus: CPUSet) -> CPUSet:
        """What an owner's cpuset may have, after all was done that it may have these."""
        if cpus - read_cpus(folder.parent / CPUS):
            self._widen_parents()
        return read_cpus(folder.parent / CPUS)

    def current(self, key: ContainerKey) -> Path | None:
        """The cpuset that is a container's own."""
        return next((one for one in self._folders(key) if one.exists()), None)

    def own(self, key: ContainerKey) -> Path:
        """The cpuset of a container with CPUs of its own; raises CgroupError where it has none."""
        folder = self._folder(self._exclusive, key) if can_be_named(key) else None
        if folder is None or not folder.exists():
            raise CgroupError(
                f"{self._exclusive}: there is no cgroup of container {key}", "place it"
            )
        return folder

    def processes(self, key: ContainerKey) -> set[int]:
        """Who is in the cpusets that are a container's own."""
        return {pid for folder in self._folders(key) for pid in members(folder)}

    def owners(self) -> Iterator[tuple[ContainerKey, str]]:
        """The containers with CPUs of their own."""
        return self._listing.containers(self._exclusive)

    def sharers(self) -> Iterator[tuple[ContainerKey, str]]:
        """The containers in the pool, or on the idle side, that have a copy of its cpuset."""
        for side in (self.shared, self.idle):
            yield from self._listing.containers(side)

    async def drop(self, key: ContainerKey, *, but: Path | None = None) -> None:
        """Remove a container's own cpusets, ``but`` one; raises CgroupError."""
        for folder in self._folders(key):
            if folder != but and folder.exists():
                self._listing.changed(folder.parent)
                self.written.forget(folder)
                await remove_tree(folder)
                remove_if_empty(folder.parent)
                if not folder.parent.exists():
                    self.written.forget(folder.parent)

    def _folders(self, key: ContainerKey) -> list[Path]:
        sides = [self._exclusive, *([self.shared, self.idle] if self._nested else [])]
        return [self._folder(side, key) for side in sides]

    def _folder(self, side: Path, key: ContainerKey) -> Path:
        return side / pod_folder(key.pod_uid) / container_folder(key)
