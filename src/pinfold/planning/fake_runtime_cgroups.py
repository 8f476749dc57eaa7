"""The cgroups of containers that a runtime in memory has made, as the agent finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from pinfold.adapters.cgroup.files import CgroupGoneError
from pinfold.adapters.cgroup.runtime.container_cpusets import ContainerCpusets, Known
from pinfold.adapters.cgroup.runtime.found_cpusets import FoundCpusets
from pinfold.adapters.cgroup.runtime.gate_record import GateRecord, UsedGate
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved
from pinfold.planning.fake_cgroups import Faults
from pinfold.planning.fake_nri import FakeNode
from pinfold.ports.cgroups import NoIdleSide, ObservedCgroups, ObservedContainer, Placement
from pinfold.ports.errors import CgroupError, ContainerKey, PortError, ProcessGoneError


class FakeCpusets(FoundCpusets):
    """The cpusets of a :class:`FakeNode`."""

    def __init__(self, node: FakeNode) -> None:
        super().__init__(node.version, Path("/"))
        self._node = node

    def configured(self, folder: Path) -> CPUSet:
        """See :class:`FoundCpusets`."""
        container = self._node.by_path(str(folder))
        if container is not None and container.cpuset is not None:
            return container.cpuset
        return self._node.gates.get(self._there(folder), CPUSet())

    def effective(self, folder: Path) -> CPUSet:
        """See :class:`FoundCpusets`."""
        return self._node.effective(self._there(folder))

    def is_plain(self, folder: Path) -> bool:
        """See :class:`FoundCpusets`."""
        return folder not in self._node.partitions

    def put(self, folder: Path, cpus: CPUSet) -> None:
        """See :class:`FoundCpusets`."""
        if self.configured(folder) != cpus:
            self._fault(folder)
            below = (Path(pod.cgroup_parent) for pod in self._node.pods.values())
            populated = any(pod.is_relative_to(folder) for pod in below)
            self._node.gates[folder] = cpus or (self._node.machine if populated else cpus)
            self._node.wrote()

    def cut(self, folder: Path, wanted: CPUSet) -> bool:
        """See :class:`FoundCpusets`."""
        container = self._node.by_path(str(folder))
        if self.has_gates or container is None:
            return False
        container.cpuset = wanted
        self._node.wrote()
        return True

    def set(self, folder: Path, wanted: CPUSet, mems: CPUSet | None) -> tuple[CPUSet, CPUSet]:
        """See :class:`FoundCpusets`."""
        container = self._node.by_path(str(folder))
        if container is None or container.cpuset is None:
            return CPUSet(), wanted
        before = self.effective(folder)
        container.mems = mems or container.mems
        if container.cpuset != wanted:
            container.cpuset = wanted
            self._node.wrote()
        effective = self.effective(folder)
        if effective - wanted:
            raise CgroupError(f"{folder}: cpuset.cpus is {wanted}, but in force is {effective}")
        return before - wanted, effective

    async def confirm(self, folders: Sequence[Path], cpus: CPUSet, *, below: bool = True) -> None:
        """See :class:`FoundCpusets`."""
        del below  # what a container has made in its cgroup is not told here
        for folder in folders:
            try:
                left = self.effective(folder) - cpus
            except CgroupGoneError:
                continue
            if left:
                raise CgroupError(f"{folder}: somebody may still run on {left}")

    def _there(self, folder: Path) -> Path:
        if not self._node.has_cgroup(folder):
            raise CgroupGoneError(f"{folder}: no such cgroup")
        return folder

    def _fault(self, folder: Path) -> None:
        if self._node.gate_faults.due():
            raise CgroupError(f"{folder}: the kernel refused", "injected")


class MemoryGateRecord:
    """The :class:`GateRecord` of a machine that is never started."""

    def __init__(self) -> None:
        self.gates: dict[Path, UsedGate] = {}
        self.faults = Faults()

    @property
    def before(self) -> dict[Path, CPUSet]:
        """What the gates on record had."""
        return {gate: used.before for gate, used in self.gates.items()}

    def load(self) -> Mapping[Path, UsedGate]:
        """See :class:`GateRecord`."""
        return dict(self.gates)

    def save(self, gates: Mapping[Path, UsedGate], *, sync: bool) -> None:
        """See :class:`GateRecord`."""
        del sync
        if self.faults.due():
            raise PortError("the record of gates: the disk is full", "injected")
        self.gates = dict(gates)


class FakeRuntimeCgroups(NoIdleSide):
    """The :class:`pinfold.ports.cgroups.FoundCgroups` of a :class:`FakeNode`.

    Args:
        node: runtime and kernel.
        record: see :class:`pinfold.adapters.cgroup.runtime.container_cpusets.ContainerCpusets`.
    """

    no_idle_side = "a runtime makes the cgroups"

    def __init__(self, node: FakeNode, record: GateRecord | None = None) -> None:
        self._node = node
        self._cpusets = FakeCpusets(node)
        self.all = ContainerCpusets(self._cpusets, record)
        self.faults = Faults()

    async def open(self, shared: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.all.open(shared)

    def identify(self, key: ContainerKey, container_id: str) -> None:
        """See :class:`pinfold.ports.cgroups.MadeCgroups`; the path alone finds it."""

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault("the shared pool")
        await self.all.set_shared(cpus)

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.expect_none(placement)
        self._fault(str(key))
        await self._pin(self.all.place(key, placement))
        return ""

    async def find(self, key: ContainerKey, cgroups_path: str) -> bool:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        self._fault(str(key))
        known = self.all.known.get(key)
        if known is None or self._node.by_path(cgroups_path) is None:
            return False
        self.all.locate(known, Path(cgroups_path))
        await self._pin(known)
        return True

    async def settle(self) -> None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        await self.all.settle()

    def began(self, pid: int) -> int | None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        return self._node.began(pid)

    def age(self, pid: int) -> float | None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        return self._node.age(pid)

    async def weigh(self, key: ContainerKey, mems: CPUSet) -> int:
        """See :class:`pinfold.ports.cgroups.Cgroups`; nobody has any memory here."""
        known = self.all.known.get(key)
        if known is None or known.folder is None or not mems:
            raise CgroupError(f"{key}: no such cgroup")
        return 0

    async def migrate(self, key: ContainerKey, mems: CPUSet) -> MemoryMoved:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault(str(key))
        await self.weigh(key, mems)
        known = self.all.known[key]
        known.placement = replace(known.placement, mems=mems)
        await self._pin(known)
        return MemoryMoved(seconds=0.0, moved=0, stayed=0)

    async def enter(self, key: ContainerKey, pid: int, *, start: int | None = None) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        del start  # nobody's number is given away again here
        there = (one for one in self._node.containers.values() if one.seen.pid == pid)
        if (container := next(there, None)) is None:
            raise ProcessGoneError(f"{key}: there is no process {pid}")
        if (known := self.all.known.get(key)) is None:
            raise CgroupError(f"{key} was not placed", "place it")
        self.all.locate(known, Path(container.seen.cgroups_path))
        await self._pin(known)

    def lives(self, pid: int) -> bool:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return self._node.began(pid) is not None

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """Nobody has to be killed here."""
        raise CgroupError(f"{key}: not to be killed ({wait})")

    async def remove(self, key: ContainerKey) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        await self.all.forget(key)

    async def observe(self) -> ObservedCgroups:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        found = {}
        for key, known in self.all.known.items():
            container = None if known.folder is None else self._node.by_path(str(known.folder))
            if container is None or container.cpuset is None or known.folder is None:
                continue
            found[key] = ObservedContainer(
                key,
                exclusive=known.placement.cpus is not None,
                configured=container.cpuset,
                effective=self._node.effective(known.folder),
                populated=True,
            )
        return ObservedCgroups(self.all.gates.found(self.all.pool), self.all.pool, found)

    async def close(self, *, remove: bool) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        await self.all.close(everything=remove)

    async def _pin(self, known: Known) -> None:
        pinned = await self.all.pin(known)
        if pinned is not None and pinned[0] and known.folder is not None:
            await self._cpusets.confirm([known.folder], known.within(self.all.pool))

    def _fault(self, where: str) -> None:
        if self.faults.due():
            raise CgroupError(f"{where}: the kernel refused", "injected")
