"""What of a node's memory and devices is in use, by NUMA node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from pinfold.admission.admission import NodeState
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.table import in_natural_order
from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.memory.memory import MemoryTable, NUMANodeState, default_machine_state
from pinfold.core.memory.reservation import node_memory
from pinfold.core.pod.pod import MEMORY


class MemoryUse(Struct, frozen=True):
    """One kind of memory of one NUMA node, in bytes.

    ``total`` is what the node has, ``reserved`` what is kept from pods (``reservedMemory``),
    ``allocatable`` what pods may have, ``used`` what Guaranteed ones were given of it, ``free``
    the rest.  Memory in huge pages counts in the total of ``memory``, too.  All but the total are
    None where nobody keeps books by NUMA node (memory manager policy None).
    """

    type: str
    total: int
    reserved: int | None = None
    allocatable: int | None = None
    used: int | None = None
    free: int | None = None


class DeviceUse(Struct, frozen=True):
    """Devices of one resource: how many there are, may be given away, are in use, are free."""

    resource: str
    total: int
    allocatable: int
    used: int
    free: int


class NUMANodeUse(Struct, frozen=True):
    """One NUMA node.

    ``group`` are the nodes that containers use it together with, itself among them; a device that
    is near several nodes counts at each of them.
    """

    id: int
    group: tuple[int, ...]
    memory: tuple[MemoryUse, ...]
    devices: tuple[DeviceUse, ...]


def numa_use(view: KubeletView, state: NodeState) -> tuple[NUMANodeUse, ...]:
    """The NUMA nodes that a kubelet sees, in the order of their numbers."""
    booked = state.memory is not None
    machine = (
        default_machine_state(node_memory(view)) if state.memory is None else (state.memory.machine)
    )
    return tuple(
        NUMANodeUse(
            id_,
            tuple(sorted(node.cells or (id_,))),
            tuple(_memory(node, booked=booked)),
            tuple(
                _devices(state, resource, (d for d in devices if id_ in d.numa_nodes))
                for resource, devices in _located(state)
            ),
        )
        for id_, node in sorted(machine.items())
    )


def device_use(state: NodeState) -> tuple[DeviceUse, ...]:
    """All devices of each resource, wherever they are."""
    return tuple(
        _devices(state, resource, resource.devices.values())
        for _, resource in sorted(state.devices.inventory.items())
    )


def unlocated_devices(state: NodeState) -> tuple[DeviceUse, ...]:
    """Those of which nobody says at which NUMA node they are."""
    found = (
        _devices(state, resource, (d for d in resource.devices.values() if not d.numa_nodes))
        for _, resource in sorted(state.devices.inventory.items())
    )
    return tuple(use for use in found if use.total)


def free_devices(state: NodeState, resource: str) -> list[str]:
    """The ids of devices that may still be given away, in natural order."""
    listed = state.devices.inventory.get(resource)
    if listed is None or not listed.connected:
        return []
    used = state.devices.in_use(resource)
    return in_natural_order(d.id for d in listed.devices.values() if d.healthy and d.id not in used)


def _located(state: NodeState) -> list[tuple[DeviceResource, list[Device]]]:
    """The resources of which any device names a NUMA node, with those that do."""
    found = (
        (resource, [device for device in resource.devices.values() if device.numa_nodes])
        for _, resource in sorted(state.devices.inventory.items())
    )
    return [(resource, devices) for resource, devices in found if devices]


def _memory(node: NUMANodeState, *, booked: bool) -> Iterator[MemoryUse]:
    tables = node.memory_map or {}
    for name in sorted(tables, key=lambda name: (name != MEMORY, len(name), name)):
        table = tables[name] or MemoryTable()
        if not booked:
            yield MemoryUse(name, table.total)
            continue
        yield MemoryUse(
            name,
            table.total,
            table.system_reserved,
            table.allocatable,
            table.reserved,
            table.free,
        )


def _devices(state: NodeState, resource: DeviceResource, devices: Iterable[Device]) -> DeviceUse:
    in_use = state.devices.in_use(resource.name)
    total = allocatable = used = free = 0
    for device in devices:
        total += 1
        healthy = device.healthy and resource.connected
        allocatable += healthy
        used += device.id in in_use
        free += healthy and device.id not in in_use
    return DeviceUse(resource.name, total, allocatable, used, free)
