"""``kubelet_internal_checkpoint``: the device manager's checkpoint.

Upstream: ``pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from msgspec import Struct

from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.core.devices.state import DeviceAllocations, DeviceOwnershipError, DeviceState
from pinfold.core.devices.table import in_natural_order
from pinfold.state.cpu_manager_state import Checkpoint, CheckpointError
from pinfold.state.go_json import GoJSONError, parse
from pinfold.state.go_value import (
    GoBytes,
    GoField,
    GoInteger,
    GoMap,
    GoSlice,
    GoString,
    GoStruct,
    Value,
    unmarshal,
)

KUBELET_INTERNAL_CHECKPOINT: Final = "kubelet_internal_checkpoint"
"""The file's name, in the kubelet's ``device-plugins`` directory."""

NO_NUMA_NODE: Final = -1
"""The key of devices without locality."""

_STRING: Final = GoString()
_DEVICES: Final = GoSlice(_STRING)
_ENTRY: Final = GoStruct(
    "checkpoint.PodDevicesEntry",
    [
        GoField("PodUID", "PodUID", _STRING),
        GoField("ContainerName", "ContainerName", _STRING),
        GoField("ResourceName", "ResourceName", _STRING),
        GoField(
            "DeviceIDs",
            "DeviceIDs",
            GoMap(GoInteger("int64", signed=True), _DEVICES, "checkpoint.DevicesPerNUMA"),
        ),
        GoField("AllocResp", "AllocResp", GoBytes()),
    ],
)
_DATA: Final = GoStruct(
    "checkpoint.checkpointData",
    [
        GoField("PodDeviceEntries", "PodDeviceEntries", GoSlice(_ENTRY)),
        GoField("RegisteredDevices", "RegisteredDevices", GoMap(_STRING, _DEVICES)),
    ],
)
_FILE: Final = GoStruct(
    "checkpoint.Data",
    [
        GoField("Data", "Data", _DATA),
        GoField("Checksum", "Checksum", GoInteger("checksum.Checksum", signed=False)),
    ],
)

Devices = tuple[str, ...]


class Holding(NamedTuple):
    """One resource of one container."""

    pod_uid: str
    container: str
    resource: str


class RestoredDevices(NamedTuple):
    """What a checkpoint says: the state, and the plugins' serialized allocate responses."""

    state: DeviceState
    responses: Mapping[Holding, bytes]


class PodDevicesEntry(Struct, frozen=True):
    """The devices of one resource that one container has.

    ``device_ids`` is NUMA node -> device ids (``NO_NUMA_NODE`` where the plugin names none);
    ``alloc_resp`` is the plugin's answer, a serialized ``ContainerAllocateResponse``.
    """

    pod_uid: str
    container_name: str
    resource_name: str
    device_ids: Mapping[int, Devices | None] | None
    alloc_resp: bytes | None


class DeviceManagerCheckpoint(Checkpoint, frozen=True):
    """The content of the file; ``None`` stands for JSON ``null``, which has another checksum."""

    pod_device_entries: tuple[PodDevicesEntry, ...] | None
    registered_devices: Mapping[str, Devices | None] | None

    @classmethod
    def parse(cls, file: bytes) -> DeviceManagerCheckpoint:
        """Read a file; the checksum is not looked at.

        Raises:
            CheckpointError: no JSON or values of other types, in the words of Go's decoder.
        """
        initial = {"Data": {"PodDeviceEntries": [], "RegisteredDevices": {}}, "Checksum": 0}
        try:
            value = unmarshal(_FILE, parse(file), initial)
        except GoJSONError as error:
            raise CheckpointError(str(error)) from None
        entries = value["Data"]["PodDeviceEntries"]
        registered = value["Data"]["RegisteredDevices"]
        return cls(
            None if entries is None else tuple(_entry(entry) for entry in entries),
            _tuples(registered),
            checksum=value["Checksum"],
        )

    def _data(self) -> dict[str, Value]:
        entries = self.pod_device_entries
        return {
            "PodDeviceEntries": None if entries is None else [_entry_value(e) for e in entries],
            "RegisteredDevices": self.registered_devices,
        }

    def hash_input(self) -> str:
        """The text that the kubelet takes the checksum over."""
        return f"({_DATA.name}){_DATA.dump(self._data())}"

    def encode(self) -> bytes:
        """The file's bytes, as a kubelet writes them: one line without an end of line."""
        text = _FILE.encode({"Data": self._data(), "Checksum": self.checksum})
        return text.encode("utf-8", "surrogatepass")


def _entry(value: dict[str, Value]) -> PodDevicesEntry:
    return PodDevicesEntry(
        value["PodUID"],
        value["ContainerName"],
        value["ResourceName"],
        _tuples(value["DeviceIDs"]),
        value["AllocResp"],
    )


def _entry_value(entry: PodDevicesEntry) -> dict[str, Value]:
    return {
        "PodUID": entry.pod_uid,
        "ContainerName": entry.container_name,
        "ResourceName": entry.resource_name,
        "DeviceIDs": entry.device_ids,
        "AllocResp": entry.alloc_resp,
    }


def _tuples(value: dict[Value, list[str] | None] | None) -> dict[Value, Devices | None] | None:
    if value is None:
        return None
    return {key: None if ids is None else tuple(ids) for key, ids in value.items()}


def checkpoint_of(
    state: DeviceState, responses: Mapping[Holding, bytes]
) -> DeviceManagerCheckpoint:
    """The checkpoint of a node's devices, sealed; registered are the healthy ones, as upstream.

    Raises:
        CheckpointError: a container has devices without a response: the kubelet could not start
            it again.
    """
    entries = [
        _entry_of(state, Holding(uid, container, resource), ids, responses)
        for uid, containers in sorted(state.allocations.pods.items())
        for container, resources in sorted(containers.items())
        for resource, ids in sorted(resources.items())
    ]
    registered: dict[str, Devices | None] = {}
    for name in sorted(state.inventory):
        table = state.table(name)
        registered[name] = () if table is None else table.names(table.healthy)
    return DeviceManagerCheckpoint(tuple(entries) or None, registered).sealed()


def restore_devices(checkpoint: DeviceManagerCheckpoint) -> RestoredDevices:
    """What the content means; its checksum is :meth:`DeviceManagerCheckpoint.verify`'s business.

    Resources are listed without a connected plugin: their devices count once it registers again.
    The NUMA nodes of devices are known where a container has them.

    Raises:
        CheckpointError: content that no kubelet writes; names the entry.
    """
    responses: dict[Holding, bytes] = {}
    pods: dict[str, dict[str, dict[str, Devices]]] = {}
    nodes: dict[tuple[str, str], tuple[int, ...]] = {}
    for number, entry in enumerate(checkpoint.pod_device_entries or ()):
        where = f"PodDeviceEntries[{number}]"
        holding = Holding(entry.pod_uid, entry.container_name, entry.resource_name)
        missing = [word for word, value in zip(_WORDS, holding, strict=True) if not value]
        if missing:
            raise CheckpointError(f"{where}: no {missing[0]}")
        if holding in responses:
            raise CheckpointError(f"{where}: the same pod, container and resource once more")
        if entry.alloc_resp is None:
            raise CheckpointError(f"{where}: no AllocResp, the plugin's answer to Allocate")
        responses[holding] = entry.alloc_resp
        found = _devices_of(where, entry)
        nodes |= {(holding.resource, device): near for device, near in found.items()}
        resources = pods.setdefault(holding.pod_uid, {}).setdefault(holding.container, {})
        resources[holding.resource] = tuple(found)
    try:
        allocations = DeviceAllocations(pods)
    except DeviceOwnershipError as error:
        raise CheckpointError(f"PodDeviceEntries: {error}") from None
    inventory = {
        name: _listed(name, ids or (), nodes)
        for name, ids in (checkpoint.registered_devices or {}).items()
    }
    return RestoredDevices(DeviceState(inventory, allocations), responses)


_WORDS: Final = ("PodUID", "ContainerName", "ResourceName")


def _entry_of(
    state: DeviceState, holding: Holding, ids: Devices, responses: Mapping[Holding, bytes]
) -> PodDevicesEntry:
    response = responses.get(holding)
    if response is None:
        raise CheckpointError(
            f"pod {holding.pod_uid!r}, container {holding.container!r}: the answer of the plugin "
            f"of {holding.resource} to Allocate is not known; delete the pod and create it again"
        )
    listed = state.last_listed(holding.resource)
    by_node: dict[int, list[str]] = {}
    for id_ in ids:
        device = listed.get(id_)
        # Duplicate node ids of a plugin would make the kubelet list the device twice.
        near = dict.fromkeys(device.numa_nodes) if device is not None else None
        for node in near or (NO_NUMA_NODE,):
            by_node.setdefault(node, []).append(id_)
    devices = {node: tuple(by_node[node]) for node in sorted(by_node)}
    return PodDevicesEntry(*holding, devices, response)


def _devices_of(where: str, entry: PodDevicesEntry) -> dict[str, tuple[int, ...]]:
    """Device id -> NUMA nodes of one entry."""
    found: dict[str, list[int]] = {}
    for node, ids in sorted((entry.device_ids or {}).items()):
        if node < NO_NUMA_NODE:
            raise CheckpointError(f"{where}: {node} is no NUMA node ({NO_NUMA_NODE} is for none)")
        for device in ids or ():
            if not device:
                raise CheckpointError(f"{where}: a device without an id")
            if node in found.setdefault(device, []):
                raise CheckpointError(f"{where}: device {device!r} twice on NUMA node {node}")
            found[device].append(node)
    if not found:
        raise CheckpointError(f"{where}: no DeviceIDs")
    return {
        device: tuple(node for node in near if node != NO_NUMA_NODE)
        for device, near in found.items()
    }


def _listed(
    name: str, ids: Devices, nodes: Mapping[tuple[str, str], tuple[int, ...]]
) -> DeviceResource:
    if not name:
        raise CheckpointError("RegisteredDevices: a resource without a name")
    if len(set(ids)) < len(ids) or "" in ids:
        raise CheckpointError(f"RegisteredDevices[{name!r}]: a device without an id, or twice")
    devices = {i: Device(i, numa_nodes=nodes.get((name, i), ())) for i in in_natural_order(ids)}
    return DeviceResource(name, devices, connected=False)
