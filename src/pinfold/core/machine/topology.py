"""The CPU topology that the CPU manager decides on.

A :class:`CPUTopology` is the kubelet's view of a machine (cAdvisor's rules), not the hardware:
see :mod:`pinfold.core.machine.kubelet_view` for how one becomes the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Self

from pinfold.core.values.cpuset import CPUSet, iter_bits
from pinfold.core.values.errors import PinfoldError


class TopologyError(PinfoldError, ValueError):
    """Rows that cannot be one machine."""


class CPUInfo(NamedTuple):
    """Where one logical CPU sits; every id is the kubelet's (upstream ``topology.CPUInfo``).

    ``core`` is the lowest CPU id of the core, so it is unique in the machine.
    """

    cpu: int
    core: int
    socket: int
    numa_node: int
    uncore_cache: int


class CorePattern(NamedTuple):
    """Cores whose threads lie alike: each has the CPUs ``first + offset`` for every offset.

    ``firsts`` is the bitmask of the cores' first (lowest) CPUs.
    """

    offsets: tuple[int, ...]
    firsts: int


class CPUTopology:
    """Sockets, NUMA nodes, uncore caches and cores of the CPUs that the kubelet sees.

    Immutable; compares by value.  ``cores``, ``sockets``, ``numa_nodes`` and ``uncore_caches``
    map an id to the bitmask of its CPUs, ids ascending.  The ``num_*`` counts are those that the
    kubelet divides by; on odd machines (``physical id`` lines that disagree with sysfs, hidden
    CPUs) they differ from the number of rows.

    Args:
        rows: one :class:`CPUInfo` for each CPU, in any order.
        num_cpus, num_cores, num_sockets, num_uncore_caches: MachineInfo's own counts where they
            are known to differ from the rows (upstream ``topology.Discover``).

    Raises:
        TopologyError: no CPU at all, a CPU twice, a negative id, a core whose name is above
            its lowest CPU, or a count below one.
    """

    def __init__(
        self,
        rows: Iterable[CPUInfo],
        *,
        num_cpus: int | None = None,
        num_cores: int | None = None,
        num_sockets: int | None = None,
        num_uncore_caches: int | None = None,
    ) -> None:
        self.rows: tuple[CPUInfo, ...] = tuple(sorted(rows))
        if not self.rows:
            raise TopologyError("a topology needs at least one CPU")
        self.all = 0
        for row in self.rows:
            if row.cpu < 0:
                raise TopologyError(f"CPU id {row.cpu} is negative")
            if self.all >> row.cpu & 1:
                raise TopologyError(f"CPU {row.cpu} appears twice")
            self.all |= 1 << row.cpu
        self.cores = self._group(1)
        for core, mask in self.cores.items():
            if core > (mask & -mask).bit_length() - 1:
                raise TopologyError(f"core {core} is named by a CPU above its lowest")
        self.sockets = self._group(2)
        self.numa_nodes = self._group(3)
        self.uncore_caches = self._group(4)
        self.num_cpus = len(self.rows) if num_cpus is None else num_cpus
        self.num_cores = len(self.cores) if num_cores is None else num_cores
        self.num_sockets = len(self.sockets) if num_sockets is None else num_sockets
        self.num_uncore_caches = (
            len(self.uncore_caches) if num_uncore_caches is None else num_uncore_caches
        )
        for name in ("num_cpus", "num_cores", "num_sockets", "num_uncore_caches"):
            if getattr(self, name) < 1:
                raise TopologyError(f"{name} is {getattr(self, name)}, must be at least 1")

    @classmethod
    def from_rows(cls, rows: Iterable[tuple[int, int, int, int, int]], **counts: int) -> Self:
        """Build from plain ``(cpu, core, socket, numa_node, uncore_cache)`` tuples."""
        return cls((CPUInfo(*row) for row in rows), **counts)

    def _group(self, field: int) -> Mapping[int, int]:
        groups: dict[int, int] = {}
        for row in self.rows:
            groups[row[field]] = groups.get(row[field], 0) | 1 << row.cpu
        return MappingProxyType(dict(sorted(groups.items())))

    @property
    def num_numa_nodes(self) -> int:
        """NUMA nodes that have CPUs."""
        return len(self.numa_nodes)

    @property
    def cpus(self) -> CPUSet:
        """Every CPU that the kubelet sees."""
        return CPUSet.from_mask(self.all)

    @property
    def cpus_per_core(self) -> int:
        """``num_cpus // num_cores``, as the kubelet has it (not exact on uneven machines)."""
        return self.num_cpus // self.num_cores

    @property
    def cpus_per_socket(self) -> int:
        """``num_cpus // num_sockets``, as the kubelet has it."""
        return self.num_cpus // self.num_sockets

    @property
    def cpus_per_uncore_cache(self) -> int:
        """``num_cpus // num_uncore_caches``, as the kubelet has it."""
        return self.num_cpus // self.num_uncore_caches

    @cached_property
    def core_patterns(self) -> tuple[CorePattern, ...]:
        """The cores, grouped by the offsets of their threads; one or two on real machines.

        It lets all cores be counted at once with a few shifts of whole masks.
        """
        groups: dict[tuple[int, ...], int] = {}
        for core, mask in self.cores.items():
            offsets = tuple(cpu - core for cpu in iter_bits(mask))
            groups[offsets] = groups.get(offsets, 0) | 1 << core
        return tuple(CorePattern(offsets, firsts) for offsets, firsts in sorted(groups.items()))

    @cached_property
    def smallest_core(self) -> int:
        """CPUs of the smallest core."""
        return min(len(pattern.offsets) for pattern in self.core_patterns)

    @cached_property
    def largest_core(self) -> int:
        """CPUs of the largest core."""
        return max(len(pattern.offsets) for pattern in self.core_patterns)

    @cached_property
    def cores_alike(self) -> bool:
        """Whether every core has ``cpus_per_core`` CPUs."""
        return self.smallest_core == self.largest_core == self.cpus_per_core

    @cached_property
    def group_masks(self) -> tuple[int, ...]:
        """The CPUs of every socket and NUMA node."""
        return (*self.sockets.values(), *self.numa_nodes.values())

    @cached_property
    def smallest_group(self) -> int:
        """CPUs of the smallest NUMA node or socket."""
        return min(mask.bit_count() for mask in self.group_masks)

    @cached_property
    def sockets_alike(self) -> bool:
        """Whether every socket has ``cpus_per_socket`` CPUs."""
        return {mask.bit_count() for mask in self.sockets.values()} == {self.cpus_per_socket}

    @cached_property
    def cores_straddle(self) -> bool:
        """Whether any core has threads in more than one socket or NUMA node.

        A core that is named by a CPU of another one (nodes that overlap) counts too.
        """
        return any(not mask >> core & 1 for core, mask in self.cores.items()) or any(
            core & group not in (0, core)
            for core in self.cores.values()
            for group in self.group_masks
        )

    @cached_property
    def sockets_by_numa_node(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """The ``(socket, mask)`` pairs that have CPUs in each NUMA node."""
        return _overlaps(self.numa_nodes, self.sockets)

    @cached_property
    def numa_nodes_by_socket(self) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """The ``(NUMA node, mask)`` pairs that have CPUs in each socket."""
        return _overlaps(self.sockets, self.numa_nodes)

    @cached_property
    def by_cpu(self) -> Mapping[int, CPUInfo]:
        """The row of each CPU."""
        return MappingProxyType({row.cpu: row for row in self.rows})

    def whole_cores(self, cpus: CPUSet) -> CPUSet:
        """These CPUs with all threads of their cores; those that it does not know as they are."""
        cores = {self.by_cpu[cpu].core for cpu in cpus if cpu in self.by_cpu}
        return CPUSet.union_of(CPUSet.from_mask(self.cores[core]) for core in cores) | cpus

    def _key(self) -> tuple[object, ...]:
        counts = (self.num_cpus, self.num_cores, self.num_sockets, self.num_uncore_caches)
        return (self.rows, counts)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, CPUTopology) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return (
            f"<CPUTopology {self.num_cpus} CPUs, {self.num_cores} cores, "
            f"{self.num_sockets} sockets, {self.num_numa_nodes} NUMA nodes>"
        )


def _overlaps(
    outer: Mapping[int, int], inner: Mapping[int, int]
) -> Mapping[int, tuple[tuple[int, int], ...]]:
    return MappingProxyType(
        {
            group: tuple((id_, mask) for id_, mask in inner.items() if mask & group_mask)
            for group, group_mask in outer.items()
        }
    )
