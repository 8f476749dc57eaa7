"""A machine: what ``pinfold topology -o json`` prints, and what ``--machine`` understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import UNSET, UnsetType, field

from pinfold.documents.records import CPUs, Document, Pages, Record


class SocketRow(Record, frozen=True, kw_only=True):
    """A socket."""

    id: int | None
    cpus: CPUs


class NUMARow(Record, frozen=True, kw_only=True):
    """A NUMA node."""

    id: int
    cpus: CPUs
    memory_bytes: int | None
    hugepages: Mapping[str, Pages]
    """By page size in bytes."""
    memory_kind: str | UnsetType = UNSET
    hwloc_local_cpus: CPUs | UnsetType = UNSET
    """The CPUs that hwloc says are local, where these are others."""
    synthetic: bool | UnsetType = UNSET
    """The source names no NUMA node: this one stands for the machine."""


class NUMADistances(Record, frozen=True, kw_only=True):
    """What the firmware says of the distances between NUMA nodes."""

    nodes: Sequence[int]
    name: str | UnsetType = UNSET
    rows: Mapping[str, Sequence[int]]
    """By NUMA node, in the order of ``nodes``."""


class L3Row(Record, frozen=True, kw_only=True):
    """A level 3 cache."""

    cpus: CPUs
    size: int | None
    """Bytes."""
    id: int | None
    """The kernel's."""


class CPUKind(Record, frozen=True, kw_only=True):
    """CPUs of one kind, where a machine has several."""

    kind: int
    cpus: CPUs
    info: Mapping[str, str]


class PCIRow(Record, frozen=True, kw_only=True):
    """A PCI function."""

    address: str
    device_class: int | str | None = field(name="class")
    numa_node: int | None
    local_cpus: CPUs | None
    names: Sequence[str] | UnsetType = UNSET
    """Of the interfaces and disks that it is."""
    physical_function: str | UnsetType = UNSET


class KubeletView(Record, frozen=True, kw_only=True):
    """What a kubelet sees of the machine, through cAdvisor."""

    num_cpus: int
    num_cores: int
    num_sockets: int
    num_numa_nodes: int
    num_uncore_caches: int
    machine_nodes: Sequence[int]
    notes: Sequence[str]
    """Where this differs from the hardware."""


class CPURow(Record, frozen=True, kw_only=True):
    """A CPU; of one that is offline no more is known."""

    cpu: int
    online: bool
    core: int | UnsetType | None = UNSET
    """The lowest CPU of its core."""
    core_id: int | UnsetType | None = UNSET
    """The kernel's."""
    socket: int | UnsetType | None = UNSET
    die: int | UnsetType | None = UNSET
    numa: int | UnsetType | None = UNSET
    l3: int | UnsetType | None = UNSET
    """The lowest CPU that has its level 3 cache."""
    l3_id: int | UnsetType = UNSET
    kind: int | UnsetType = UNSET
    allowed: bool | UnsetType = UNSET
    """Only where it is false: the source may not run there."""
    isolated: bool | UnsetType = UNSET
    """Only where it is true: the kernel was booted with ``isolcpus``."""
    numa_all: Sequence[int] | UnsetType = UNSET
    """The NUMA nodes, where there are several."""
    kubelet_core: int | UnsetType | None = UNSET
    """What the kubelet takes for its core; null for a CPU that it does not see."""
    kubelet_socket: int | UnsetType | None = UNSET
    kubelet_numa: int | UnsetType | None = UNSET
    kubelet_uncore: int | UnsetType | None = UNSET


class Machine(Document, frozen=True, kw_only=True):
    """A machine; absent values are null."""

    name: str
    source: str
    """What told it: ``sysfs``, ``hwloc``, ``cadvisor``..."""
    architecture: str | None
    cpu_model: str | None
    online: CPUs
    offline: CPUs
    isolated: CPUs
    allowed: CPUs | None
    """Where the source may run; null: everywhere."""
    memory_bytes: int | None
    hugepages_machine: Mapping[str, Pages]
    """Of the machine as a whole, by page size in bytes."""
    sockets: Sequence[SocketRow]
    numa: Sequence[NUMARow]
    numa_distances: NUMADistances | None
    l3: Sequence[L3Row]
    cores: Sequence[CPUs]
    cpu_kinds: Sequence[CPUKind]
    pci: Sequence[PCIRow]
    kubelet: KubeletView
    cpus: Sequence[CPURow]
