"""Cgroup v1: each controller is a hierarchy of its own.

::

    cpuset:  see :mod:`.v1_cpusets`
    others:  NAME/pod-UID/CONTAINER   limits and counters; one tells who belongs to whom
    cpu:     NAME/idle/pod-UID/CONTAINER   who borrows; cpu.idle is 1 in NAME/idle

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
from pinfold.adapters.cgroup.folders import members, remove_tree
from pinfold.adapters.cgroup.freezers import Freezer, freezer_v1
from pinfold.adapters.cgroup.idle import HasIdleSide, IdleSide
from pinfold.adapters.cgroup.limits import V1_QUOTAS, WrittenFiles, v1_settings
from pinfold.adapters.cgroup.mixed import MixedOwners
from pinfold.adapters.cgroup.moving import end_all, gather
from pinfold.adapters.cgroup.names import IDLE, SHARED, can_be_named
from pinfold.adapters.cgroup.tasks import confirm, tree, widen_all
from pinfold.adapters.cgroup.v1_cpusets import EFFECTIVE, CpusetTree
from pinfold.adapters.cgroup.v1_domains import DomainSettings, DomainsV1
from pinfold.adapters.cgroup.v1_places import CPU, FREEZER, Places
from pinfold.adapters.cgroup.watch import CPUS, watch_cpusets
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved
from pinfold.documents.status import CgroupTree
from pinfold.linux.affinity import allowed, outside
from pinfold.linux.kernel_files import read_ids
from pinfold.linux.processes import began, lives, parse_cgroups
from pinfold.ports.cgroups import ObservedCgroups, ObservedContainer, Partition, Placement
from pinfold.ports.errors import CgroupError, ContainerKey, ProcessGoneError
from pinfold.ports.guardian import Undoing

CPUSET: Final = "cpuset"
CPUACCT: Final = "cpuacct"
CONTROLLERS: Final = (FREEZER, CPU, "memory", "hugetlb", "pids", CPUACCT)


class CgroupsV1(HasIdleSide):
    """The :class:`pinfold.ports.cgroups.Cgroups` of a machine with cgroup v1.

    The tree, ``name``, is made below one of ``parents`` by controller; ``cpuset`` is among them.
    ``domains`` is what may be done to scheduling domains; None: nothing.
    """

    def __init__(
        self, parents: Mapping[str, Path], name: str, domains: DomainSettings | None = None
    ) -> None:
        known = [controller for controller in CONTROLLERS if controller in parents]
        if parents.get(CPUACCT) == parents.get(CPU) and CPUACCT in known:
            known.remove(CPUACCT)  # mounted together, as it is mostly
        # Controllers that are mounted together with cpuset have its shape.
        self._joined = {one for one in known if parents[one] == parents[CPUSET]}
        self._places = Places(
            {one: parents[one] / name for one in known if one not in self._joined}
        )
        nested = bool(self._joined) or not self._places.tell_members
        self._cpusets = CpusetTree(parents[CPUSET], name, nested=nested)
        tree = self._cpusets
        self._mixed = MixedOwners(tree.owned, tree.give, tree.effective, "tasks")
        ranked = tree.base if CPU in self._joined else self._places.bases.get(CPU)
        self._ranked = None if ranked is None else ranked / IDLE
        self._idle = IdleSide(
            tree.idle,
            self._ranked,
            tree.shared,
            make=self._make_idle,
            write=tree.give,
            effective=tree.effective,
            forget=tree.written.forget,
            threads="tasks",
            quotas=V1_QUOTAS,
        )
        self._domains = DomainsV1(tree.base, tree.sides[1], tree.written, domains)
        self._name = name
        self.limits = WrittenFiles(self._idle.written)
        self._escapes = Escapes(self._home)
        self.claim = TreeClaim(
            self._cpusets.base, *self._cpusets.sides, *self._places.bases.values()
        )

    def describe(self) -> CgroupTree:
        """The version, the folder, and the controllers that are in force."""
        controllers = sorted([CPUSET, *self._places.bases, *self._joined])
        return CgroupTree(version=1, path=str(self._cpusets.base), controllers=controllers)

    @property
    def bases(self) -> list[Path]:
        """The tree's own folder in each hierarchy."""
        return [self._cpusets.base, *self._places.bases.values()]

    def _make_idle(self) -> None:
        self._places.make_idle()
        self._cpusets.make_idle()

    async def open(self, shared: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._places.open()
        self._cpusets.open()
        self._domains.open()
        if shared:
            await self.set_shared(shared)
        await self._idle.open()

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
        self._domains.refresh()
        await self._idle.follow(cpus)

    def undoing(self) -> Undoing:
        """See :class:`pinfold.ports.cgroups.Undoable`."""
        return self._idle.undoing(self._places.homes)

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        if placement.borrows:
            self._idle.make()
        stays = placement.borrows or not self._borrows(key)
        folders = self._places.make(key, idle=placement.borrows)
        notes: list[str] = []
        if placement.cpus is None:
            cpuset = self._cpusets.share(key, idle=placement.borrows)
        else:
            self._mixed.expect(key, placement)
            within = placement.within(self._mixed.pool)
            wish = Partition.MEMBER if placement.mixed else placement.partition
            self._domains.leave(self._cpusets.owned(key))
            cpuset, missing = self._cpusets.pin(key, within, placement.mems)
            notes = [text for text in (missing, self._domains.wish(cpuset, wish)) if text]
            if wish is not placement.partition:
                notes.append(f"partition {placement.partition.value}: it uses the shared pool, too")

        def own(controller: str) -> Path | None:
            return cpuset if controller in self._joined else folders.get(controller)

        def whole(controller: str) -> Path | None:
            folder = own(controller)
            return None if folder is None else folder.parent

        def limit() -> list[str]:
            of_pod, limits = v1_settings(placement.pod_limits), v1_settings(placement.limits)
            return self.limits.apply(key, list(of_pod), whole, list(limits), own)

        if placement.cpus is None:
            notes += limit()
        freeze = self._freezer(key, cpuset)
        notes += await freeze.hold(wanted=placement.frozen)
        # Also those that somebody has moved elsewhere, or the kernel when a CPU went offline.
        # Nobody is on what is lent before the kernel ranks him below its owner, or after that.
        targets = self._targets(folders, cpuset, ranked_first=stays)
        await gather(lambda: self._pids(key), targets, freeze)
        if placement.cpus is not None:
            # An owner has no quota: nobody is without one in the shared pool.
            notes += limit()
        await self._cpusets.drop(key, but=cpuset)
        self._domains.refresh()
        await self._places.drop(key, but=folders.values())
        await self._idle.drop()
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
        folders = self._places.of(key)
        placed = cpuset or next(iter(folders.values()), None)
        if placed is None or not placed.exists():
            raise CgroupError(
                f"{self._cpusets.base}: there is no cgroup of container {key}", "place it"
            )
        cpuset = cpuset or (self._cpusets.idle if self._borrows(key) else self._cpusets.shared)
        if not lives(pid) or start not in (None, began(pid)):
            raise ProcessGoneError(f"{cpuset}: there is no process {pid}")
        freeze = self._freezer(key, cpuset)
        if await gather(lambda: tree(pid), self._targets(folders, cpuset), freeze):
            for one in tree(pid):
                widen_all(one)
        self._escapes.adopt(key, tree(pid))

    def _home(self, cgroups: str) -> ContainerKey | None:
        """The container in whose place a process is in every hierarchy."""
        own = parse_cgroups(cgroups)
        side, *inside = place_in(own.get(CPUSET, "/"), self._name) or [""]
        homes = {_key_in(place_in(own.get(one, "/"), self._name)) for one in self._places.bases}
        if side not in (SHARED, IDLE) or inside:
            homes.add(key_in(inside))
        return homes.pop() if len(homes) == 1 else None

    def _inside(self) -> dict[int, ContainerKey]:
        """Who is in which container's cgroup."""
        listed = self._places.containers()
        if not self._places.tell_members:
            listed = chain(self._cpusets.owners(), self._cpusets.sharers())
        return {pid: key for key, folder in listed for pid in members(folder)}

    def _borrows(self, key: ContainerKey) -> bool:
        """Whether the kernel ranks a container below the owners."""
        if CPU in self._joined:
            cpuset = self._cpusets.current(key)
            return cpuset is not None and self._cpusets.idle in cpuset.parents
        return self._places.borrows(key)

    def _targets(
        self, folders: Mapping[str, Path], cpuset: Path, *, ranked_first: bool = True
    ) -> list[Path]:
        """Where a container's processes have to be, the freezer first, and its cpuset.

        Into a cpuset that has lost all of its CPUs nobody can be moved.
        """
        there = list(dict.fromkeys(folders.values()))
        if there and not read_cpus(cpuset / EFFECTIVE):
            return there
        last = [] if ranked_first or CPU not in folders else [folders[CPU]]
        return [*(one for one in there if one not in last), cpuset, *last]

    def _freezer(self, key: ContainerKey, cpuset: Path | None) -> Freezer:
        joined = cpuset if FREEZER in self._joined else None
        return freezer_v1(self._places.of(key).get(FREEZER, joined))

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
        return sorted(self._cpusets.processes(key) | self._places.processes(key))

    async def remove(self, key: ContainerKey) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        if not can_be_named(key):
            return
        if pids := self._pids(key):
            raise CgroupError(f"container {key}: process {pids[0]} is still in it", "end it first")
        await self._cpusets.drop(key)
        self._domains.refresh()
        self._mixed.forget(key)
        await self._places.drop(key)
        await self._idle.drop()
        self._escapes.forget(key)
        self.limits.forget(key)

    async def observe(self) -> ObservedCgroups:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        shared = read_cpus(self._cpusets.shared / EFFECTIVE)
        idle = self._idle.observed()
        owners = dict(self._cpusets.owners())
        known = dict(chain(self._cpusets.sharers(), self._places.containers()))
        pool = set(members(self._cpusets.shared))
        borrowers = set(members(self._cpusets.idle))
        found = {}
        for key, folder in {**owners, **known}.items():
            pids = read_ids(f"{folder}/cgroup.procs")
            try:
                if key in owners:
                    seen = _owner(key, owners[key], pids)
                    seen = replace(seen, partition=self._domains.state(Path(owners[key])))
                elif idle is not None and self._borrows(key):
                    seen = _sharer(key, pids, borrowers, idle.effective)
                    ranked = self._within(key, CPU, self._cpusets.current(key))
                    whole = ranked is not None and set(pids).issubset(members(ranked))
                    seen = replace(seen, idle=whole)
                else:
                    seen = _sharer(key, pids, pool, shared)
                freezer = self._freezer(key, self._cpusets.current(key))
                found[key] = replace(seen, frozen=True) if freezer.is_held else seen
            except CgroupError:
                continue  # removed while it was looked at
        for mask in outside(self._cpusets.sharing_threads(), shared).values():
            shared |= mask
        with_strays(found, await self._escapes.look(self._inside()))
        return ObservedCgroups(shared, read_cpus(self._cpusets.shared / CPUS), found, idle)

    def folder_of(self, key: ContainerKey, controller: str) -> Path | None:
        """See :class:`pinfold.ports.observation.Located`."""
        return self._within(key, controller, self._cpusets.current(key))

    def _within(self, key: ContainerKey, controller: str, cpuset: Path | None) -> Path | None:
        """A container's cgroup in the hierarchy of a controller; None where there is none."""
        if controller in self._joined:
            return cpuset
        return self._places.of(key).get(controller)

    def changes(self) -> AsyncIterator[ContainerKey | None]:
        """The containers whose cpusets others change; see :func:`.watch.watch_cpusets`."""
        tree = self._cpusets
        return watch_cpusets(tree.base, tree.written, self._ranked, self._idle.keeps)

    async def close(self, *, remove: bool) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        if not self.claim.is_lost:
            self._domains.close()
        if remove and not self.claim.is_lost:
            for base in self.bases:
                await remove_tree(base)


def _key_in(parts: list[str]) -> ContainerKey | None:
    """The container of a place in a hierarchy that is not cpuset's."""
    return key_in(parts[1:] if parts[:1] == [IDLE] else parts)


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
    """A container of the shared pool, or of the idle side, where everybody is who is in ``pool``.

    Somebody may have moved its processes elsewhere.
    """
    elsewhere = [allowed(pid) for pid in pids if pid not in pool]
    strays = [mask for mask in elsewhere if mask]
    effective = shared if not strays else CPUSet()
    for mask in strays:
        effective |= mask
    return ObservedContainer(
        key, exclusive=False, configured=None, effective=effective, populated=bool(pids)
    )
