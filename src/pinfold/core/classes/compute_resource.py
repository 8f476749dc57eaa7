"""Compute resources: how many of a node's resources are alike, and by what they are known.

Source: the design proposal "New Resource API" (kubernetes/community#782), ``ComputeResource``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.machine.machine import Machine
from pinfold.core.values.names import LONGEST_SUBDOMAIN
from pinfold.core.values.quantity import Format, Quantity

KIND: Final = "Kind"
RESOURCE_NAME: Final = "resourceName"
NODE_NAME: Final = "nodeName"
NUMA_NODE: Final = "numaNode"
PART: Final = "pinfold.dev/part"
"""Tells those apart that are alike and more than one object may name."""

MOST_DEVICES: Final = 4096
"""The devices of one compute resource."""

Properties = Mapping[str, str]
"""What is said of a resource: key -> value."""

NO_PROPERTIES: Final[Properties] = MappingProxyType({})

_HASH_BYTES: Final = 8
_UNFIT: Final = re.compile(r"[^a-z0-9.]")
_EDGES: Final = re.compile(r"-*\.[-.]*")


class ComputeResource(Struct, frozen=True):
    """Resources that are alike: of one node, under one raw name, with the same properties.

    Attributes:
        name: the object's name; see :func:`compute_resource_name`.
        node_name: the node that has them; "" where they belong to no node (cluster level).
        resource_name: the raw name, such as ``nvidia.com/gpu``.
        properties: what they have in common, without what :func:`common_properties` adds.
        capacity: how many there are, bytes of memory; None where nobody says.
        devices: the ids of the devices; empty for all that the node lists under the raw name.
    """

    name: str
    node_name: str
    resource_name: str
    properties: Properties = NO_PROPERTIES
    capacity: Quantity | None = None
    devices: tuple[str, ...] = ()

    @property
    def all_properties(self) -> Properties:
        """What selectors see."""
        return common_properties(self.node_name, self.resource_name, self.properties)


def common_properties(node_name: str, resource_name: str, own: Properties) -> Properties:
    """The properties that every compute resource has, under those that are its own.

    >>> dict(common_properties("n1", "nvidia.com/gpu", {"memory": "8G"}))["Kind"]
    'nvidia-gpu'
    """
    found = {KIND: kind_of(resource_name), RESOURCE_NAME: resource_name}
    if node_name:
        found[NODE_NAME] = node_name
    return {**found, **own}


def kind_of(resource_name: str) -> str:
    """The property ``Kind`` of who says none: the vendor and the name.

    >>> kind_of("nvidia.com/gpu"), kind_of("cpu")
    ('nvidia-gpu', 'cpu')
    """
    domain, slash, name = resource_name.rpartition("/")
    return f"{domain.split('.')[0]}-{name}" if slash else name


def compute_resource_name(node_name: str, resource_name: str, properties: Properties) -> str:
    """``nodeName-resourceName-propertyHash``: the same for the same, and different otherwise.

    It is a DNS subdomain: a slash, and whatever else no subdomain has, becomes a dash, and what
    is too long is cut.  The hash is of everything as it was, also of what was changed or cut.

    >>> compute_resource_name("node-1", "nvidia.com/gpu", {"memory": "8G"})
    'node-1-nvidia.com-gpu-3771e72a5c32722a'
    """
    text = json.dumps([node_name, resource_name, sorted(properties.items())])
    hashed = hashlib.sha256(text.encode()).hexdigest()[: 2 * _HASH_BYTES]
    plain = "-".join(filter(None, (node_name, resource_name)))
    shown = _EDGES.sub(".", _UNFIT.sub("-", plain.lower()))
    shown = shown[: LONGEST_SUBDOMAIN - len(hashed) - 1].strip("-.")
    return f"{shown}-{hashed}" if shown else hashed


def device_resources(
    node_name: str, resources: Mapping[str, Mapping[str, Properties]]
) -> Iterator[ComputeResource]:
    """Yield one compute resource for all devices that are alike, or more where it would be full.

    Args:
        node_name: the node.
        resources: raw name -> device id -> its own properties.
    """
    for resource, devices in sorted(resources.items()):
        alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
        for id_, own in devices.items():
            alike.setdefault(tuple(sorted(own.items())), []).append(id_)
        for properties, ids in sorted(alike.items()):
            for part, at in enumerate(range(0, len(ids), MOST_DEVICES)):
                some = ids[at : at + MOST_DEVICES]
                said = dict(properties) | ({PART: str(part + 1)} if part else {})
                yield _made(node_name, resource, said, Quantity(len(some)), some)


def machine_resources(node_name: str, machine: Machine) -> Iterator[ComputeResource]:
    """Yield what a machine has beside devices: its CPUs, its NUMA nodes and their huge pages.

    Huge pages are told by NUMA node where the machine is, else in all.  Memory is in bytes.
    """
    cpus = sum(one.online for one in machine.cpus)
    sockets = {one.socket for one in machine.cpus}
    properties = {
        KIND: "cpu",
        "sockets": str(len(sockets)),
        "numaNodes": str(len(machine.numa_nodes)),
    }
    yield _made(node_name, "cpu", properties, Quantity(cpus))
    for node in machine.numa_nodes:
        where = {NUMA_NODE: str(node.id)}
        if node.memory_bytes is not None:
            own = {KIND: "numa-node", "cpus": str(len(node.cpus)), **where}
            yield _made(node_name, "memory", own, _bytes(node.memory_bytes))
    pools = [
        (size, {NUMA_NODE: str(node.id)}, pool.total)
        for node in machine.numa_nodes
        for size, pool in sorted(node.hugepages.items())
    ] or [(size, dict[str, str](), pool.total) for size, pool in sorted(machine.hugepages.items())]
    for size, where, total in pools:
        page = _bytes(size)
        own = {KIND: "hugepages", "size": str(page), **where}
        yield _made(node_name, f"hugepages-{page}", own, _bytes(size * total))


def _bytes(number: int) -> Quantity:
    return Quantity(number, 0, Format.BINARY_SI)


def _made(
    node_name: str,
    resource: str,
    own: Properties,
    capacity: Quantity,
    devices: Iterable[str] = (),
) -> ComputeResource:
    name = compute_resource_name(node_name, resource, own)
    return ComputeResource(name, node_name, resource, own, capacity, tuple(devices))
