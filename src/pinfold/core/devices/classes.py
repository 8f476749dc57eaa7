"""Which devices of a node can be asked for by which class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.classes.compute_resource import (
    NUMA_NODE,
    ComputeResource,
    Properties,
    device_resources,
)
from pinfold.core.classes.names import class_of, class_resource
from pinfold.core.classes.resource_class import ResourceClass, classes_of
from pinfold.core.devices.devices import DeviceInventory

Members = Mapping[str, Mapping[str, frozenset[str]]]
"""Class resource -> raw resource -> the ids of the devices that may be given for it."""

_NO_CLASSES: Final[Mapping[str, ResourceClass]] = MappingProxyType({})


class DeviceClasses(Struct, frozen=True):
    """The classes that a node knows, and what is said of its devices besides.

    Attributes:
        classes: by the name of the resource that pods ask for.
        described: the properties of devices, which no plugin tells; later ones win.
        node_name: the node's name: what is said of others is none of its business.
    """

    classes: Mapping[str, ResourceClass] = _NO_CLASSES
    described: tuple[ComputeResource, ...] = ()
    node_name: str = ""

    @classmethod
    def of(
        cls,
        classes: tuple[ResourceClass, ...],
        described: tuple[ComputeResource, ...] = (),
        node_name: str = "",
    ) -> DeviceClasses:
        """The classes by the names of their resources."""
        return cls(
            MappingProxyType({class_resource(one.name): one for one in classes}),
            described,
            node_name,
        )

    @classmethod
    def on_node(
        cls,
        classes: tuple[ResourceClass, ...],
        described: tuple[ComputeResource, ...],
        machine_name: str,
    ) -> DeviceClasses:
        """The classes of a machine of which nobody says which node it is.

        It is the one of its name, else the only one of which compute resources are there.
        """
        if not classes and not described:
            return NO_CLASSES
        nodes = {one.node_name for one in described} - {""}
        alone = next(iter(nodes)) if len(nodes) == 1 else ""
        return cls.of(classes, described, machine_name if machine_name in nodes else alone)

    @property
    def names(self) -> frozenset[str]:
        """The short names of the classes."""
        return frozenset(one.name for one in self.classes.values())

    def get(self, resource: str) -> ResourceClass | None:
        """The class that a pod asks for by this name; None where it is no class's, or unknown."""
        return None if class_of(resource) is None else self.classes.get(resource)

    def leaves_out(self, resource: str) -> bool:
        """Whether nobody on a node has to do with it: it is of a class of the cluster level."""
        one = self.get(resource)
        return one is not None and one.is_cluster_level

    def compute_resources(self, inventory: DeviceInventory) -> Iterator[ComputeResource]:
        """Yield the node's devices, those together that are alike."""
        return device_resources(
            self.node_name,
            {name: dict(self._properties(name, inventory)) for name in inventory},
        )

    def members(self, inventory: DeviceInventory) -> Members:
        """The devices of each class; a class of this node without any has an empty mapping."""
        found: dict[str, dict[str, frozenset[str]]] = {
            name: {} for name, one in self.classes.items() if not one.is_cluster_level
        }
        if not found:
            return found
        every = [one for one in self.classes.values() if not one.is_cluster_level]
        for one in self.compute_resources(inventory):
            for winner in classes_of(every, one.all_properties):
                devices = found[class_resource(winner.name)]
                before = devices.get(one.resource_name, frozenset())
                devices[one.resource_name] = before | frozenset(one.devices)
        return found

    def outranked(self, inventory: DeviceInventory) -> Iterator[tuple[ResourceClass, str, int]]:
        """Yield each class that selects devices which classes of higher priority have.

        With it the name of the first of those, and how many devices it is about.
        """
        every = [one for one in self.classes.values() if not one.is_cluster_level]
        lost: list[tuple[str, str, int]] = []
        for one in self.compute_resources(inventory):
            winners = classes_of(every, one.all_properties)
            lost += [
                (beaten.name, winners[0].name, len(one.devices))
                for beaten in every
                if beaten not in winners and beaten.matches(one.all_properties)
            ]
        for (name, winner), some in groupby(sorted(lost), lambda row: row[:2]):
            count = sum(row[2] for row in some)
            yield self.classes[class_resource(name)], winner, count

    def _properties(
        self, resource: str, inventory: DeviceInventory
    ) -> Iterator[tuple[str, Properties]]:
        said = [
            (frozenset(one.devices), one.properties)
            for one in self.described
            if one.resource_name == resource and one.node_name in ("", self.node_name)
        ]
        for id_, device in inventory[resource].devices.items():
            own: dict[str, str] = {}
            if len(near := set(device.numa_nodes)) == 1:
                own[NUMA_NODE] = str(*near)
            for ids, properties in said:
                if not ids or id_ in ids:
                    own |= properties
            yield id_, own


NO_CLASSES: Final = DeviceClasses()
"""A node that knows no classes, as a kubelet."""
