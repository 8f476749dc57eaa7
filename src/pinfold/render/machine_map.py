"""From a machine (:mod:`pinfold.core.machine.machine`) to a drawing: places, titles, tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pinfold.core.machine.kubelet_view import KubeletView, UnseenMachineError
from pinfold.core.machine.locality import Localities, device_kind
from pinfold.core.machine.machine import CpuKind, Machine
from pinfold.core.values.cpuset import CPUSet, iter_bits
from pinfold.render.boxes import Level, Place
from pinfold.render.node_map import NodeMap, Owner, build_node_map, with_devices
from pinfold.render.topology_view import (
    DeviceRow,
    KindRow,
    NumaRow,
    TopologyView,
    binary_size,
)

_DEVICE_KINDS: Final = ("network", "storage", "display", "accelerator", "co-processor", "other")
_ON_THE_MAP: Final = ("network", "storage", "display", "accelerator", "co-processor")
_NAMES_OF_ONE: Final = 3
"""Names of one function that are shown: an interface, its RDMA device, a bond on it."""


def machine_map(  # noqa: PLR0913 - one name for each thing that a map shows
    machine: Machine,
    owners: Iterable[Owner] = (),
    *,
    unseen: CPUSet | None = None,
    shared: CPUSet | None = None,
    reserved: CPUSet | None = None,
    idle: CPUSet | None = None,
) -> NodeMap:
    """Draw the hardware of a machine, coloured by owner.

    Args:
        machine: the hardware; its offline CPUs are shown, too.
        owners: see :func:`~pinfold.render.node_map.build_node_map`.
        unseen: online CPUs that the kubelet does not see.
        shared: the shared pool.
        reserved: the reserved CPUs.
        idle: siblings that stay idle.

    Raises:
        NodeMapError: a CPU with two owners.
    """
    return build_node_map(
        machine_places(machine, unseen or CPUSet()),
        owners,
        shared=shared,
        reserved=reserved,
        idle=idle,
        details=_details(machine),
        memory_only=[
            f"NUMA node {node.id} · memory only"
            + (f" · {binary_size(node.memory_bytes)}" if node.memory_bytes else "")
            + (f" · {node.memory_kind}" if node.memory_kind else "")
            for node in machine.numa_nodes
            if not node.cpus and node.memory_bytes
        ],
    )


def machine_places(machine: Machine, unseen: CPUSet) -> tuple[Place, ...]:
    """Where each CPU of the machine sits; sockets that the kernel does not number are below 0."""
    nameless = {
        cpu: -1 - at
        for at, socket in enumerate(machine.sockets)
        if socket.id is None
        for cpu in socket.cpus
    }
    kinds = {kind.kind: kind_name(kind, machine) for kind in machine.cpu_kinds}
    return tuple(
        Place(
            cpu=cpu.cpu,
            core=cpu.core,
            l3=cpu.l3,
            numa=cpu.numa,
            socket=nameless.get(cpu.cpu) if cpu.socket is None else cpu.socket,
            kind=kinds.get(-1 if cpu.kind is None else cpu.kind),
            online=cpu.online,
            isolated=cpu.isolated,
            seen=cpu.cpu not in unseen,
        )
        for cpu in machine.cpus
    )


def kind_name(kind: CpuKind, machine: Machine) -> str:
    """``performance`` and ``efficiency`` where there are two kinds, else a number."""
    ranks = sorted(other.kind for other in machine.cpu_kinds)
    if len(ranks) == 2:
        return "efficiency" if kind.kind == ranks[0] else "performance"
    return f"kind {kind.kind}"


def topology_view(machine: Machine, view: KubeletView | UnseenMachineError) -> TopologyView:
    """Everything that ``pinfold topology`` shows of a machine.

    ``view`` is the kubelet's, or why it sees no CPU.
    """
    distances = machine.distances
    facts = (
        ("sockets", len(machine.sockets)),
        ("NUMA nodes", len(machine.numa_nodes)),
        ("cores", len(machine.cores)),
        ("CPUs", len(machine.online)),
        ("L3 caches", len(machine.l3)),
    )
    return TopologyView(
        title=machine.cpu_model or machine.name,
        node_map=with_devices(machine_map(machine, unseen=view.unseen), _devices_at(machine)),
        facts=tuple((name, str(count)) for name, count in facts if count),
        numa=tuple(
            NumaRow(
                node.id,
                node.cpus,
                node.memory_bytes or 0,
                {size: (pool.total, pool.free) for size, pool in node.hugepages.items()},
                node.memory_kind or "",
            )
            for node in machine.numa_nodes
        ),
        distance_nodes=distances.nodes if distances else (),
        distances={node: row for node, row in distances.rows.items() if row} if distances else {},
        kinds=tuple(
            KindRow(kind_name(kind, machine).capitalize(), kind.cpus) for kind in machine.cpu_kinds
        ),
        offline=machine.offline,
        isolated=machine.isolated,
        nohz_full=machine.nohz_full,
        rcu_nocbs=machine.rcu_nocbs,
        unseen=view.unseen,
        kubelet_notes=view.notes,
        devices=device_rows(machine),
    )


def device_rows(machine: Machine) -> tuple[DeviceRow, ...]:
    """The PCI devices by node and kind; those of which nobody knows where they are come last."""
    localities = Localities.of(machine)
    names: dict[tuple[int, str], list[str]] = {}
    virtual: dict[tuple[int, str], int] = {}
    for function in machine.pci:
        row = (localities.place(function) or 0, device_kind(function.device_class))
        names.setdefault(row, [])
        if function.physical_function is not None:
            virtual[row] = virtual.get(row, 0) + 1
        else:
            shown = "/".join(function.names[:_NAMES_OF_ONE])
            more = "/..." if len(function.names) > _NAMES_OF_ONE else ""
            names[row].append(f"{shown}{more}" or function.address)
    # Devices with names first: nobody can say much about bare addresses.
    return tuple(
        DeviceRow(
            _place_name(nodes),
            kind,
            tuple(sorted(names[nodes, kind], key=lambda name: name[:1].isdecimal())),
            virtual.get((nodes, kind), 0),
        )
        for nodes, kind in sorted(names, key=_device_order)
    )


def _devices_at(machine: Machine) -> dict[int, list[str]]:
    """What is told of devices on the map: those that are near one NUMA node alone."""
    nodes = {f"node {node.id}": node.id for node in machine.numa_nodes}
    told: dict[int, list[str]] = {}
    for row in device_rows(machine):
        if row.place in nodes and row.kind in _ON_THE_MAP:
            named = [name for name in row.names if not name[:1].isdecimal()] or list(row.names)
            more = len(row.names) - len(named[:_NAMES_OF_ONE])
            text = ", ".join(named[:_NAMES_OF_ONE]) + (f" and {more} more" if more else "")
            told.setdefault(nodes[row.place], []).append(f"{row.kind} {text}")
    return told


def _device_order(row: tuple[int, str]) -> tuple[bool, list[int], int]:
    nodes, kind = row
    return nodes == 0, list(iter_bits(nodes)), _DEVICE_KINDS.index(kind)


def _place_name(nodes: int) -> str:
    if nodes == 0:
        return "unknown"
    ids = list(iter_bits(nodes))
    return f"node{'s' * (len(ids) > 1)} {','.join(map(str, ids))}"


def _details(machine: Machine) -> Mapping[tuple[Level, int], str]:
    details = {
        (Level.NUMA, node.id): binary_size(node.memory_bytes)
        for node in machine.numa_nodes
        if node.memory_bytes
    }
    for cache in machine.l3:
        if cache.size and cache.cpus:
            details[Level.L3, min(cache.cpus)] = binary_size(cache.size)
    return details
