"""A machine: what ``pinfold topology -o json`` prints, and what ``--machine`` understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias, TypeVar

from msgspec import UNSET, Meta, UnsetType, field

from pinfold.documents.records import CPUs, Document, Pages, Record, Size

MAX_ITEMS: Final = 1 << 16
"""The most CPUs that there may be."""

CpuId: TypeAlias = Annotated[int, Meta(ge=0, lt=MAX_ITEMS)]
Id: TypeAlias = Annotated[int, Meta(ge=-1, lt=1 << 31)]
"""An id of the kernel's; -1 where the firmware does not know."""

_T = TypeVar("_T")
Some: TypeAlias = Annotated[Sequence[_T], Meta(max_length=MAX_ITEMS)]


class SocketRow(Record, frozen=True, kw_only=True):
    """A socket."""

    id: Id | None
    cpus: CPUs


class NUMARow(Record, frozen=True, kw_only=True):
    """A NUMA node."""

    id: Id
    cpus: CPUs
    memory_bytes: Size | None = None
    hugepages: Mapping[str, Pages] = {}
    """By page size in bytes."""
    memory_kind: str | UnsetType = UNSET
    hwloc_local_cpus: CPUs | UnsetType = UNSET
    """The CPUs that hwloc says are local, where these are others."""
    synthetic: bool | UnsetType = UNSET
    """The source names no NUMA node: this one stands for the machine."""


class NUMADistances(Record, frozen=True, kw_only=True):
    """What the firmware says of the distances between NUMA nodes."""

    nodes: Sequence[Id]
    name: str | UnsetType = UNSET
    rows: Mapping[str, Sequence[Size]]
    """By NUMA node, in the order of ``nodes``."""


class L3Row(Record, frozen=True, kw_only=True):
    """A level 3 cache."""

    cpus: CPUs
    size: Size | None = None
    """Bytes."""
    id: Id | None = None
    """The kernel's."""


class CPUKind(Record, frozen=True, kw_only=True):
    """CPUs of one kind, where a machine has several."""

    kind: Size
    cpus: CPUs
    info: Mapping[str, str] = {}


class PCIRow(Record, frozen=True, kw_only=True):
    """A PCI function."""

    address: str
    device_class: str = field(name="class", default="")
    numa_node: Id
    local_cpus: CPUs | None = None
    names: Some[str] | UnsetType = UNSET
    """Of the interfaces and disks that it is."""
    physical_function: str | UnsetType = UNSET
    resource: str | UnsetType = UNSET
    """Under which a device plugin lists it; only where a short form has described the machine."""


class KubeletView(Record, frozen=True, kw_only=True):
    """What a kubelet sees of the machine, through cAdvisor."""

    num_cpus: int = 0
    num_cores: int = 0
    num_sockets: Annotated[int, Meta(ge=0, le=MAX_ITEMS)]
    num_numa_nodes: int = 0
    num_uncore_caches: int = 0
    machine_nodes: Sequence[Id]
    notes: Sequence[str] = ()
    """Where this differs from the hardware."""


class CPURow(Record, frozen=True, kw_only=True):
    """A CPU; of one that is offline no more is known."""

    cpu: CpuId
    online: bool
    core: CpuId | UnsetType | None = UNSET
    """The lowest CPU of its core."""
    core_id: Id | UnsetType | None = UNSET
    """The kernel's."""
    socket: Id | UnsetType | None = UNSET
    die: Id | UnsetType | None = UNSET
    numa: Id | UnsetType | None = UNSET
    l3: CpuId | UnsetType | None = UNSET
    """The lowest CPU that has its level 3 cache."""
    l3_id: Id | UnsetType = UNSET
    kind: Size | UnsetType = UNSET
    allowed: bool | UnsetType = UNSET
    """Only where it is false: the source may not run there."""
    isolated: bool | UnsetType = UNSET
    """Only where it is true: the kernel was booted with ``isolcpus``."""
    numa_all: Sequence[Id] | UnsetType = UNSET
    """The NUMA nodes, where there are several."""
    kubelet_core: CpuId | UnsetType | None = UNSET
    """What the kubelet takes for its core; null for a CPU that it does not see."""
    kubelet_socket: Id | UnsetType | None = UNSET
    kubelet_numa: Id | UnsetType | None = UNSET
    kubelet_uncore: Id | UnsetType | None = UNSET


class Machine(Document, frozen=True, kw_only=True):
    """A machine; absent values are null."""

    name: str
    source: str
    """What told it: ``sysfs``, ``hwloc``, ``cadvisor``..."""
    architecture: str | None = None
    cpu_model: str | None = None
    online: CPUs = ""
    offline: CPUs = ""
    isolated: CPUs = ""
    """That the kernel was booted to keep out of load balancing (``isolcpus``)."""
    nohz_full: CPUs | UnsetType = UNSET
    """Only where there are some, as ``rcu_nocbs``: the kernel was booted with it."""
    rcu_nocbs: CPUs | UnsetType = UNSET
    allowed: CPUs | None = None
    """Where the source may run; null: everywhere."""
    memory_bytes: Size | None = None
    hugepages_machine: Mapping[str, Pages] = {}
    """Of the machine as a whole, by page size in bytes."""
    sockets: Some[SocketRow]
    numa: Some[NUMARow]
    numa_distances: NUMADistances | None = None
    l3: Some[L3Row]
    cores: Some[CPUs]
    cpu_kinds: Sequence[CPUKind] = ()
    pci: Sequence[PCIRow] = ()
    kubelet: KubeletView | None = None
    cpus: Annotated[Sequence[CPURow], Meta(min_length=1, max_length=MAX_ITEMS)]
