"""``kubelet_internal_checkpoint``: the device manager's checkpoint.

Upstream: ``pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from pinfold.state.checksum import checksum_of_dump
from pinfold.state.cpu_manager_state import CORRUPT, CheckpointError
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


@dataclass(frozen=True, slots=True)
class PodDevicesEntry:
    """The devices of one resource that one container has.

    ``device_ids`` is NUMA node -> device ids (``NO_NUMA_NODE`` where the plugin names none);
    ``alloc_resp`` is the plugin's answer, a serialized ``ContainerAllocateResponse``.
    """

    pod_uid: str
    container_name: str
    resource_name: str
    device_ids: Mapping[int, Devices | None] | None
    alloc_resp: bytes | None


@dataclass(frozen=True, slots=True)
class DeviceManagerCheckpoint:
    """The content of the file; ``None`` stands for JSON ``null``, which has another checksum."""

    pod_device_entries: tuple[PodDevicesEntry, ...] | None
    registered_devices: Mapping[str, Devices | None] | None
    checksum: int = 0

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
            value["Checksum"],
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

    def computed_checksum(self) -> int:
        """The checksum that the content should have."""
        return checksum_of_dump(self.hash_input())

    def verify(self) -> None:
        """Check the checksum as the kubelet does: no value is let pass.

        Raises:
            CheckpointError: it does not fit.
        """
        if self.checksum != self.computed_checksum():
            raise CheckpointError(CORRUPT)

    def sealed(self) -> DeviceManagerCheckpoint:
        """The same content with the checksum that belongs to it."""
        return replace(self, checksum=self.computed_checksum())

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
