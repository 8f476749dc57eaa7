"""The devices of a node as others are told of them: those that can be given, and those in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from pinfold.core.devices.devices import Device, DeviceInventory, DeviceResource
from pinfold.core.devices.state import DeviceState


class NodeDevices(Struct, frozen=True):
    """What there is: the healthy ones, and whatever pods have.

    ``in_use`` is by raw name; whoever is in use is in the inventory, too.
    """

    inventory: DeviceInventory
    in_use: Mapping[str, frozenset[str]]


def devices_of_state(state: DeviceState) -> NodeDevices:
    """The devices of a node that has device plugins."""
    # Also of plugins that have not registered again.
    pods = state.allocations.pods.values()
    named = {name for pod in pods for container in pod.values() for name in container}
    healthy = {
        name: [one for one in listed.devices.values() if one.healthy]
        for name, listed in state.inventory.items()
        if listed.connected
    }
    taken = [(name, _listed(state, name, state.in_use(name))) for name in sorted(named)]
    return _of(healthy, taken)


def devices_of_kubelet(
    allocatable: Mapping[str, Iterable[Device]],
    containers: Iterable[Mapping[str, Iterable[Device]]],
) -> NodeDevices:
    """The devices of a kubelet: those that it may give, and those of its containers."""
    return _of(allocatable, [pair for devices in containers for pair in devices.items()])


def _listed(state: DeviceState, resource: str, ids: Iterable[str]) -> list[Device]:
    known = state.last_listed(resource)
    return [known.get(id_) or Device(id_) for id_ in ids]


def _of(
    healthy: Mapping[str, Iterable[Device]], taken: Iterable[tuple[str, Iterable[Device]]]
) -> NodeDevices:
    found = {name: {one.id: one for one in devices} for name, devices in healthy.items()}
    used: dict[str, set[str]] = {}
    for name, devices in taken:
        for one in devices:
            # Of one that is both the kubelet tells the same; of one that is not, this is all.
            found.setdefault(name, {}).setdefault(one.id, one)
            used.setdefault(name, set()).add(one.id)
    return NodeDevices(
        {name: DeviceResource(name, devices) for name, devices in found.items() if devices},
        {name: frozenset(ids) for name, ids in used.items()},
    )
