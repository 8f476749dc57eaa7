"""The cgroups of containers that a runtime in memory has made, as the agent finds them."""

from __future__ import annotations

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_cgroups import Faults
from pinfold.planning.fake_nri import FakeContainer, FakeNode
from pinfold.ports.cgroups import ObservedCgroups, ObservedContainer, Placement
from pinfold.ports.errors import CgroupError, ContainerKey, ProcessGoneError


class FakeRuntimeCgroups:
    """The :class:`pinfold.ports.cgroups.FoundCgroups` of a :class:`FakeNode`."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self._pool = CPUSet()
        self._known: dict[ContainerKey, Placement] = {}
        self._found: dict[ContainerKey, FakeContainer] = {}
        self.faults = Faults()

    async def open(self, shared: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._pool = shared

    def identify(self, key: ContainerKey, container_id: str) -> None:
        """See :class:`pinfold.ports.cgroups.MadeCgroups`; the path alone finds it."""

    async def set_shared(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault("the shared pool")
        self._pool = cpus
        for key in self._known:
            self._write(key)

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._fault(str(key))
        self._known[key] = placement
        self._write(key)
        return ""

    async def find(self, key: ContainerKey, cgroups_path: str) -> bool:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        self._fault(str(key))
        container = self._node.by_path(cgroups_path)
        if container is None or key not in self._known:
            return False
        self._found[key] = container
        self._write(key)
        return True

    def began(self, pid: int) -> int | None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        return self._node.began(pid)

    def age(self, pid: int) -> float | None:
        """See :class:`pinfold.ports.cgroups.FoundCgroups`."""
        return self._node.age(pid)

    async def enter(self, key: ContainerKey, pid: int, *, start: int | None = None) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        raise ProcessGoneError(f"{key}: there is no process {pid} ({start})")

    def lives(self, pid: int) -> bool:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return self._node.began(pid) is not None

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """Nobody has to be killed here."""
        raise CgroupError(f"{key}: not to be killed ({wait})")

    async def remove(self, key: ContainerKey) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self._known.pop(key, None)
        self._found.pop(key, None)

    async def observe(self) -> ObservedCgroups:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        found = {
            key: ObservedContainer(
                key,
                exclusive=self._known[key].cpus is not None,
                configured=container.kernel,
                effective=container.kernel,
                populated=True,
            )
            for key, container in self._found.items()
            if container.kernel is not None
        }
        return ObservedCgroups(self._pool, self._pool, found)

    async def close(self, *, remove: bool) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""

    def _write(self, key: ContainerKey) -> None:
        container = self._found.get(key)
        if container is not None and container.kernel is not None:
            container.kernel = self._known[key].cpus or self._pool
            container.mems = self._known[key].mems or container.mems

    def _fault(self, where: str) -> None:
        if self.faults.due():
            raise CgroupError(f"{where}: the kernel refused", "injected")
