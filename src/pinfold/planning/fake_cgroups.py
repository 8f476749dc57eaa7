"""The kernel's cgroups in memory: what it does with cpusets, also while CPUs come and go."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved, MovedMemory
from pinfold.ports.cgroups import (
    ObservedCgroups,
    ObservedContainer,
    ObservedIdle,
    Partition,
    Placement,
    Stray,
)
from pinfold.ports.errors import CgroupError, ContainerKey, ProcessGoneError


class Faults:
    """Calls that fail: those whose number (from 1) is in ``fail_at``."""

    def __init__(self) -> None:
        self.calls = 0
        self.fail_at: set[int] = set()
        self.fail_all = False

    def due(self) -> bool:
        """Count a call, and tell whether it fails."""
        self.calls += 1
        return self.fail_all or self.calls in self.fail_at


class _Group(Struct):
    """A cgroup; ``cpus`` is what the kernel has in its cpuset, None on the shared side.

    That of one that is mixed is written with each change of the pool.
    """

    placement: Placement
    cpus: CPUSet | None
    lost: bool = False
    partition: str | None = None


class FakeCgroups:
    """Cgroups of a machine that has only a table.

    ``processes`` is shared with :class:`FakeRuntime`: pid -> the group that it is in (None is
    outside of the subtree).  When CPUs go offline, it does what kernels do: who has lost all of its
    CPUs may run on every other.  Version 1 takes an offline CPU out of a cpuset for good, and moves
    the processes of one that has none left elsewhere; version 2 lends the CPUs of the cpuset above.
    """

    def __init__(self, machine: CPUSet, version: int = 2) -> None:
        self.machine = machine
        self.version = version
        self._online = machine
        self.shared_lost = False
        self.shared: CPUSet | None = None
        self.no_idle_side = ""
        self.no_partition = ""
        """Why the kernel grants no partition; "": it does (version 2)."""
        """Why there can be no idle side."""
        self.idle: CPUSet | None = None
        """What the kernel has in the cpuset of the idle side; None: there is none."""
        self.is_idle = True
        """Whether the idle side, if there is one, has ``cpu.idle`` 1."""
        self.idle_quota: float | None = None
        self._lent = CPUSet()
        self.groups: dict[ContainerKey, _Group] = {}
        self.processes: dict[int, ContainerKey | None] = {}
        self.belongs: dict[int, ContainerKey] = {}
        """Whose a process is that has left its group."""
        self.starts: dict[int, int] = {}
        """When the processes began, as far as it is not 0."""
        self.nodes = CPUSet.parse("0-7")
        """The NUMA nodes."""
        self.memory: dict[ContainerKey, dict[int, int]] = {}
        """Bytes by NUMA node."""
        self.stuck: dict[ContainerKey, int] = {}
        """Bytes that cannot be moved."""
        self.room: dict[int, int] = {}
        """Bytes that a NUMA node can take in; as many as one likes where it is not said."""
        self.faults = Faults()

    @property
    def online(self) -> CPUSet:
        """The CPUs that are online."""
        return self._online

    @online.setter
    def online(self, cpus: CPUSet) -> None:
        self._online = cpus
        if self.version == 1:
            for group in self.groups.values():
                if group.cpus is not None:
                    group.cpus &= cpus
                    group.lost |= not group.cpus
            if self.shared is not None:
                self.shared &= cpus
                self.shared_lost |= not self.shared
            if self.idle is not None:
                self.idle &= cpus

    @property
    def is_ranked(self) -> bool:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return self.idle is None or self.is_idle

    async def open(self, shared: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._lent, self.idle_quota = CPUSet(), None
        self._drop_idle()
        if shared:
            await self.set_shared(shared)
        elif self.idle is not None:
            self.idle = self._pool

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault("shared")
        if not cpus & self.online:
            raise CgroupError(f"shared: no CPU of {cpus} is online")
        self.shared = self._there(cpus)
        for group in self.groups.values():
            if group.cpus is not None and group.placement.mixed:
                group.cpus = self._there(group.placement.within(cpus))
        if self.idle is not None:
            self.idle = self._there(cpus | self._lent)

    async def lend(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault("idle")
        if cpus and self.no_idle_side:
            raise CgroupError(self.no_idle_side)
        if cpus - self.online:
            self._lent &= cpus
            if self.idle is not None:
                self._make_idle()
            raise CgroupError(f"idle: CPUs {cpus - self.online} are not in force", "injected")
        self._lent = cpus
        if cpus or self.idle is not None:
            self._make_idle()
        self._drop_idle()

    async def cap_idle(self, quota: float | None) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault("idle")
        if quota is not None and self.no_idle_side:
            raise CgroupError(self.no_idle_side)
        self.idle_quota = quota

    def take_back(self) -> tuple[CPUSet, bool]:
        """Take back to the pool what is lent, and take away a cap, as a guardian does it.

        Returns:
            The CPUs that were lent, and whether there was a cap.
        """
        lent = CPUSet() if self.idle is None else self.idle - self._pool
        capped = self.idle_quota is not None
        self.idle_quota = None
        if lent:
            self.idle = self._pool
        return lent, capped

    def _drop_idle(self) -> None:
        borrowers = any(group.placement.borrows for group in self.groups.values())
        if not self._lent and not borrowers:
            self.idle = None

    def _make_idle(self) -> None:
        self.is_idle, self.idle = True, self._there(self._pool | self._lent)

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault(str(key))
        if placement.borrows and self.no_idle_side:
            raise CgroupError(self.no_idle_side)
        if placement.cpus is not None and not placement.cpus & self.online:
            raise CgroupError(f"{key}: no CPU of {placement.cpus} is online")
        cpus = None if placement.cpus is None else placement.within(self.shared or CPUSet())
        if cpus is None and not placement.frozen and not self._pool & self.online:
            raise CgroupError(f"{key}: no CPU of the shared pool is online")
        if cpus is not None:
            cpus = self._there(cpus)
        # Moving its processes there brings back those that the kernel has moved away, unless there
        # is no CPU to move them to.
        stays = self.version == 1 and cpus is None and not self._pool
        if placement.borrows:
            self._make_idle()
        partition, note = self._partition(placement)
        self.groups[key] = _Group(placement, cpus, stays, partition)
        self._drop_idle()
        return note

    def _partition(self, placement: Placement) -> tuple[str | None, str]:
        """What the kernel has of a wish for a partition, and why it is not granted."""
        wish = placement.partition
        if placement.cpus is None or self.version == 1:
            return None, "" if wish is Partition.MEMBER else f"no partition {wish.value}"
        reason = "it uses the shared pool, too" if placement.mixed else self.no_partition
        if wish is Partition.MEMBER or not reason:
            return wish.value, ""
        return Partition.MEMBER.value, f"partition {wish.value} is not in force: {reason}"

    def invalidate(self, key: ContainerKey, reason: str) -> None:
        """The kernel takes a partition back."""
        group = self.groups[key]
        group.partition = f"{group.placement.partition.value} invalid ({reason})"

    def _there(self, cpus: CPUSet) -> CPUSet:
        """What the kernel has of CPUs that are written into a cpuset."""
        return cpus & self.online if self.version == 1 else cpus

    @property
    def _pool(self) -> CPUSet:
        return self.machine if self.shared is None else self.shared

    async def weigh(self, key: ContainerKey, mems: CPUSet) -> int:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        if key not in self.groups or self.groups[key].cpus is None:
            raise CgroupError(f"{key}: no such cgroup")
        wanted = sum(size for node, size in self.memory.get(key, {}).items() if node not in mems)
        room = [self.room.get(node, wanted) for node in mems]
        if wanted > sum(room) or not mems or mems - self.nodes:
            raise CgroupError(f"{key}: no room for {wanted} bytes on NUMA node {mems}")
        return wanted

    async def migrate(self, key: ContainerKey, mems: CPUSet) -> MemoryMoved:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault(str(key))
        wanted = await self.weigh(key, mems)
        before, group = self.memory.get(key, {}), self.groups[key]
        stuck = min(self.stuck.get(key, 0), wanted)
        after = {node: size for node, size in before.items() if node in mems}
        after[min(mems)] = after.get(min(mems), 0) + wanted - stuck
        if stuck:
            node = next(node for node in before if node not in mems)
            after[node] = stuck
        if before:
            self.memory[key] = after
        group.placement = replace(group.placement, mems=mems)
        nodes = [
            MovedMemory(node=node, before=before.get(node, 0), after=after.get(node, 0))
            for node in sorted(before | after)
        ]
        return MemoryMoved(seconds=0.0, moved=wanted - stuck, stayed=stuck, nodes=nodes)

    async def enter(self, key: ContainerKey, pid: int, *, start: int | None = None) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault(str(key))
        if key not in self.groups:
            raise CgroupError(f"{key}: no such cgroup")
        if pid not in self.processes or start not in (None, self.starts.get(pid, 0)):
            raise ProcessGoneError(f"{key}: no process {pid}")
        self.processes[pid] = key

    def lives(self, pid: int) -> bool:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return pid in self.processes

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:  # noqa: ARG002 - the port
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault(str(key))
        strays = {stray.pid for stray in self._strays(key)}
        for pid in [pid for pid, group in self.processes.items() if group == key or pid in strays]:
            del self.processes[pid]

    async def remove(self, key: ContainerKey) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault(str(key))
        if key in self.processes.values():
            raise CgroupError(f"{key}: not empty")
        self.groups.pop(key, None)
        self._drop_idle()

    async def observe(self) -> ObservedCgroups:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        populated = set(self.processes.values())
        return ObservedCgroups(
            self._effective(None),
            self._pool,
            {
                key: ObservedContainer(
                    key,
                    exclusive=group.placement.cpus is not None,
                    configured=group.cpus,
                    effective=self._effective(group),
                    partition=group.partition,
                    populated=key in populated,
                    frozen=group.placement.frozen,
                    strays=self._strays(key),
                    idle=group.placement.borrows,
                )
                for key, group in self.groups.items()
            },
            None
            if self.idle is None
            else ObservedIdle(
                self.idle, self.idle & self.online, is_idle=self.is_idle, quota=self.idle_quota
            ),
        )

    async def close(self, *, remove: bool) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        if remove:
            self.groups.clear()
            self.shared = self.idle = self.idle_quota = None
            self._lent = CPUSet()

    def _strays(self, key: ContainerKey) -> tuple[Stray, ...]:
        return tuple(
            Stray(pid, self.starts.get(pid, 0), "/elsewhere")
            for pid, whose in self.belongs.items()
            if whose == key and pid in self.processes and self.processes[pid] != key
        )

    def allowed(self, pid: int) -> CPUSet:
        """The CPUs on which a process of the subtree may run; none while it is frozen."""
        key = self.processes[pid]
        if key is None:
            return self.online
        group = self.groups[key]
        return CPUSet() if group.placement.frozen else self._effective(group)

    def _effective(self, group: _Group | None) -> CPUSet:
        """What a group may use, or (None) the shared pool."""
        if group is not None and group.placement.borrows and not group.lost:
            lost, cpus = False, self._pool if self.idle is None else self.idle
        elif group is None or (group.cpus is None and not group.lost):
            lost, cpus = self.shared_lost and not self._pool, self._pool
        else:
            lost, cpus = group.lost, group.cpus or CPUSet()
        return self.online if lost else cpus & self.online or self.online

    def _fault(self, where: str) -> None:
        if self.faults.due():
            raise CgroupError(f"{where}: the kernel refused", "injected")
