"""Cgroup v2: the shared pool is one parent cpuset, an owner has a cpuset of its own.

::

    NAME/shared                     cpuset.cpus: the shared pool
    NAME/shared/pod-UID/CONTAINER   no cpuset files at all: one write above moves everybody
    NAME/exclusive/pod-UID/CONTAINER   cpuset.cpus: the owner's, perhaps a partition; and the
                                       pool's, where it is mixed
    NAME/idle                       cpuset.cpus: the pool and what is lent; cpu.idle: 1
    NAME/idle/pod-UID/CONTAINER     no cpuset files, as in the pool

A pod with several kinds of containers has a folder, and the pod's limits, on each side.  Source:
the kernel's ``Documentation/admin-guide/cgroup-v2.rst``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup import migrating
from pinfold.adapters.cgroup.claim import TreeClaim
from pinfold.adapters.cgroup.delegation import LEAF, available, enable, enable_down_to, step_back
from pinfold.adapters.cgroup.escapes import Escapes, key_in, place_in, with_strays
from pinfold.adapters.cgroup.files import put, read_cpus, write
from pinfold.adapters.cgroup.folders import (
    Listing,
    is_populated,
    make,
    members,
    remove_if_empty,
    remove_tree,
)
from pinfold.adapters.cgroup.freezers import freezer_v2
from pinfold.adapters.cgroup.idle import HasIdleSide, IdleSide
from pinfold.adapters.cgroup.limits import V2_QUOTAS, WrittenFiles, v2_settings
from pinfold.adapters.cgroup.mixed import MixedOwners
from pinfold.adapters.cgroup.moving import KILL_PAUSE, Patience, end_all, ended, gather, unending
from pinfold.adapters.cgroup.names import (
    EXCLUSIVE,
    GUARDIAN,
    IDLE,
    SHARED,
    can_be_named,
    container_folder,
    pod_folder,
)
from pinfold.adapters.cgroup.partitions import Partitions, observed_owner
from pinfold.adapters.cgroup.sums import add_up
from pinfold.adapters.cgroup.tasks import check_in_force, confirm, tree, widen_all
from pinfold.adapters.cgroup.watch import CPUS, MEMS, Written, watch_cpusets
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved
from pinfold.documents.status import CgroupTree
from pinfold.linux.affinity import outside
from pinfold.linux.kernel_files import descendants, read_ids
from pinfold.linux.processes import began, lives, parse_cgroups
from pinfold.ports.cgroups import ObservedCgroups, ObservedContainer, Partition, Placement
from pinfold.ports.errors import CgroupError, ContainerKey, ProcessGoneError
from pinfold.ports.guardian import Undoing

CONTROLLERS: Final = ("cpuset", "cpu", "memory", "hugetlb", "pids", "io")
LIMITING: Final = CONTROLLERS[1:]
THREADS: Final = "cgroup.threads"


class CgroupsV2(HasIdleSide):
    """The :class:`pinfold.ports.cgroups.Cgroups` of a machine with cgroup v2.

    The tree, ``name``, is made below ``parent``; the hierarchy is mounted at ``root``.
    """

    def __init__(self, parent: Path, name: str, root: Path) -> None:
        self._root = root
        self._parent = parent
        self._base = parent / name
        self.bases = [self._base]
        self._shared, self._exclusive = self._base / SHARED, self._base / EXCLUSIVE
        self._sides = self._exclusive, self._shared, self._base / IDLE
        self._written, self._listing = Written(), Listing()
        self._escapes = Escapes(self._home)
        self._partitions = Partitions(self._base, self._exclusive, self._written)
        self._mixed = MixedOwners(
            lambda key: _folder(self._exclusive, key), self._write, _effective, THREADS
        )
        self._idle = IdleSide(
            self._base / IDLE,
            self._base / IDLE,
            self._shared,
            make=self._make_idle,
            write=self._write,
            effective=_effective,
            forget=self._written.forget,
            threads=THREADS,
            quotas=V2_QUOTAS,
        )
        self.limits = WrittenFiles(self._idle.written)
        self.claim = TreeClaim(self._base, self._shared, self._exclusive)

    def describe(self) -> CgroupTree:
        """The version, the folder, and the controllers that are or will be in force."""
        place = self._base if self._base.exists() else self._parent
        found = available(place).intersection(CONTROLLERS)
        return CgroupTree(version=2, path=str(self._base), controllers=sorted(found))

    async def open(self, shared: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        enable_down_to(self._root, self._parent, CONTROLLERS)
        make(self._base)
        if "cpuset" not in enable(self._base, CONTROLLERS):
            remove_if_empty(self._base)
            raise CgroupError(
                f"{self._base}: the cpuset controller is not available here",
                f"add it to cgroup.subtree_control of {self._parent} and the cgroups above, "
                "which may not hold processes themselves",
            )
        for folder, controllers in ((self._shared, LIMITING), (self._exclusive, CONTROLLERS)):
            make(folder)
            enable(folder, controllers)
        if shared:
            await self.set_shared(shared)
        await self._idle.open()

    def _make_idle(self) -> None:
        make(self._idle.folder)
        enable(self._idle.folder, LIMITING)

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        if not cpus:
            raise CgroupError(
                f"{self._shared}: a cpuset with processes cannot be empty",
                "leave the shared pool as it is until there is a CPU for it",
            )
        before = _effective(self._shared)
        self._unrestrict(self._base)
        effective = self._write(self._shared, cpus)
        if effective != cpus:
            raise CgroupError(
                f"{self._shared}: {CPUS} is {cpus}, but in force is {effective}",
                "a parent cgroup or a partition has taken the other CPUs, or they are offline",
            )
        await self._mixed.follow(cpus)
        if not before < cpus:  # else nobody has to leave a CPU
            folders = self._sharing()
            await confirm(str(self._shared), lambda: _threads(folders), cpus)
        await self._idle.follow(cpus)

    def undoing(self) -> Undoing:
        """See :class:`pinfold.ports.cgroups.Undoable`."""
        return self._idle.undoing([self._base / GUARDIAN])

    def _write(self, folder: Path, cpus: CPUSet) -> CPUSet:
        self._written.put(folder / CPUS, str(cpus))
        return _effective(folder)

    def _unrestrict(self, *folders: Path) -> None:
        """Take away what somebody has put in the way, from the top down."""
        for folder in folders:
            for file in (CPUS, MEMS):
                put(folder / file, "")

    def _sharing(self) -> list[str]:
        """Every cgroup that may hold processes of the pool."""
        return [
            one
            for _, folder in self._listing.containers(self._shared)
            for one in descendants(folder)
        ]

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        exclusive = placement.cpus is not None
        if placement.borrows:
            self._idle.make()
        side = self._idle.folder if placement.borrows else self._shared
        folder = _folder(self._exclusive if exclusive else side, key)
        pod = folder.parent
        self._listing.changed(pod)
        make(pod)
        enable(pod, CONTROLLERS if exclusive else LIMITING)
        make(folder)
        self._mixed.expect(key, placement)
        notes = self._pin(folder, placement) if exclusive else []
        limiting = available(pod)
        notes += self.limits.apply(
            key,
            list(v2_settings(placement.pod_limits)),
            lambda controller: pod if controller in limiting else None,
            list(v2_settings(placement.limits)),
            lambda controller: folder if controller in limiting else None,
        )
        notes += add_up(self._base, self._sides, self._root, placement.pod_limits)
        freeze = freezer_v2(folder)
        notes += await freeze.hold(wanted=placement.frozen)
        if old := next((one for one in self._folders(key) if one != folder), None):
            # It changes sides, and takes its processes along.
            await gather(lambda: members(old), [folder], freeze)
            await self._remove(old)
            await self._idle.drop()
        self._mixed.put(key, placement)
        # An agent that was killed while it moved processes has left them stopped.
        freeze(frozen=placement.frozen)
        if exclusive:
            await self._mixed.confirm(folder, placement)
        return "; ".join(notes)

    async def weigh(self, key: ContainerKey, mems: CPUSet) -> int:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return await migrating.weigh(self._owners_folder(key), mems)

    async def migrate(self, key: ContainerKey, mems: CPUSet) -> MemoryMoved:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        return await migrating.migrate(self._owners_folder(key), mems, self._written.put)

    def _owners_folder(self, key: ContainerKey) -> Path:
        folder = _folder(self._exclusive, key) if can_be_named(key) else None
        if folder is None or not folder.exists():
            raise CgroupError(
                f"{self._exclusive}: there is no cgroup of container {key}", "place it"
            )
        return folder

    def _pin(self, folder: Path, placement: Placement) -> list[str]:
        cpus, wish, note = placement.within(self._mixed.pool), placement.partition, ""
        if placement.mixed and wish is not Partition.MEMBER:
            # Its CPUs are not its own alone, as those of a partition are.
            note = f"partition {wish.value} is not in force: it uses the shared pool, too"
            wish = Partition.MEMBER
        self._unrestrict(self._base, self._exclusive, folder.parent)
        self._partitions.check_free(folder, cpus)
        before = read_cpus(folder / CPUS)
        if before != cpus or not self._partitions.is_so(folder, cpus, wish):
            self._partitions.dissolve(folder)
        self._written.put(folder / CPUS, str(cpus))
        self._written.put(folder / MEMS, str(placement.mems or ""))
        if not self._partitions.is_so(folder, cpus, wish):
            note = self._partitions.wish(folder, cpus, wish)
        effective = _effective(folder)
        try:
            check_in_force(folder, cpus, effective)
        except CgroupError:
            self._partitions.dissolve(folder)
            self._written.put(folder / CPUS, str(before))
            raise
        missing = cpus - effective
        offline = f"CPUs {missing} are not in force: offline, or taken by a partition"
        return [text for text in (note, offline if missing else "") if text]

    async def enter(self, key: ContainerKey, pid: int, *, start: int | None = None) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        folder = next(iter(self._folders(key)), None)
        if folder is None:
            raise CgroupError(f"{self._base}: there is no cgroup of container {key}", "place it")
        if not lives(pid) or start not in (None, began(pid)):
            raise ProcessGoneError(f"{folder}: there is no process {pid}")
        if await gather(lambda: tree(pid), [folder], freezer_v2(folder)):
            for one in tree(pid):
                widen_all(one)
        self._escapes.adopt(key, tree(pid))

    def _home(self, cgroups: str) -> ContainerKey | None:
        return key_in(place_in(parse_cgroups(cgroups).get("", "/"), self._base.name)[1:])

    def _inside(self) -> dict[int, ContainerKey]:
        """Who is in which container's cgroup."""
        sides = map(self._listing.containers, self._sides)
        return {pid: key for side in sides for key, folder in side for pid in members(folder)}

    def lives(self, pid: int) -> bool:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return lives(pid)

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        for folder in self._folders(key):
            await self._end(folder, wait)
        await self._escapes.end(key, wait=wait)

    async def _end(self, folder: Path, wait: float) -> None:
        switch = folder / "cgroup.kill"
        if not switch.exists():  # before Linux 5.14
            return await end_all(lambda: members(folder), wait=wait, freeze=freezer_v2(folder))
        patience, seen = Patience(wait), members(folder)
        while is_populated(folder):
            # Again each time: somebody may have moved another process in meanwhile.
            write(switch, "1")
            await asyncio.sleep(KILL_PAUSE)
            if patience.ends() and (left := members(folder)):
                raise unending(left)
        return await ended(seen)

    async def remove(self, key: ContainerKey) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        for folder in self._folders(key):
            await self._remove(folder)
        await self._idle.drop()
        for part in (self._mixed, self._escapes, self.limits):
            part.forget(key)

    async def _remove(self, folder: Path) -> None:
        if pids := members(folder):
            raise CgroupError(f"{folder}: process {pids[0]} is still in it", "end it first")
        if self._exclusive in folder.parents:
            # The kernel takes a removed partition apart later, and keeps its CPUs until then.
            self._partitions.dissolve(folder)
        self._written.forget(folder)
        self._listing.changed(folder.parent)
        await remove_tree(folder)
        remove_if_empty(folder.parent)
        add_up(self._base, self._sides, self._root)

    async def observe(self) -> ObservedCgroups:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        shared, idle = _effective(self._shared), self._idle.observed()
        sides = {self._shared: shared}
        if idle is not None:
            sides[self._idle.folder] = idle.effective
        found: dict[ContainerKey, ObservedContainer] = {}
        for side, effective in sides.items():
            for key, folder in self._listing.containers(side):
                populated = is_populated(folder)
                if key in found and not populated:
                    continue  # a change of sides failed
                found[key] = ObservedContainer(
                    key,
                    exclusive=False,
                    configured=None,
                    effective=effective,
                    populated=populated,
                    frozen=freezer_v2(folder).is_held,
                    idle=side != self._shared,
                )
        for key, folder in self._listing.containers(self._exclusive):
            try:
                seen = observed_owner(key, folder)
            except CgroupError:
                continue  # removed while it was looked at
            if key not in found or seen.populated:
                found[key] = seen
        for mask in outside(_threads(self._sharing()), shared).values():
            shared |= mask
        with_strays(found, await self._escapes.look(self._inside()))
        return ObservedCgroups(shared, read_cpus(self._shared / CPUS), found, idle)

    def folder_of(self, key: ContainerKey, controller: str) -> Path | None:  # noqa: ARG002 - v1's
        """See :class:`pinfold.ports.observation.Located`."""
        return next(iter(self._folders(key)), None)

    def changes(self) -> AsyncIterator[ContainerKey | None]:
        """The containers whose cpusets others change; see :func:`.watch.watch_cpusets`."""
        return watch_cpusets(self._base, self._written, self._base / IDLE, self._idle.keeps)

    async def close(self, *, remove: bool) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        if remove and not self.claim.is_lost and self._base.exists():
            await remove_tree(self._base)
            if (self._parent / LEAF).exists():
                await step_back(self._parent)

    def _folders(self, key: ContainerKey) -> list[Path]:
        """The container's cgroups that are there; two only when a change of sides failed."""
        if not can_be_named(key):
            return []
        return [one for side in self._sides if (one := _folder(side, key)).exists()]


def _folder(side: Path, key: ContainerKey) -> Path:
    return side / pod_folder(key.pod_uid) / container_folder(key)


def _effective(folder: Path) -> CPUSet:
    return read_cpus(folder / f"{CPUS}.effective")


def _threads(folders: Iterable[str]) -> list[int]:
    return [tid for folder in folders for tid in read_ids(f"{folder}/{THREADS}")]
