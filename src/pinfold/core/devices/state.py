"""Who has which devices: immutable allocations, and the state of a node's devices.

A device has one owner, but that containers of one pod may have it one after the other: the
kubelet gives the devices of an init container to the pod's later containers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import cached_property
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from pinfold.core.devices.classes import NO_CLASSES, DeviceClasses, Members
from pinfold.core.devices.devices import Device, DeviceInventory
from pinfold.core.devices.table import DeviceTable, in_natural_order

ContainerDevices = Mapping[str, tuple[str, ...]]
"""Resource name -> the ids of the devices that a container has, in natural order."""

PodDevices = Mapping[str, ContainerDevices]
"""Container name -> its devices."""

_NO_PODS: Final[Mapping[str, PodDevices]] = MappingProxyType({})
_NO_CONTAINERS: Final[PodDevices] = MappingProxyType({})
_NO_DEVICES: Final[ContainerDevices] = MappingProxyType({})
_NO_OWNERS: Final[Mapping[str, str]] = MappingProxyType({})


class DeviceOwnershipError(ValueError):
    """Devices would have two owners, or be assigned without an id or twice."""


class DeviceUser(Struct, frozen=True):
    """A container that has some of the devices asked about (``devices``)."""

    pod_uid: str
    container: str
    devices: tuple[str, ...]


class DeviceAllocations(Struct, frozen=True, dict=True):
    """The devices of every container: ``pods`` is pod uid -> container -> resource -> ids.

    Raises:
        DeviceOwnershipError: a device of two pods, or no device, an empty id or the same id twice
            where a container has some.
    """

    pods: Mapping[str, PodDevices] = _NO_PODS

    def __post_init__(self) -> None:
        if not self.pods:
            return
        owners: dict[str, dict[str, str]] = {}
        pods = {uid: _checked(uid, containers) for uid, containers in self.pods.items()}
        pods = {uid: containers for uid, containers in pods.items() if containers}
        for uid, containers in pods.items():
            for resource, devices in _by_resource(containers).items():
                _own(owners.setdefault(resource, {}), uid, resource, devices)
        self._become(pods, owners)

    def of_pod(self, pod_uid: str) -> PodDevices:
        """The devices of a pod's containers."""
        return self.pods.get(pod_uid, _NO_CONTAINERS)

    def of_container(self, pod_uid: str, container: str) -> ContainerDevices:
        """The devices of a container."""
        return self.of_pod(pod_uid).get(container, _NO_DEVICES)

    def in_use(self, resource: str) -> AbstractSet[str]:
        """The ids of all devices of the resource that somebody has."""
        return self.owners(resource).keys()

    def owners(self, resource: str) -> Mapping[str, str]:
        """Device id -> uid of the pod that has it."""
        return self._owners.get(resource, _NO_OWNERS)

    def users_of(self, resource: str, ids: Collection[str]) -> tuple[DeviceUser, ...]:
        """The containers that have any of these devices, in the order of the pods.

        Containers of init containers whose devices went on to others are among them.
        """
        owners = self.owners(resource)
        asked = set(ids)
        uids = {owners[device] for device in asked & owners.keys()}
        return tuple(
            DeviceUser(uid, container, used)
            for uid, containers in self.pods.items()
            if uid in uids
            for container, devices in containers.items()
            if (used := tuple(d for d in devices.get(resource, ()) if d in asked))
        )

    def with_pod(
        self,
        pod_uid: str,
        containers: Mapping[str, Mapping[str, Iterable[str]]],
        init_containers: Collection[str] | None = None,
    ) -> DeviceAllocations:
        """Give a pod's containers their devices all at once, in place of what the pod has.

        Args:
            pod_uid: the pod.
            containers: container -> resource -> device ids.
            init_containers: those that end before the others start; when given, only their
                devices may be those of another container too.

        Raises:
            DeviceOwnershipError: see the class; the allocations stay as they are.
        """
        given = _checked(pod_uid, containers)
        if init_containers is not None:
            _check_within_pod(pod_uid, given, init_containers)
        changed = self._changed_owners(pod_uid, {name for c in given.values() for name in c})
        for resource, devices in _by_resource(given).items():
            _own(changed[resource], pod_uid, resource, devices)
        owners = {r: devices for r, devices in {**self._owners, **changed}.items() if devices}
        pods = dict(self.pods)
        pods.pop(pod_uid, None)
        if given:
            pods[pod_uid] = given
        # What has been checked is not checked once more.
        allocations = DeviceAllocations()
        allocations._become(pods, owners)
        return allocations

    def without(self, pod_uid: str, container: str | None = None) -> DeviceAllocations:
        """Take the devices of a container, or of a whole pod, back.

        What another container of the pod has too stays with that one.  Unknown names change
        nothing.
        """
        old = self.pods.get(pod_uid)
        if old is None or (container is not None and container not in old):
            return self
        left = {name: devices for name, devices in old.items() if container not in (None, name)}
        return self.with_pod(pod_uid, left)

    @cached_property
    def _owners(self) -> Mapping[str, Mapping[str, str]]:
        return {}  # nobody has any: all others are told

    def _become(
        self, pods: Mapping[str, PodDevices], owners: Mapping[str, Mapping[str, str]]
    ) -> None:
        force_setattr(self, "pods", MappingProxyType(pods))
        self.__dict__["_owners"] = owners

    def _changed_owners(
        self, pod_uid: str, resources: AbstractSet[str]
    ) -> dict[str, dict[str, str]]:
        """Copies of the owners, without the pod's devices, of what it has and of ``resources``."""
        old = _by_resource(self.of_pod(pod_uid))
        changed: dict[str, dict[str, str]] = {}
        for resource in resources | old.keys():
            changed[resource] = dict(self.owners(resource))
            for device in old.get(resource, ()):
                del changed[resource][device]
        return changed


class _Tables(dict[str, tuple[object, DeviceTable]]):
    """What was computed of an inventory; two states differ by nothing that is in here."""

    members: tuple[object, object, Members] | None = None
    """Of which inventory and which classes, and which devices these have."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tables)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None


class DeviceState(Struct, frozen=True):
    """What plugins list, and who has what of it.

    Devices stay with their containers when they turn unhealthy, when their plugin goes, and when
    it lists them no more.  ``gone`` are the resources whose plugin was given up, as it listed them
    last.  ``classes`` are the names that devices may be asked for by besides the raw ones.
    """

    inventory: DeviceInventory = field(default_factory=dict)
    allocations: DeviceAllocations = DeviceAllocations()
    gone: DeviceInventory = field(default_factory=dict)
    classes: DeviceClasses = NO_CLASSES
    _tables: _Tables = field(default_factory=_Tables)

    def with_inventory(self, inventory: DeviceInventory) -> DeviceState:
        """The same allocations beside another inventory."""
        tables = _Tables((name, self._tables[name]) for name in inventory if name in self._tables)
        known = {**self.gone, **self.inventory}
        gone = {name: known[name] for name in known.keys() - inventory.keys()}
        return DeviceState(inventory, self.allocations, gone, self.classes, tables)

    def with_allocations(self, allocations: DeviceAllocations) -> DeviceState:
        """The same inventory with other allocations."""
        return replace(self, allocations=allocations)

    def with_pod(
        self,
        pod_uid: str,
        containers: Mapping[str, Mapping[str, Iterable[str]]],
        init_containers: Collection[str] | None = None,
    ) -> DeviceState:
        """See :meth:`DeviceAllocations.with_pod`."""
        return self.with_allocations(
            self.allocations.with_pod(pod_uid, containers, init_containers)
        )

    def without(self, pod_uid: str, container: str | None = None) -> DeviceState:
        """See :meth:`DeviceAllocations.without`."""
        return self.with_allocations(self.allocations.without(pod_uid, container))

    def in_use(self, resource: str) -> AbstractSet[str]:
        """The ids of all devices of the resource that somebody has."""
        return self.allocations.in_use(resource)

    def users_of(self, resource: str, ids: Collection[str]) -> tuple[DeviceUser, ...]:
        """The containers that have any of these devices."""
        return self.allocations.users_of(resource, ids)

    def capacity(self) -> dict[str, int]:
        """Resource name -> number of devices, healthy or not."""
        return {name: len(resource.devices) for name, resource in self.inventory.items()}

    def allocatable(self) -> dict[str, int]:
        """Resource name -> number of healthy devices, in use or not."""
        return {
            name: sum(device.healthy for device in resource.devices.values())
            if resource.connected
            else 0
            for name, resource in self.inventory.items()
        }

    def members(self) -> Members:
        """Class resource -> raw resource -> the devices of the class, healthy or not."""
        known = self._tables.members
        if known is None or known[0] is not self.inventory or known[1] is not self.classes:
            found = self.classes.members(self.inventory)
            known = self._tables.members = (self.inventory, self.classes, found)
        return known[2]

    def class_allocatable(self) -> dict[str, int]:
        """Class resource -> number of healthy devices that it may be given, in use or not."""
        return {
            name: sum(
                (table.mask(ids) & table.healthy).bit_count()
                for resource, ids in devices.items()
                if (table := self.table(resource)) is not None
            )
            for name, devices in self.members().items()
        }

    @property
    def is_empty(self) -> bool:
        """Whether nobody can ask for any: none is listed, nobody has one, there is no class."""
        return not (self.inventory or self.allocations.pods or self.classes.classes)

    def manages(self, resource: str) -> bool:
        """Whether devices are given for this name: of a plugin, of somebody's, or of a class."""
        if resource in self.inventory or self.in_use(resource):
            return True
        return any(self.members().get(resource, ()))

    def last_listed(self, resource: str) -> Mapping[str, Device]:
        """The devices of a resource, by id, as its plugin listed them last."""
        listed = self.inventory.get(resource) or self.gone.get(resource)
        return {} if listed is None else listed.devices

    def table(self, resource: str) -> DeviceTable | None:
        """The resource as bits; ``None`` when its plugin is not registered.

        Kept for all states that come from this one, until the plugin lists something else.
        """
        listed = self.inventory.get(resource)
        if listed is None:
            return None
        source, table = self._tables.get(resource, (None, None))
        if table is None or source is not listed:
            table = DeviceTable.of(listed, table)
            self._tables[resource] = (listed, table)
        return table


def _checked(pod_uid: str, containers: Mapping[str, Mapping[str, Iterable[str]]]) -> PodDevices:
    given: dict[str, ContainerDevices] = {}
    for container, resources in containers.items():
        devices = {
            resource: _ids(f"pod {pod_uid!r}, container {container!r}, {resource}", ids)
            for resource, ids in resources.items()
        }
        if devices:
            given[container] = MappingProxyType(devices)
    return MappingProxyType(given)


def _ids(who: str, ids: Iterable[str]) -> tuple[str, ...]:
    ordered = tuple(in_natural_order(ids))
    if not ordered:
        raise DeviceOwnershipError(f"{who}: no device to assign")
    if len(set(ordered)) < len(ordered):
        twice = next(device for device in ordered if ordered.count(device) > 1)
        raise DeviceOwnershipError(f"{who}: device {twice!r} is assigned twice")
    if "" in ordered:
        raise DeviceOwnershipError(f"{who}: a device without an id")
    return ordered


def _by_resource(containers: PodDevices) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for resources in containers.values():
        for resource, devices in resources.items():
            found.setdefault(resource, set()).update(devices)
    return found


def _own(owners: dict[str, str], pod_uid: str, resource: str, devices: AbstractSet[str]) -> None:
    for device in in_natural_order(devices & owners.keys()):
        raise DeviceOwnershipError(
            f"pod {pod_uid!r}: device {device!r} of {resource} belongs to pod {owners[device]!r}"
        )
    owners.update(dict.fromkeys(devices, pod_uid))


def _check_within_pod(
    pod_uid: str, containers: PodDevices, init_containers: Collection[str]
) -> None:
    owner: dict[tuple[str, str], str] = {}
    for container, resources in containers.items():
        if container in init_containers:
            continue
        for resource, devices in resources.items():
            for device in devices:
                other = owner.setdefault((resource, device), container)
                if other != container:
                    raise DeviceOwnershipError(
                        f"pod {pod_uid!r}: device {device!r} of {resource} would belong to "
                        f"containers {other!r} and {container!r} at once"
                    )
