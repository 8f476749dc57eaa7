"""The devices of a planned node: what its device plugins would list.

Either a file of ours, in YAML or JSON (docs/reference/devices-file.md), or a kubelet's
``kubelet_internal_checkpoint``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct

from pinfold.config.file_text import decoded, file_bytes
from pinfold.config.values import ConfigError, show
from pinfold.core.devices.devices import Device, DeviceInventory, DeviceResource
from pinfold.core.machine.locality import Localities, LocalityError
from pinfold.core.machine.machine import Machine
from pinfold.core.values.cpuset import CPUSet, iter_bits
from pinfold.core.values.errors import wrong_type
from pinfold.core.values.notes import Note, said_once
from pinfold.core.values.resource_names import is_extended
from pinfold.formats.json_or_yaml import DocumentError, read_documents
from pinfold.formats.paths import StrPath, path_text
from pinfold.state.cpu_manager_state import CheckpointError
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint, restore_devices

__all__ = ["ConfigError", "LoadedDevices", "load_devices"]

KIND: Final = "Devices"
VERSION: Final = 1
MAX_BYTES: Final = 16 * 1024 * 1024
_WHAT: Final = "a file of devices"
MAX_DEVICES: Final = 100_000
_HEADER: Final = f"it starts with kind: {KIND} and version: {VERSION}"
_HEALTHY: Final = "Healthy"
_UNHEALTHY: Final = "Unhealthy"

NUMANodes = tuple[int, ...]


class LoadedDevices(Struct, frozen=True):
    """The devices, and notes on what is not known of them."""

    inventory: DeviceInventory
    notes: tuple[str, ...] = ()


def load_devices(path: StrPath, machine: Machine) -> LoadedDevices:
    """Read the devices of a node, which are at NUMA nodes of ``machine``.

    Raises:
        ConfigError: no such file, or anything in it that is wrong; names the place.
        TypeError: a path that is neither a text nor a ``pathlib.Path``, or no Machine.
    """
    path = path_text(path)
    if not isinstance(machine, Machine):
        raise wrong_type("machine", "a Machine, as open_machine gives", machine)
    raw = file_bytes(path, MAX_BYTES, _WHAT)
    text = decoded(raw, path, _WHAT)
    try:
        documents = [document.content for document in read_documents(text)]
    except DocumentError as error:
        raise ConfigError(str(error), path) from None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise ConfigError(f"must hold one mapping; {_HEADER}", path)
    document = documents[0]
    try:
        if document.keys() >= {"Data", "Checksum"}:
            return _of_checkpoint(raw)
        reader = _Reader(machine)
        return LoadedDevices(
            MappingProxyType(reader.inventory(document)), tuple(said_once(reader.notes))
        )
    except _PlaceError as error:
        raise ConfigError(str(error), path) from None


def _of_checkpoint(raw: bytes) -> LoadedDevices:
    """What a kubelet has recorded: the healthy devices of its plugins, as free ones."""
    try:
        checkpoint = DeviceManagerCheckpoint.parse(raw)
        checkpoint.verify()
        recorded = restore_devices(checkpoint).state.inventory
    except CheckpointError as error:
        raise _PlaceError(
            f"kubelet_internal_checkpoint: {error}; see pinfold state check"
        ) from None
    unplaced = sum(
        not device.numa_nodes for one in recorded.values() for device in one.devices.values()
    )
    notes = [
        "from a kubelet's checkpoint: all devices are planned as free; it has no unhealthy ones"
    ]
    if unplaced:
        notes.append(
            f"the checkpoint does not say at which NUMA node {unplaced} of the devices are (it "
            "knows that of devices in use only): nothing is aligned with them"
        )
    inventory = {
        name: DeviceResource(name, resource.devices) for name, resource in recorded.items()
    }
    return LoadedDevices(MappingProxyType(inventory), tuple(notes))


class _PlaceError(ValueError):
    """What is wrong, with its place in the file."""


class _Reader:
    """Reads a file of ours; ``notes`` collects what is not known."""

    def __init__(self, machine: Machine) -> None:
        self.notes: list[Note] = []
        self._nodes = {node.id for node in machine.numa_nodes}
        self._localities = Localities.of(machine)

    def inventory(self, document: Mapping[Any, Any]) -> dict[str, DeviceResource]:
        kind, version = document.get("kind"), document.get("version")
        if kind != KIND or type(version) is not int or version != VERSION:
            raise _PlaceError(
                f"no {KIND} of version {VERSION} (kind: {show(kind)}, version: {show(version)}); "
                f"{_HEADER}"
            )
        _only(document, {"kind", "version", "resources"}, "")
        resources = _mapping(document.get("resources"), "resources")
        found: dict[str, DeviceResource] = {}
        total = 0
        for name, value in resources.items():
            where = f"resources[{show(name)}]"
            if not isinstance(name, str) or not is_extended(name):
                raise _PlaceError(
                    f"{where}: no name that a device plugin can have; it is a domain, a slash and "
                    "a name, such as example.com/gpu"
                )
            devices: dict[str, Device] = {}
            for place, device in self._devices(name, value, where):
                if device.id in devices:
                    raise _PlaceError(f"{place}: device {show(device.id)} is there twice")
                devices[device.id] = device
            total += len(devices)
            if total > MAX_DEVICES:
                raise _PlaceError(f"{where}: more than {MAX_DEVICES} devices in all")
            found[name] = DeviceResource(name, MappingProxyType(devices))
        return found

    def _devices(self, name: str, value: object, where: str) -> Iterator[tuple[str, Device]]:
        if isinstance(value, int) and not isinstance(value, bool):
            value = {"count": value}
        if not isinstance(value, dict):
            raise _PlaceError(
                f"{where}: must be a number of devices, or a mapping with devices or count, not "
                f"{show(value)}"
            )
        if "devices" in value:
            _only(value, {"devices"}, where)
            listed = value["devices"]
            if not isinstance(listed, list):
                raise _PlaceError(f"{where}.devices: must be a list, not {show(listed)}")
            for number, item in enumerate(listed):
                place = f"{where}.devices[{number}]"
                yield place, self._device(item, place)
            return
        _only(value, {"count", "numa", "near", "unhealthy"}, where)
        places = self._places(value, where)
        prefix = name.partition("/")[2]
        ids = [f"{prefix}-{number}" for number in range(len(places))]
        sick = _texts(value.get("unhealthy", []), f"{where}.unhealthy")
        for id_ in sick:
            if id_ not in ids:
                raise _PlaceError(
                    f"{where}.unhealthy: no device {show(id_)}; they are called {prefix}-0 and so "
                    "on"
                )
        for id_, nodes in zip(ids, places, strict=True):
            yield where, Device(id_, id_ not in sick, nodes)

    def _device(self, item: object, place: str) -> Device:
        """One device that is written out; a text alone is its id."""
        if isinstance(item, str):
            item = {"id": item}
        fields = _mapping(item, place)
        _only(fields, {"id", "numa", "near", "health"}, place)
        id_ = fields.get("id")
        if not isinstance(id_, str) or not id_:
            raise _PlaceError(f"{place}.id: must be a text that is not empty, not {show(id_)}")
        health = fields.get("health", _HEALTHY)
        if health not in (_HEALTHY, _UNHEALTHY):
            raise _PlaceError(
                f"{place}.health: must be {_HEALTHY} or {_UNHEALTHY}, not {show(health)}"
            )
        if "near" in fields and "numa" in fields:
            raise _PlaceError(f"{place}: either numa or near, not both")
        if "near" in fields:
            nodes = self._near(fields["near"], f"{place}.near")
        else:
            nodes = self._numa(fields.get("numa"), f"{place}.numa")
        return Device(id_, health == _HEALTHY, nodes, located_nowhere=fields.get("numa") == [])

    def _places(self, value: Mapping[Any, Any], where: str) -> list[NUMANodes]:
        """The NUMA nodes of each device of the short form."""
        count = value.get("count")
        if count is not None and (
            not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_DEVICES
        ):
            raise _PlaceError(
                f"{where}.count: must be a number from 0 to {MAX_DEVICES}, not {show(count)}"
            )
        if "near" in value and "numa" in value:
            raise _PlaceError(f"{where}: either numa or near, not both")
        key, one = ("near", self._near) if "near" in value else ("numa", self._numa)
        given, place = value.get(key), f"{where}.{key}"
        if key == "numa" and isinstance(given, dict):
            places = self._shares(given, place)
        elif isinstance(given, list):
            places = [one(item, f"{place}[{number}]") for number, item in enumerate(given)]
        elif count is None:
            raise _PlaceError(f"{where}: how many? Say count, or list the devices")
        else:
            return [one(given, place)] * count
        if count is not None and len(places) != count:
            raise _PlaceError(
                f"{place}: says where {len(places)} devices are, but count is {count}"
            )
        return places

    def _shares(self, given: Mapping[Any, Any], where: str) -> list[NUMANodes]:
        """NUMA node -> number of devices there."""
        places: list[NUMANodes] = []
        for key, number in given.items():
            place = f"{where}[{show(key)}]"
            written = int(key) if isinstance(key, str) and key.isdecimal() else key
            nodes = self._numa(written, place)
            if not isinstance(number, int) or isinstance(number, bool):
                raise _PlaceError(f"{place}: must be a number of devices, not {show(number)}")
            if not 0 <= number <= MAX_DEVICES:
                raise _PlaceError(f"{place}: must be from 0 to {MAX_DEVICES}")
            places += [nodes] * number
        return places

    def _numa(self, value: object, where: str) -> NUMANodes:
        """A node, several, or none."""
        if value is None:
            return ()
        nodes = value if isinstance(value, list) else [value]
        for node in nodes:
            if not isinstance(node, int) or isinstance(node, bool):
                raise _PlaceError(f"{where}: must be the number of a NUMA node, not {show(node)}")
            if node not in self._nodes:
                raise _PlaceError(
                    f"{where}: the machine has no NUMA node {show(node)}; it has "
                    f"{CPUSet(self._nodes)}"
                )
        return tuple(dict.fromkeys(nodes))

    def _near(self, value: object, where: str) -> NUMANodes:
        """The nodes of the PCI function with this name or address."""
        if not isinstance(value, str):
            raise _PlaceError(
                f"{where}: must be a PCI address or the name of a device, not {show(value)}"
            )
        try:
            locality = self._localities.resolve(value)
        except LocalityError as error:
            raise _PlaceError(f"{where}: {error}") from None
        if locality.unknown is not None:
            said = f"{locality.unknown}; planned without a NUMA node"
            self.notes.append(Note(where, said))
        return tuple(iter_bits(locality.nodes or 0))


def _mapping(value: object, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        raise _PlaceError(f"{where}: must be a mapping, not {show(value)}")
    return value


def _texts(value: object, where: str) -> frozenset[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _PlaceError(f"{where}: must be a list of device ids, not {show(value)}")
    return frozenset(value)


def _only(fields: Mapping[Any, Any], known: set[str], where: str) -> None:
    for name in fields:
        if name not in known:
            before = f"{where}: " if where else ""
            raise _PlaceError(
                f"{before}unknown field {show(name)}; there are {', '.join(sorted(known))}"
            )
