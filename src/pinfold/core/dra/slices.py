"""ComputeResources as ResourceSlices, and back.

The devices of a ComputeResource are a pool of its name, in slices of at most 128.  Each has all of
its properties as attributes (texts), and those that are quantities as capacities besides.

Source: ``resource.k8s.io/v1`` (1.34), ``ResourceSliceSpec``; ``v1beta1`` has ``basic`` in devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from pinfold.core.classes.api import (
    ClassError,
    compute_resource_from_api,
    compute_resource_to_api,
)
from pinfold.core.classes.compute_resource import (
    KIND,
    MOST_DEVICES,
    NODE_NAME,
    RESOURCE_NAME,
    ComputeResource,
    common_properties,
    compute_resource_name,
)
from pinfold.core.dra.device_class import kept_texts
from pinfold.core.dra.names import (
    API_VERSION,
    LONGEST_VALUE,
    MOST_ATTRIBUTES,
    MOST_SLICE_DEVICES,
    DRAError,
    attribute_name,
    carried_metadata,
    device_name,
    kept_of,
    made_names,
    property_key,
    qualified,
)
from pinfold.core.dra.selectors import DRIVER_PROPERTY, Naming
from pinfold.core.pod.api import quantity_from_api
from pinfold.core.pod.manifest.fields import flag, mapping, mappings, number, text_of
from pinfold.core.values.names import LONGEST_SUBDOMAIN
from pinfold.core.values.quantity import Quantity, QuantityError

RESOURCE_SLICE: Final = "ResourceSlice"

_COMMON: Final = (KIND, RESOURCE_NAME, NODE_NAME)
_RESOURCE: Final = "resource"
_CAPACITY: Final = "capacity"
_OWN: Final = "own-properties"
_LONG: Final = "properties"
_NAMES: Final = "names"
_DEVICES: Final = "devices"
_UNLISTED: Final = "unlisted"

_CHANGES_COUNT: Final = (
    "consumesCounters",
    "nodeName",
    "nodeSelector",
    "allNodes",
    "allowMultipleAllocations",
)
_KNOWN_DEVICE: Final = frozenset({"name", "attributes", "capacity", "basic"})
_KNOWN_SPEC: Final = frozenset({"driver", "pool", "nodeName", "allNodes", "devices"})
_TYPES: Final = ("string", "version", "int", "bool")


class Slice(Struct, frozen=True):
    """A ResourceSlice: where it was read, the manifest, and to which pool it belongs."""

    where: str
    manifest: Mapping[str, Any]
    driver: str
    pool: str
    generation: int
    of: int

    @property
    def key(self) -> tuple[str, str]:
        """The pool that it is a part of."""
        return self.driver, self.pool


def is_native(resource: str) -> bool:
    """Whether a kubelet counts it by itself: there is no device of it."""
    return "/" not in resource


def resource_slices(
    manifest: Mapping[str, Any], one: ComputeResource, driver: str, selected_by: Iterable[str]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The slices of a ComputeResource, and notes on what is not in them.

    Args:
        manifest: the ComputeResource as it was written, for its labels and annotations.
        one: the ComputeResource.
        driver: the driver that is to publish them.
        selected_by: the properties at which classes look.

    Raises:
        DRAError: what DRA cannot hold, and something depends on.
    """
    notes = []
    ids, kept = _listed(one), {_RESOURCE: one.resource_name}
    if not one.devices:
        kept[_UNLISTED] = "true"
        notes.append(
            f"its devices are not listed: they are called {ids[0]} to {ids[-1]}, "
            "and what the driver calls them is for the driver to say"
        )
    properties = one.all_properties
    long = {key: text for key, text in properties.items() if len(text.encode()) > LONGEST_VALUE}
    for key in sorted(long.keys() & set(selected_by)):
        raise DRAError(
            f"spec.properties[{key}]",
            f"Too long: an attribute has at most {LONGEST_VALUE} bytes, and a class looks at it",
        )
    if long:
        names = ", ".join(sorted(long))
        notes.append(f"properties {names} are left out: more than {LONGEST_VALUE} bytes each")
        kept[_LONG] = json.dumps(long)
    held = {key: text for key, text in properties.items() if key not in long}
    if own := [key for key in _COMMON if key in one.properties]:
        kept[_OWN] = ",".join(own)
    if one.capacity is not None:
        kept[_CAPACITY] = str(one.capacity)
    if made := made_names(held, driver):
        kept[_NAMES] = json.dumps(made)
    named = {device_name(id_): id_ for id_ in ids}
    if renamed := {name: id_ for name, id_ in named.items() if name != id_}:
        kept[_DEVICES] = json.dumps(renamed)
    about = _about(held, driver)
    devices = [{"name": name, **about} for name in named]
    parts = [
        devices[at : at + MOST_SLICE_DEVICES] for at in range(0, len(devices), MOST_SLICE_DEVICES)
    ]
    where: dict[str, Any] = {"nodeName": one.node_name} if one.node_name else {"allNodes": True}
    return [
        {
            "apiVersion": API_VERSION,
            "kind": RESOURCE_SLICE,
            "metadata": carried_metadata(manifest, _slice_name(one.name, at), kept),
            "spec": {
                "driver": driver,
                "pool": {"name": one.name, "generation": 1, "resourceSliceCount": len(parts)},
                **where,
                "devices": part,
            },
        }
        for at, part in enumerate(parts)
    ], tuple(notes)


def read_slice(where: str, manifest: Mapping[str, Any]) -> Slice:
    """What of a ResourceSlice says to which pool it belongs; raises PodError."""
    spec = mapping(manifest.get("spec"), "spec")
    driver = text_of(spec.get("driver"), "spec.driver")
    pool = mapping(spec.get("pool"), "spec.pool")
    name = text_of(pool.get("name"), "spec.pool.name")
    if not driver or not name:
        raise DRAError("spec.pool.name" if driver else "spec.driver", "Required value")
    generation = number(pool.get("generation"), "spec.pool.generation") or 0
    count = number(pool.get("resourceSliceCount"), "spec.pool.resourceSliceCount") or 1
    return Slice(where, manifest, driver, name, generation, count)


def compute_resources(
    parts: Sequence[Slice], driver: str | None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """The ComputeResources of the slices of one pool, and notes on what is not in them.

    Args:
        parts: its slices, of one generation and all there.
        driver: whose attributes are properties without a domain; without one, of the slices that
            were converted before the driver that they were converted for.

    Raises:
        PodError: a field that is wrong, or that no ComputeResource has.
    """
    first = parts[0]
    kept = kept_of(first.manifest)
    own = driver or (first.driver if _RESOURCE in kept else None)
    naming = Naming(own, kept_texts(kept, _NAMES))
    notes: list[str] = []
    node = _node(first)
    resource = kept.get(_RESOURCE, "")
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    ids = kept_texts(kept, _DEVICES)
    left: set[str] = set()
    for part in parts:
        if _node(part) != node:
            raise DRAError("spec.nodeName", "differs from the other slices of its pool")
        for device, path in _devices_of(part.manifest):
            left |= _unknown(device, path)
            for capacity in mapping(device.get("capacity"), f"{path}.capacity").values():
                if isinstance(capacity, Mapping):
                    left |= {f"capacity.{str(one)[:80]}" for one in capacity.keys() - {"value"}}
            name = text_of(device.get("name"), f"{path}.name") or ""
            properties = _properties(device, path, part.driver, naming)
            if part.driver != own:
                properties[DRIVER_PROPERTY] = part.driver
            groups.setdefault(tuple(sorted(properties.items())), []).append(ids.get(name, name))
    if left:
        notes.append(f"{', '.join(sorted(left))} of its devices: left out")
    if not resource:
        resource = next(
            (dict(one)[RESOURCE_NAME] for one in groups if RESOURCE_NAME in dict(one)), ""
        )
    if not resource:
        resource = f"{first.driver}/device"
        notes.append(f"nothing says their raw name: it is {resource}")
    found = [
        _compute_resource(first, node, resource, dict(properties), devices)
        for properties, devices in groups.items()
    ]
    if len(found) > 1 and _RESOURCE in kept:
        raise DRAError("spec.devices", "devices of one ComputeResource that are not alike")
    return found, tuple(notes)


def _listed(one: ComputeResource) -> list[str]:
    """The ids of the devices, or names for as many as there are."""
    if one.devices:
        return list(one.devices)
    count = 0 if one.capacity is None else one.capacity.value()
    if not 0 < count <= MOST_DEVICES:
        raise DRAError(
            "status.capacity", f"Invalid value: {count} devices: must be from 1 to {MOST_DEVICES}"
        )
    return [f"device-{at}" for at in range(count)]


def _about(properties: Mapping[str, str], driver: str) -> dict[str, Any]:
    """The attributes and the capacities of a device."""
    attributes, capacity = {}, {}
    for key, text in properties.items():
        name = qualified(attribute_name(key, driver), driver)
        if name in attributes:
            raise DRAError(f"spec.properties[{key}]", f"another property is called {name}, too")
        attributes[name] = {"string": text}
        if _is_quantity(text):
            capacity[name] = {"value": text}
    if len(attributes) + len(capacity) > MOST_ATTRIBUTES:
        raise DRAError(
            "spec.properties",
            f"Too many: {len(attributes)}, of which {len(capacity)} are quantities: a device has "
            f"at most {MOST_ATTRIBUTES} attributes and capacities together",
        )
    return {"attributes": attributes} | ({"capacity": capacity} if capacity else {})


def _is_quantity(text: str) -> bool:
    try:
        Quantity.parse(text)
    except QuantityError:
        return False
    return True


def _slice_name(name: str, at: int) -> str:
    end = f"-{at}" if at else ""
    return name[: LONGEST_SUBDOMAIN - len(end)].rstrip("-.") + end


def _node(part: Slice) -> str:
    """The node of a slice; "" for all of them."""
    spec = mapping(part.manifest.get("spec"), "spec")
    for field in sorted(str(one) for one in spec.keys() - _KNOWN_SPEC):
        if spec.get(field) not in (None, False, [], {}):
            raise DRAError(f"spec.{field[:80]}", "no ComputeResource has anything of it")
    node = text_of(spec.get("nodeName"), "spec.nodeName") or ""
    if bool(node) == flag(spec.get("allNodes"), "spec.allNodes"):
        raise DRAError("spec.nodeName", "Required value: or allNodes, and not both")
    return node


def _devices_of(manifest: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    spec = mapping(manifest.get("spec"), "spec")
    for device, path in mappings(spec.get("devices"), "spec.devices"):
        basic = mapping(device.get("basic"), f"{path}.basic")
        yield {**device, **basic}, path


def _unknown(device: Mapping[str, Any], path: str) -> set[str]:
    """The fields of a device that are left out; raises DRAError where that would be a lie."""
    found = {
        str(name)[:80]
        for name in device.keys() - _KNOWN_DEVICE
        if device[name] not in (None, False, [], {})
    }
    for name in sorted(found & set(_CHANGES_COUNT)):
        raise DRAError(f"{path}.{name}", "no ComputeResource has anything of it")
    return found


def _properties(
    device: Mapping[str, Any], path: str, driver: str, naming: Naming
) -> dict[str, str]:
    """The attributes and capacities of a device as properties."""
    found: dict[str, str] = {}
    for name, value in mapping(device.get("attributes"), f"{path}.attributes").items():
        where = f"{path}.attributes[{str(name)[:80]}]"
        key = _key(name, where, driver, naming)
        if key in found:
            raise DRAError(where, f"property {key} is there already")
        found[key] = _attribute(mapping(value, where), where)
    for name, value in mapping(device.get("capacity"), f"{path}.capacity").items():
        where = f"{path}.capacity[{str(name)[:80]}]"
        key = _key(name, where, driver, naming)
        held = mapping(value, where)
        text = held.get("value")
        amount = quantity_from_api(text, f"{where}.value")
        if key not in found:
            found[key] = text if isinstance(text, str) else str(amount)
        elif not _is_quantity(found[key]) or Quantity.parse(found[key]) != amount:
            raise DRAError(
                where, "differs from the attribute of that name; a property has one value"
            )
    return found


def _key(name: object, where: str, driver: str, naming: Naming) -> str:
    if not isinstance(name, str) or not name:
        raise DRAError(where, "must be a name")
    domain, _, identifier = name.rpartition("/")
    return property_key(domain or driver, identifier, naming.driver, naming.known)


def _attribute(value: Mapping[str, Any], where: str) -> str:
    given = {kind: one for kind, one in value.items() if one is not None}
    match given:
        case {"string": str(text)} | {"version": str(text)} if len(given) == 1:
            return text
        case {"bool": bool(is_so)} if len(given) == 1:
            return str(is_so).lower()
        case {"int": int(amount)} if len(given) == 1 and not isinstance(amount, bool):
            if abs(amount) > 1 << 63:
                raise DRAError(where, "must be a number of 64 bits")
            return str(amount)
    known = ", ".join(_TYPES)
    raise DRAError(where, f"a property is one value: must have exactly one of {known}")


def _compute_resource(
    part: Slice, node: str, resource: str, properties: dict[str, str], devices: Sequence[str]
) -> dict[str, Any]:
    kept = kept_of(part.manifest)
    converted = _RESOURCE in kept
    properties |= kept_texts(kept, _LONG)
    common = common_properties(node, resource, {})
    written = kept.get(_OWN, "").split(",")
    own = {
        key: text for key, text in properties.items() if key in written or common.get(key) != text
    }
    capacity: Any = Quantity(len(devices))
    if converted:
        name = part.pool
        capacity = (
            quantity_from_api(kept[_CAPACITY], "status.capacity") if _CAPACITY in kept else None
        )
    else:
        name = compute_resource_name(node, resource, {**own, "pool": part.pool})
    listed = () if kept.get(_UNLISTED) == "true" else tuple(devices)
    manifest = compute_resource_to_api(ComputeResource(name, node, resource, own, capacity, listed))
    manifest["metadata"] = carried_metadata(part.manifest, name)
    try:
        compute_resource_from_api(manifest)
    except ClassError as error:
        raise DRAError(error.path, f"{error.problem} (as a ComputeResource)") from None
    return manifest
