"""The devices of a node of which no plugin is asked: as compute resources tell of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from pinfold.core.classes.compute_resource import MOST_DEVICES, NUMA_NODE, ComputeResource
from pinfold.core.classes.placing import count_of
from pinfold.core.classes.resource_class import ResourceClass
from pinfold.core.devices.classes import DeviceClasses
from pinfold.core.devices.devices import Device, DeviceInventory, DeviceResource
from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.values.resource_names import is_extended


def node_devices(
    node: str, listed: DeviceInventory, described: Iterable[ComputeResource], view: KubeletView
) -> DeviceInventory:
    """The devices of a node: those that are listed, and of other names those that are described.

    A property ``numaNode`` says where they are.
    """
    found: dict[str, dict[str, Device]] = {}
    for one in _with_ids(node, described):
        name = one.resource_name
        if is_extended(name) and name not in listed:
            numa = tuple(_numa(one, view))
            there = found.setdefault(name, {})
            for id_ in one.devices:
                there.setdefault(id_, Device(id_, numa_nodes=numa))
    made = {name: DeviceResource(name, devices) for name, devices in found.items()}
    return {**listed, **made} if made else listed


def node_resources(
    node: str,
    devices: DeviceInventory,
    classes: tuple[ResourceClass, ...],
    described: Iterable[ComputeResource],
) -> Iterator[ComputeResource]:
    """Yield what the node's agent would publish of its devices."""
    own = tuple(_with_ids(node, described))
    return DeviceClasses.of(classes, own, node).compute_resources(devices)


def _with_ids(node: str, described: Iterable[ComputeResource]) -> Iterator[ComputeResource]:
    """Those of a node; where it is only said how many there are, they are called by its name."""
    for one in described:
        if one.node_name != node:
            continue
        count = 0 if one.devices else min(count_of(one), MOST_DEVICES)
        made = tuple(f"{one.name}-{number}" for number in range(count))
        yield replace(one, devices=made) if made else one


def _numa(one: ComputeResource, view: KubeletView) -> Iterator[int]:
    said = one.properties.get(NUMA_NODE, "")
    if said.isascii() and said.isdecimal() and int(said) in view.numa_nodes:
        yield int(said)
