"""A machine from hwloc XML.

What hwloc cannot know: which node directories the kernel has (a node without CPUs is given the
CPUs nearest to it), free hugepages, isolated CPUs, and what cAdvisor reads; the kubelet's view
is derived from the hardware alone, without ids of uncore caches.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Final

from msgspec import Struct

from pinfold.adapters.machines.hwloc_xml import (
    HwlocCpuKind,
    HwlocDistances,
    HwlocObject,
    HwlocTopology,
    read_hwloc_xml,
)
from pinfold.core.machine.machine import (
    CpuKind,
    Distances,
    HugepagePool,
    Hugepages,
    Machine,
    MachineError,
    NUMANode,
    PCIFunction,
)
from pinfold.core.machine.rows import CacheFacts, CpuRow, group_rows
from pinfold.core.values.cpuset import MAX_CPU, CPUSet, CPUSetError

SOURCE: Final = "hwloc-xml"
_UNIFIED_OR_DATA: Final = ("0", "1")
_PCI_CLASSES: Final = ("01", "02", "03", "12", "0b40")
"""Storage, network, display, accelerators; and co-processors."""

_NAME = re.compile(r"[\w.\-@:!]{1,64}", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_MAX_BYTES: Final = 1 << 63


class _Sets(Struct, frozen=True):
    online: int
    present: int
    allowed: CPUSet | None
    pus: tuple[HwlocObject, ...]
    """Of the online CPUs."""


def machine_from_hwloc(data: bytes, *, name: str, file: str | None = None) -> Machine:
    """Read hwloc XML, version 2.x or 3.0; ``file`` is its name for messages, else ``name``.

    Online CPUs are those of the Machine's ``cpuset``; those of its ``complete_cpuset`` alone are
    offline.  A level 3 cache counts if it is unified or for data.

    Raises:
        MachineError: no hwloc XML of a known version, or values that cannot be one machine.
    """
    file = file or name
    topology = read_hwloc_xml(data, name=file)
    try:
        return _machine(topology, name)
    except CPUSetError as error:
        raise MachineError(f"{file}: {error}; export it again with: lstopo file.xml") from error
    except MachineError as error:
        raise MachineError(f"{file}: {error}") from error


def _machine(topology: HwlocTopology, name: str) -> Machine:
    root = topology.objects[0]
    if root.kind != "Machine":
        raise MachineError(
            f"the first object is a {root.kind[:20]!r}, not a Machine; export the whole machine"
        )
    sets = _sets(root, [thing for thing in topology.objects if thing.kind == "PU"])
    nodes = _numa_nodes(topology, sets)
    numa_of: dict[int, tuple[int, ...]] = {}
    for node in nodes:
        for cpu in node.cpus:
            numa_of[cpu] = (*numa_of.get(cpu, ()), node.id)
    kinds = _cpu_kinds(topology.cpu_kinds, sets)
    kind_of = {cpu: kind.kind for kind in kinds for cpu in kind.cpus}
    caches: dict[Hashable, CacheFacts] = {}
    rows = [_row(pu, caches, numa_of, kind_of, sets) for pu in sets.pus]
    groups = group_rows(rows, offline=CPUSet.from_mask(sets.present & ~sets.online), caches=caches)
    infos = topology.infos | root.infos
    package = next((o for o in topology.objects if "CPUModel" in o.infos), root)
    return Machine(
        name=name,
        source=SOURCE,
        cpus=groups.cpus,
        numa_nodes=nodes,
        sockets=groups.sockets,
        cores=groups.cores,
        l3=groups.l3,
        distances=_distances(topology.distances, nodes),
        cpu_kinds=kinds,
        architecture=infos.get("Architecture"),
        cpu_model=package.infos.get("CPUModel"),
        memory_bytes=sum(node.memory_bytes or 0 for node in nodes),
        hugepages=_sum_pools(nodes),
        pci=_pci(topology, sets),
        allowed=sets.allowed,
    )


def _sets(root: HwlocObject, pus: list[HwlocObject]) -> _Sets:
    claimed = _cpu_mask(root, "cpuset")
    if claimed is None:
        raise MachineError("the Machine has no cpuset; export it again with: lstopo file.xml")
    online = 0
    found: list[HwlocObject] = []
    for pu in pus:
        cpu = _index(pu)
        if cpu is None or not 0 <= cpu <= MAX_CPU:
            raise MachineError(f"a PU has the os_index {pu.attributes.get('os_index')!r}")
        if claimed >> cpu & 1:
            online |= 1 << cpu
            found.append(pu)
    if online != claimed:
        raise MachineError(
            f"CPUs {CPUSet.from_mask(claimed & ~online)} of the Machine's cpuset have no PU; "
            "the file is incomplete, export it again with: lstopo file.xml"
        )
    allowed = _cpu_mask(root, "allowed_cpuset")
    return _Sets(
        online=online,
        present=online | (_cpu_mask(root, "complete_cpuset") or 0),
        allowed=None if allowed is None else CPUSet.from_mask(allowed & online),
        pus=tuple(found),
    )


def _row(
    pu: HwlocObject,
    caches: dict[Hashable, CacheFacts],
    numa_of: Mapping[int, tuple[int, ...]],
    kind_of: Mapping[int, int],
    sets: _Sets,
) -> CpuRow:
    cpu = int(pu.attributes["os_index"])
    core = package = die = l3 = None
    for above in pu.ancestors():
        if above.kind == "Core":
            core = core or above
        elif above.kind == "Package":
            package = package or above
        elif above.kind == "Die":
            die = die or above
        elif (
            above.kind == "L3Cache" and above.attributes.get("cache_type", "0") in _UNIFIED_OR_DATA
        ):
            l3 = l3 or above
    if l3 is not None and id(l3) not in caches:
        size = _number(l3, "cache_size")
        caches[id(l3)] = CacheFacts(size=size, id=_index(l3))
    return CpuRow(
        cpu,
        core=("no core", cpu) if core is None else id(core),
        package=None if package is None else id(package),
        l3=None if l3 is None else id(l3),
        core_id=_index(core),
        socket=_index(package),
        die=_index(die),
        numa=numa_of.get(cpu, ()),
        kind=kind_of.get(cpu),
        allowed=sets.allowed is None or cpu in sets.allowed,
    )


def _numa_nodes(topology: HwlocTopology, sets: _Sets) -> tuple[NUMANode, ...]:
    nodes: dict[int, NUMANode] = {}
    for thing in topology.objects:
        if thing.kind != "NUMANode":
            continue
        node = _index(thing)
        if node is None or node < 0:
            raise MachineError(f"a NUMANode has the os_index {thing.attributes.get('os_index')!r}")
        if node in nodes:
            raise MachineError(f"NUMANode {node} appears twice")
        nodes[node] = NUMANode(
            node,
            CPUSet.from_mask((_cpu_mask(thing, "cpuset") or 0) & sets.online),
            memory_bytes=_number(thing, "local_memory") or 0,
            hugepages=_pools(thing),
            memory_kind=thing.attributes.get("subtype"),
        )
    if not nodes:
        raise MachineError("no NUMANode in it; export the whole machine, without --ignore")
    return tuple(nodes[node] for node in sorted(nodes))


def _pools(node: HwlocObject) -> Hugepages:
    pools: dict[int, int] = {}
    for size, count in node.pages:
        if _NUMBER.fullmatch(size) is None or _NUMBER.fullmatch(count) is None:
            raise MachineError(f"{node}: page_type of size {size[:20]!r}, count {count[:20]!r}")
        pools[int(size)] = int(count)
    # hwloc counts ordinary pages too: the smallest size.  It does not know which are free.
    return {size: HugepagePool(total=pools[size], free=pools[size]) for size in sorted(pools)[1:]}


def _sum_pools(nodes: tuple[NUMANode, ...]) -> Hugepages:
    total: dict[int, int] = {}
    for node in nodes:
        for size, pool in node.hugepages.items():
            total[size] = total.get(size, 0) + pool.total
    return {size: HugepagePool(count, count) for size, count in total.items()}


def _cpu_kinds(kinds: list[HwlocCpuKind], sets: _Sets) -> tuple[CpuKind, ...]:
    """The kinds in the file's order, hwloc's own ranking by efficiency; none if all are alike."""
    masks: list[tuple[int, Mapping[str, str]]] = []
    for kind in kinds:
        mask = CPUSet.parse_hex(kind.attributes.get("cpuset", "")).mask & sets.online
        if mask:
            masks.append((mask, kind.infos))
    if len(masks) < 2:
        return ()
    return tuple(
        CpuKind(index, CPUSet.from_mask(mask), dict(infos))
        for index, (mask, infos) in enumerate(masks)
    )


def _distances(found: list[HwlocDistances], nodes: tuple[NUMANode, ...]) -> Distances | None:
    """The NUMA latencies; bandwidths and matrices over other objects are no distances."""
    known = {node.id for node in nodes}
    for matrix in found:
        name = matrix.attributes.get("name")
        if matrix.attributes.get("type") != "NUMANode" or name not in (None, "NUMALatency"):
            continue
        if matrix.attributes.get("indexing", "os") != "os":
            continue
        count = len(matrix.indexes)
        words = matrix.indexes + matrix.values
        if len(matrix.values) != count * count or not all(map(_NUMBER.fullmatch, words)):
            raise MachineError(
                f"the NUMA distances have {len(matrix.values)} values for {count} nodes, "
                "or values that are no numbers"
            )
        ids = tuple(int(index) for index in matrix.indexes)
        if len(set(ids)) != count or not set(ids) <= known:
            raise MachineError("the NUMA distances name a node twice or one that is not there")
        values = tuple(int(value) for value in matrix.values)
        return Distances(
            ids,
            {node: values[i * count : (i + 1) * count] for i, node in enumerate(ids)},
            name=name,
        )
    return None


def _pci(topology: HwlocTopology, sets: _Sets) -> tuple[PCIFunction, ...]:
    functions: list[PCIFunction] = []
    names = _names(topology)
    for thing in topology.objects:
        device_class = thing.attributes.get("pci_type", "")[:4]
        if thing.kind != "PCIDev" or not device_class.startswith(_PCI_CLASSES):
            continue
        # I/O objects have no sets of their own: they are where the first parent with one is.
        near = next((o for o in thing.ancestors() if "cpuset" in o.attributes), None)
        cpus = (_cpu_mask(near, "cpuset") or 0) & sets.online if near else sets.online
        nodes = CPUSet.parse_hex(near.attributes.get("nodeset", "")) if near else CPUSet()
        functions.append(
            PCIFunction(
                address=thing.attributes.get("pci_busid", ""),
                device_class=f"0x{device_class}",
                numa_node=next(iter(nodes)) if len(nodes) == 1 else -1,
                local_cpus=CPUSet.from_mask(cpus),
                names=tuple(names.get(id(thing), ())),
            )
        )
    return tuple(sorted(functions, key=lambda function: function.address))


def _names(topology: HwlocTopology) -> Mapping[int, list[str]]:
    """The names of the OS devices of each PCI device, by the identity of its object."""
    names: dict[int, list[str]] = {}
    for thing in topology.objects:
        name = thing.attributes.get("name", "")
        if thing.kind == "OSDev" and _NAME.fullmatch(name):
            device = next((o for o in thing.ancestors() if o.kind == "PCIDev"), None)
            if device is not None and name not in names.setdefault(id(device), []):
                names[id(device)].append(name)
    return names


def _cpu_mask(thing: HwlocObject, attribute: str) -> int | None:
    text = thing.attributes.get(attribute)
    if text is None:
        return None
    try:
        return CPUSet.parse_hex(text).mask
    except CPUSetError as error:
        raise MachineError(f"{attribute} of {thing}: {error}") from error


def _index(thing: HwlocObject | None) -> int | None:
    text = None if thing is None else thing.attributes.get("os_index")
    if thing is None or text is None:
        return None
    if _NUMBER.fullmatch(text) is None:
        raise MachineError(f"os_index {text[:20]!r} of a {thing.kind[:20]} is no number")
    # hwloc prints an unknown index as -1 or as the same in 32 unsigned bits.
    return None if int(text) in (-1, 0xFFFFFFFF) else int(text)


def _number(thing: HwlocObject, attribute: str) -> int | None:
    text = thing.attributes.get(attribute)
    if text is None:
        return None
    if _NUMBER.fullmatch(text) is None or not 0 <= int(text) < _MAX_BYTES:
        raise MachineError(f"{attribute} of {thing} is {text[:20]!r}, no size in bytes")
    return int(text)
