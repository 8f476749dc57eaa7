"""Cgroup v1: each controller is a hierarchy of its own.

::

    cpuset:  see :mod:`.v1_cpusets`
    others:  NAME/pod-UID/CONTAINER   limits and counters; one tells who belongs to whom

The cpuset hierarchy need not have the shape of the others, so all shared containers are in one
cpuset, and one write moves everybody.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from pinfold.adapters.cgroup import migrating
from pinfold.adapters.cgroup.claim import TreeClaim
from pinfold.adapters.cgroup.escapes import Escapes, key_in, place_in, with_strays
from pinfold.adapters.cgroup.files import read_cpus
from pinfold.adapters.cgroup.folders import Listing, make, members, remove_if_empty, remove_tree
from pinfold.adapters.cgroup.freezers import Freezer, freezer_v1
from pinfold.adapters.cgroup.limits import apply_nested, v1_settings
from pinfold.adapters.cgroup.mixed import MixedOwners
from pinfold.adapters.cgroup.moving import end_all, gather
from pinfold.adapters.cgroup.names import can_be_named, container_folder, pod_folder
from pinfold.adapters.cgroup.tasks import confirm, tree, widen_all
from pinfold.adapters.cgroup.v1_cpusets import EFFECTIVE, SHARED, CpusetTree
from pinfold.adapters.cgroup.watch import CPUS, watch_cpusets
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved
from pinfold.documents.status import CgroupTree
from pinfold.linux.affinity import allowed, outside
from pinfold.linux.kernel_files import read_ids
from pinfold.linux.processes import began, lives, parse_cgroups
from pinfold.ports.cgroups import ObservedCgroups, ObservedContainer, Partition, Placement
from pinfold.ports.errors import CgroupError, ContainerKey, ProcessGoneError

CPUSET: Final = "cpuset"
CPU: Final = "cpu"
CPUACCT: Final = "cpuacct"
FREEZER: Final = "freezer"
CONTROLLERS: Final = (FREEZER, CPU, "memory", "hugetlb", "pids", CPUACCT)
MEMBERS: Final = (FREEZER, "pids", "cpu", "memory")
"""The hierarchies that may tell who belongs to a container, the best first."""


class CgroupsV1:
    """The :class:`pinfold.ports.cgroups.Cgroups` of a machine with cgroup v1.

    The tree, ``name``, is made below one of ``parents`` by controller; ``cpuset`` is among them.
    """

    def __init__(self, parents: Mapping[str, Path], name: str) -> None:
        known = [controller for controller in CONTROLLERS if controller in parents]
        if parents.get(CPUACCT) == parents.get(CPU) and CPUACCT in known:
            known.remove(CPUACCT)  # mounted together, as it is mostly
        # Controllers that are mounted together with cpuset have its shape.
        self._joined = {one for one in known if parents[one] == parents[CPUSET]}
        self._bases = {one: parents[one] / name for one in known if one not in self._joined}
        self._members = next((self._bases[one] for one in MEMBERS if one in self._bases), None)
        nested = bool(self._joined) or self._members is None
        self._cpusets = CpusetTree(parents[CPUSET], name, nested=nested)
        tree = self._cpusets
        self._mixed = MixedOwners(tree.owned, tree.give, tree.effective, "tasks")
        self._listing = Listing()
        self._name = name
        self._escapes = Escapes(self._home)
        self.claim = TreeClaim(self._cpusets.base, *self._cpusets.sides, *self._bases.values())

    def describe(self) -> CgroupTree:
        """The version, the folder, and the controllers that are in force."""
        controllers = sorted([CPUSET, *self._bases, *self._joined])
        return CgroupTree(version=1, path=str(self._cpusets.base), controllers=controllers)

    @property
    def bases(self) -> list[Path]:
        """The tree's own folder in each hierarchy."""
        return [self._cpusets.base, *self._bases.values()]

    async def open(self, shared: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        for base in self._bases.values():
            make(base)
        self._cpusets.open()
        if shared:
            await self.set_shared(shared)

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        shared = self._cpusets.shared
        if not cpus:
            raise CgroupError(
                f"{shared}: a cpuset with processes cannot be empty",
                "leave the shared pool as it is until there is a CPU for it",
            )
        self._cpusets.set_shared(cpus)
        await self._mixed.follow(cpus)
        await confirm(str(shared), self._cpusets.sharing_threads, cpus)

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        for base in self._bases.values():
            folder = _folder(base, key)
            self._listing.changed(folder.parent)
            make(folder.parent)
            make(folder)
        note = ""
        if placement.cpus is None:
            cpuset = self._cpusets.share(key)
        else:
            self._mixed.expect(key, placement)
            within = placement.within(self._mixed.pool)
            cpuset, note = self._cpusets.pin(key, within, placement.mems)
        notes = [note] if note else []
        if placement.partition is not Partition.MEMBER:
            notes.append(f"partition {placement.partition.value} needs cgroup v2")

        def own(controller: str) -> Path | None:
            return self._within(key, controller, cpuset)

        def whole(controller: str) -> Path | None:
            folder = own(controller)
            return None if folder is None else folder.parent

        notes += apply_nested(
            list(v1_settings(placement.pod_limits)), whole, list(v1_settings(placement.limits)), own
        )
        freeze = self._freezer(key, cpuset)
        notes += await freeze.hold(wanted=placement.frozen)
        # Also those that somebody has moved elsewhere, or the kernel when a CPU went offline.
        await gather(lambda: self._pids(key), self._targets(key, cpuset), freeze)
        await self._cpusets.drop(key, but=cpuset)
        self._mixed.put(key, placement)
        # An agent that was killed while it moved processes has left them stopped.
        freeze(frozen=placement.frozen)
        if placement.cpus is not None:
            await self._mixed.confirm(cpuset, placement)
        return "; ".join(notes)

    async def weigh(self, key: ContainerKey, mems: CPUSet) -> int:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return await migrating.weigh(self._cpusets.own(key), mems)

    async def migrate(self, key: ContainerKey, mems: CPUSet) -> MemoryMoved:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        return await migrating.migrate(self._cpusets.own(key), mems, self._cpusets.written.put)

    async def enter(self, key: ContainerKey, pid: int, *, start: int | None = None) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        cpuset = self._cpusets.current(key)
        placed = cpuset or next((_folder(base, key) for base in self._bases.values()), None)
        if placed is None or not placed.exists():
            raise CgroupError(
                f"{self._cpusets.base}: there is no cgroup of container {key}", "place it"
            )
        cpuset = cpuset or self._cpusets.shared
        if not lives(pid) or start not in (None, began(pid)):
            raise ProcessGoneError(f"{cpuset}: there is no process {pid}")
        freeze = self._freezer(key, cpuset)
        if await gather(lambda: tree(pid), self._targets(key, cpuset), freeze):
            for one in tree(pid):
                widen_all(one)
        self._escapes.adopt(key, tree(pid))

    def _home(self, cgroups: str) -> ContainerKey | None:
        """The container in whose place a process is in every hierarchy."""
        own = parse_cgroups(cgroups)
        side, *inside = place_in(own.get(CPUSET, "/"), self._name) or [""]
        homes = {key_in(place_in(own.get(one, "/"), self._name)) for one in self._bases}
        if side != SHARED or inside:
            homes.add(key_in(inside))
        return homes.pop() if len(homes) == 1 else None

    def _inside(self) -> dict[int, ContainerKey]:
        """Who is in which container's cgroup."""
        if self._members is not None:
            listed = self._listing.containers(self._members)
        else:
            listed = chain(self._cpusets.owners(), self._cpusets.sharers())
        return {pid: key for key, folder in listed for pid in members(folder)}

    def _targets(self, key: ContainerKey, cpuset: Path) -> list[Path]:
        """Where a container's processes have to be, the freezer first.

        Into a cpuset that has lost all of its CPUs nobody can be moved.
        """
        folders = [_folder(base, key) for base in self._bases.values()]
        return [*folders, cpuset] if read_cpus(cpuset / EFFECTIVE) or not folders else folders

    def _freezer(self, key: ContainerKey, cpuset: Path | None) -> Freezer:
        if FREEZER in self._bases:
            return freezer_v1(_folder(self._bases[FREEZER], key))
        return freezer_v1(cpuset if FREEZER in self._joined else None)

    def lives(self, pid: int) -> bool:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return lives(pid)

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        if not can_be_named(key):
            return  # then there is nothing of it
        freeze = self._freezer(key, self._cpusets.current(key))
        await end_all(lambda: self._pids(key), wait=wait, freeze=freeze)
        await self._escapes.end(key, wait=wait)

    def _pids(self, key: ContainerKey) -> list[int]:
        """The container's processes: those of its own groups, and of the cpuset that it owns."""
        found = self._cpusets.processes(key)
        if self._members is not None:
            found.update(members(_folder(self._members, key)))
        return sorted(found)

    async def remove(self, key: ContainerKey) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        if not can_be_named(key):
            return
        if pids := self._pids(key):
            raise CgroupError(f"container {key}: process {pids[0]} is still in it", "end it first")
        await self._cpusets.drop(key)
        self._mixed.forget(key)
        for base in self._bases.values():
            folder = _folder(base, key)
            self._listing.changed(folder.parent)
            await remove_tree(folder)
            remove_if_empty(folder.parent)
        self._escapes.forget(key)

    async def observe(self) -> ObservedCgroups:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        shared = read_cpus(self._cpusets.shared / EFFECTIVE)
        owners = dict(self._cpusets.owners())
        known = dict(self._cpusets.sharers())
        if self._members is not None:
            known |= dict(self._listing.containers(self._members))
        pool = set(members(self._cpusets.shared))
        found = {}
        for key, folder in {**owners, **known}.items():
            pids = read_ids(f"{folder}/cgroup.procs")
            try:
                if key in owners:
                    seen = _owner(key, owners[key], pids)
                else:
                    seen = _sharer(key, pids, pool, shared)
                freezer = self._freezer(key, self._cpusets.current(key))
                found[key] = replace(seen, frozen=True) if freezer.is_held else seen
            except CgroupError:
                continue  # removed while it was looked at
        for mask in outside(self._cpusets.sharing_threads(), shared).values():
            shared |= mask
        with_strays(found, await self._escapes.look(self._inside()))
        return ObservedCgroups(shared, read_cpus(self._cpusets.shared / CPUS), found)

    def folder_of(self, key: ContainerKey, controller: str) -> Path | None:
        """See :class:`pinfold.ports.observation.Located`."""
        return self._within(key, controller, self._cpusets.current(key))

    def _within(self, key: ContainerKey, controller: str, cpuset: Path | None) -> Path | None:
        """A container's cgroup in the hierarchy of a controller; None where there is none."""
        if controller in self._joined:
            return cpuset
        base = self._bases.get(controller)
        return None if base is None else _folder(base, key)

    def changes(self) -> AsyncIterator[ContainerKey | None]:
        """The containers whose cpusets others change; see :func:`.watch.watch_cpusets`."""
        return watch_cpusets(self._cpusets.base, self._cpusets.written)

    async def close(self, *, remove: bool) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        if remove and not self.claim.is_lost:
            for base in self.bases:
                await remove_tree(base)


def _folder(base: Path, key: ContainerKey) -> Path:
    return base / pod_folder(key.pod_uid) / container_folder(key)


def _owner(key: ContainerKey, folder: str, pids: list[int]) -> ObservedContainer:
    """A container with CPUs of its own; somebody may have moved its processes elsewhere."""
    effective = read_cpus(f"{folder}/{EFFECTIVE}")
    inside = members(folder)
    for pid in set(pids).difference(inside):
        effective |= allowed(pid) or CPUSet()
    return ObservedContainer(
        key,
        exclusive=True,
        configured=read_cpus(f"{folder}/{CPUS}"),
        effective=effective,
        populated=bool(inside or pids),
    )


def _sharer(
    key: ContainerKey, pids: list[int], pool: set[int], shared: CPUSet
) -> ObservedContainer:
    """A container of the shared pool; somebody may have moved its processes elsewhere."""
    elsewhere = [allowed(pid) for pid in pids if pid not in pool]
    strays = [mask for mask in elsewhere if mask]
    effective = shared if not strays else CPUSet()
    for mask in strays:
        effective |= mask
    return ObservedContainer(
        key, exclusive=False, configured=None, effective=effective, populated=bool(pids)
    )
