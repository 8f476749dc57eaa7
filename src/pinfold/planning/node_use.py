"""What of a node's memory and devices is in use, by NUMA node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pinfold.admission.admission import NodeState
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.table import in_natural_order
from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.memory.memory import MemoryTable, NUMANodeState, default_machine_state
from pinfold.core.memory.reservation import node_memory
from pinfold.core.pod.pod import MEMORY
from pinfold.documents.plan import DeviceCounts, MemoryUse, PlannedNUMANode

DeviceUse = Mapping[str, DeviceCounts]
"""By extended resource, in the order of their names."""


def numa_use(view: KubeletView, state: NodeState) -> tuple[PlannedNUMANode, ...]:
    """The NUMA nodes that a kubelet sees, in the order of their numbers.

    A device that is near several nodes counts at each of them.
    """
    booked = state.memory is not None
    machine = (
        default_machine_state(node_memory(view)) if state.memory is None else (state.memory.machine)
    )
    return tuple(
        PlannedNUMANode(
            id=id_,
            group=sorted(node.cells or (id_,)),
            memory=tuple(_memory(node, booked=booked)),
            devices={
                resource.name: _devices(
                    state, resource, (d for d in devices if id_ in d.numa_nodes)
                )
                for resource, devices in _located(state)
            },
        )
        for id_, node in sorted(machine.items())
    )


def device_use(state: NodeState) -> DeviceUse:
    """All devices of each resource, wherever they are."""
    return {
        name: _devices(state, resource, resource.devices.values())
        for name, resource in sorted(state.devices.inventory.items())
    }


def class_use(state: NodeState) -> DeviceUse:
    """The devices of each class, by the name of its resource."""
    found = {}
    for name, members in sorted(state.devices.members().items()):
        counts = [
            _devices(state, listed, (listed.devices[id_] for id_ in ids))
            for resource, ids in members.items()
            if (listed := state.devices.inventory.get(resource)) is not None
        ]
        found[name] = DeviceCounts(
            total=sum(one.total for one in counts),
            allocatable=sum(one.allocatable for one in counts),
            used=sum(one.used for one in counts),
            free=sum(one.free for one in counts),
        )
    return found


def unlocated_devices(state: NodeState) -> DeviceUse:
    """Those of which nobody says at which NUMA node they are."""
    found = {
        name: _devices(state, resource, (d for d in resource.devices.values() if not d.numa_nodes))
        for name, resource in sorted(state.devices.inventory.items())
    }
    return {name: counts for name, counts in found.items() if counts.total}


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
        yield MemoryUse(
            type=name,
            total=table.total,
            reserved=table.system_reserved if booked else None,
            allocatable=table.allocatable if booked else None,
            used=table.reserved if booked else None,
            free=table.free if booked else None,
        )


def _devices(state: NodeState, resource: DeviceResource, devices: Iterable[Device]) -> DeviceCounts:
    in_use = state.devices.in_use(resource.name)
    total = allocatable = used = free = 0
    for device in devices:
        total += 1
        healthy = device.healthy and resource.connected
        allocatable += healthy
        used += device.id in in_use
        free += healthy and device.id not in in_use
    return DeviceCounts(total=total, allocatable=allocatable, used=used, free=free)
