"""What the hardware of a machine is: CPUs, cores, caches, sockets, NUMA nodes, memory.

A :class:`Machine` is read from sysfs, hwloc XML, MachineInfo, lscpu or a short form.  The
kubelet's view of it is derived (:mod:`pinfold.core.machine.kubelet_view`); the facts which that
view depends on and which are no properties of the hardware are in :class:`KubeletFacts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field

from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.errors import PinfoldError

NO_HUGEPAGES: Final[Mapping[int, HugepagePool]] = MappingProxyType({})


class MachineError(PinfoldError, ValueError):
    """A source that cannot be read as a machine; the message names file, place and remedy."""


class HugepagePool(Struct, frozen=True):
    """Pages of one size."""

    total: int
    free: int


Hugepages = Mapping[int, HugepagePool]
"""Page size in bytes -> its pool."""


class Cpu(Struct, frozen=True):
    """One present CPU; every field but the first two is None where unknown or offline.

    ``core`` and ``l3`` name their group by its lowest online CPU; ``core_id``, ``socket``,
    ``die`` and ``l3_id`` are the kernel's ids; ``kind`` is an index into ``Machine.cpu_kinds``;
    ``numa_all`` lists the NUMA nodes where several hold the CPU (``numa`` is the lowest).
    """

    cpu: int
    online: bool = True
    core: int | None = None
    core_id: int | None = None
    socket: int | None = None
    die: int | None = None
    numa: int | None = None
    l3: int | None = None
    l3_id: int | None = None
    kind: int | None = None
    allowed: bool = True
    isolated: bool = False
    numa_all: tuple[int, ...] = ()


class Socket(Struct, frozen=True):
    """A socket; ``id`` is None where the kernel does not know it."""

    id: int | None
    cpus: CPUSet


class L3Cache(Struct, frozen=True):
    """A level 3 cache; ``size`` in bytes."""

    cpus: CPUSet
    size: int | None = None
    id: int | None = None


class NUMANode(Struct, frozen=True):
    """A NUMA node; without CPUs it is memory-only, without memory CPU-only.

    ``local_cpus`` are the nearest CPUs of a node that has none; ``synthetic`` marks the one node
    of a kernel without node directories.
    """

    id: int
    cpus: CPUSet
    memory_bytes: int | None = None
    hugepages: Hugepages = NO_HUGEPAGES
    memory_kind: str | None = None
    local_cpus: CPUSet | None = None
    synthetic: bool = False


class Distances(Struct, frozen=True):
    """NUMA distances: rows by node id, as the kernel gives them; ``name`` is hwloc's, if any."""

    nodes: tuple[int, ...]
    rows: Mapping[int, tuple[int, ...]]
    name: str | None = None


class CpuKind(Struct, frozen=True):
    """A kind of cores on a hybrid machine, ranked by efficiency."""

    kind: int
    cpus: CPUSet
    info: Mapping[str, str] = field(default_factory=dict)


class PCIFunction(Struct, frozen=True):
    """Where a PCI function is; ``numa_node`` is -1 where the firmware does not say.

    ``device_class`` is the 24-bit class code as sysfs prints it (``0x010802``); ``local_cpus`` is
    None where the kernel does not tell.  ``names`` are the kernel's of what it drives: interfaces,
    block devices and so on, and what is stacked on them (a bond is a name of each of its links).
    ``physical_function`` is the address of the function that a virtual one belongs to.
    ``resource`` is the extended resource under which a device plugin lists it; only a machine that
    is described and not read tells that.
    """

    address: str
    device_class: str
    numa_node: int
    local_cpus: CPUSet | None
    names: tuple[str, ...] = ()
    physical_function: str | None = None
    resource: str | None = None


class UpperCache(Struct, frozen=True):
    """A cache above level 2 of one CPU, as cAdvisor reads it; ``id`` None: no id file."""

    id: int | None
    cpu_count: int


class CpuFacts(Struct, frozen=True):
    """What cAdvisor reads of one CPU.

    ``core_id`` or ``package_id`` is None where a file that cAdvisor needs is missing (on s390x
    that of the book or drawer, too), so that it skips the CPU.  ``caches`` None means no cache
    directory; ``lacks_cache_id`` that cAdvisor gives up while it reads them.
    """

    core_id: int | None
    package_id: int | None
    book_id: str = ""
    drawer_id: str = ""
    caches: tuple[UpperCache, ...] | None = None
    lacks_cache_id: bool = False


class KubeletFacts(Struct, frozen=True):
    """What cAdvisor sees beyond the hardware.

    Attributes:
        cpus: the CPUs that have a directory, offline ones too.
        nodes: node id -> the CPUs that it links, in cAdvisor's order; None without node
            directories.
        links_missing: the capture has no ``node*/cpu*`` links, cpumap stood in for them.
        physical_ids: distinct ``physical id`` lines of ``/proc/cpuinfo``, 0 if there are none.
        online: content of ``cpu/online``; None without the file, when all CPUs count as online.
        memory_capacity: ``MemTotal`` of ``/proc/meminfo`` in bytes.
    """

    cpus: Mapping[int, CpuFacts]
    nodes: Mapping[int, tuple[int, ...]] | None
    links_missing: bool = False
    physical_ids: int = 0
    online: CPUSet | None = None
    memory_capacity: int | None = None


class Machine(Struct, frozen=True):
    """A machine; see the module.  ``cpus`` ascend; ``allowed`` is the capturing process's set.

    ``nohz_full`` and ``rcu_nocbs`` are what the kernel was booted with.
    """

    name: str
    source: str
    cpus: tuple[Cpu, ...]
    numa_nodes: tuple[NUMANode, ...]
    sockets: tuple[Socket, ...]
    cores: tuple[CPUSet, ...]
    l3: tuple[L3Cache, ...] = ()
    distances: Distances | None = None
    cpu_kinds: tuple[CpuKind, ...] = ()
    architecture: str | None = None
    cpu_model: str | None = None
    memory_bytes: int | None = None
    hugepages: Hugepages = NO_HUGEPAGES
    pci: tuple[PCIFunction, ...] = ()
    allowed: CPUSet | None = None
    nohz_full: CPUSet = CPUSet()
    rcu_nocbs: CPUSet = CPUSet()
    kubelet_facts: KubeletFacts | None = None

    @property
    def online(self) -> CPUSet:
        """The online CPUs."""
        return CPUSet(cpu.cpu for cpu in self.cpus if cpu.online)

    @property
    def offline(self) -> CPUSet:
        """CPUs that are present but not online."""
        return CPUSet(cpu.cpu for cpu in self.cpus if not cpu.online)

    @property
    def isolated(self) -> CPUSet:
        """CPUs that the kernel keeps out of load balancing (``isolcpus``)."""
        return CPUSet(cpu.cpu for cpu in self.cpus if cpu.isolated)
