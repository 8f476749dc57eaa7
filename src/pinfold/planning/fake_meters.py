"""The kernel's counters in memory: as much as somebody says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pinfold.core.observation.rates import Counters, Stalls
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import ContainerKey


class FakeContainerMeters:
    """The :class:`pinfold.ports.observation.ContainerMeters` of a table.

    ``counted`` is what the kernel says of each container whose cgroup is there, ``open`` are those
    whose files are.
    """

    def __init__(self, wait_source: str = "cpu.pressure") -> None:
        self.counted: dict[ContainerKey, Counters] = {}
        self.open: set[ContainerKey] = set()
        self._wait_source = wait_source

    @property
    def wait_source(self) -> str:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        return self._wait_source

    def lacks(self) -> Sequence[str]:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        return [] if self._wait_source else ["how long containers wait for a CPU: as was said"]

    def read(self, keys: Iterable[ContainerKey]) -> Mapping[ContainerKey, Counters]:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        found = {key: self.counted[key] for key in keys if key in self.counted}
        self.open |= found.keys()
        return found

    def used(self, keys: Iterable[ContainerKey]) -> Mapping[ContainerKey, int]:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        found = self.read(keys)
        return {key: one.usage for key, one in found.items() if one.usage is not None}

    def retain(self, keys: Collection[ContainerKey]) -> None:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        self.open &= set(keys)

    def close(self) -> None:
        """See :class:`pinfold.ports.observation.ContainerMeters`."""
        self.open.clear()


class FakeCPUMeter:
    """The :class:`pinfold.ports.observation.CPUMeter` of a table: ``counted`` by CPU."""

    def __init__(self, cpus: CPUSet) -> None:
        self.counted = dict.fromkeys(cpus, 0)
        self.stalls: dict[str, Stalls] = {}
        self.is_open = False

    def idle(self, cpus: CPUSet | None = None) -> Mapping[int, int]:
        """See :class:`pinfold.ports.observation.CPUMeter`."""
        self.is_open = True
        return {cpu: n for cpu, n in self.counted.items() if cpus is None or cpu in cpus}

    def pressure(self) -> Mapping[str, Stalls]:
        """See :class:`pinfold.ports.observation.CPUMeter`."""
        return dict(self.stalls)

    def close(self) -> None:
        """See :class:`pinfold.ports.observation.CPUMeter`."""
        self.is_open = False
