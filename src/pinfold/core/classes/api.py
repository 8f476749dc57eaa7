"""ResourceClass and ComputeResource in the Kubernetes API's JSON form.

Errors name the field by its path, as the API server does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from pinfold.core.classes.compute_resource import MOST_DEVICES, ComputeResource
from pinfold.core.classes.names import (
    class_name_problems,
    class_resource,
    doubled_names,
    with_class_resources,
)
from pinfold.core.classes.resource_class import (
    CLUSTERLEVEL,
    NODELEVEL,
    OPERATORS,
    ORDER,
    PRESENCE,
    ProvisionConfig,
    Requirement,
    ResourceClass,
)
from pinfold.core.pod.api import PodError, quantity_from_api
from pinfold.core.values.names import invalid, qualified_name_problems, subdomain_problems
from pinfold.core.values.quantity import Quantity

GROUP: Final = "pinfold.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
RESOURCE_CLASS: Final = "ResourceClass"
COMPUTE_RESOURCE: Final = "ComputeResource"
MOST_PRIORITY: Final = 1_000_000_000
MOST_SELECTORS: Final = 64
MOST_VALUES: Final = 256
MOST_PROPERTIES: Final = 64
LONGEST_TEXT: Final = 253


class ClassError(PodError):
    """An object that is no class, or no compute resource; ``path`` is the field that is wrong."""


def class_from_api(manifest: Mapping[str, Any]) -> ResourceClass:
    """Read a ResourceClass.

    Raises:
        ClassError: a field that is wrong, missing or unknown.
    """
    _check_version(manifest)
    name = _name(manifest, class_name_problems)
    spec = _fields(manifest.get("spec"), "spec", ("labelSelector", "priority", "provisionConfig"))
    items = _list(spec.get("labelSelector"), "spec.labelSelector", MOST_SELECTORS)
    # A status is nobody's to get right: what it cannot mean, it does not say.
    status = manifest.get("status")
    last = status.get("resourceName") if isinstance(status, Mapping) else None
    return ResourceClass(
        name,
        tuple(_selector(item, f"spec.labelSelector[{at}]") for at, item in enumerate(items)),
        _whole(spec.get("priority", 0), "spec.priority", -MOST_PRIORITY, MOST_PRIORITY),
        _provision(spec.get("provisionConfig"), "spec.provisionConfig"),
        last if isinstance(last, str) else "",
    )


def pod_with_classes(
    pod: Mapping[str, Any], classes: Collection[str], path: str = ""
) -> Mapping[str, Any]:
    """A Pod manifest (or a template) that asks for classes by the names of their resources.

    Raises:
        PodError: a container asks for one class by both of its names.
    """
    for field, name in doubled_names(pod, classes):
        raise PodError(
            f"{path}{field}[{name}]",
            f"Forbidden: {class_resource(name)} is the same and is there, too; ask by one name",
        )
    return with_class_resources(pod, classes)


def class_to_api(one: ResourceClass) -> dict[str, Any]:
    """A ResourceClass as a manifest: what :func:`class_from_api` reads."""
    selectors = [
        {
            "matchExpressions": [
                {"key": r.key, "operator": r.operator}
                | ({"values": list(r.values)} if r.operator not in PRESENCE else {})
                for r in selector
            ]
        }
        for selector in one.selectors
    ]
    spec: dict[str, Any] = {"labelSelector": selectors}
    if one.priority:
        spec["priority"] = one.priority
    if one.provision != ProvisionConfig():
        provision = one.provision
        spec["provisionConfig"] = {
            "resourceType": provision.resource_type,
            "capacityNodeLabelKeys": list(provision.capacity_node_label_keys),
        }
        if provision.provision_seconds is not None:
            spec["provisionConfig"]["provisionSeconds"] = provision.provision_seconds
    return {
        "apiVersion": API_VERSION,
        "kind": RESOURCE_CLASS,
        "metadata": {"name": one.name},
        "spec": spec,
    }


def compute_resource_from_api(manifest: Mapping[str, Any]) -> ComputeResource:
    """Read a ComputeResource.

    Raises:
        ClassError: a field that is wrong, missing or unknown.
    """
    _check_version(manifest)
    name = _name(manifest, subdomain_problems)
    known = ("nodeName", "resourceName", "properties", "devices")
    spec = _fields(manifest.get("spec"), "spec", known)
    node = _text(spec.get("nodeName", ""), "spec.nodeName")
    if node:
        _refuse(node, subdomain_problems, "spec.nodeName")
    resource = _text(spec.get("resourceName"), "spec.resourceName")
    _refuse(resource, qualified_name_problems, "spec.resourceName")
    devices = _texts(spec.get("devices"), "spec.devices", MOST_DEVICES)
    status = _mapping(manifest.get("status"), "status")
    capacity = status.get("capacity")
    return ComputeResource(
        name,
        node,
        resource,
        _properties(spec.get("properties"), "spec.properties"),
        None if capacity is None else _quantity(capacity, "status.capacity"),
        devices,
    )


def compute_resource_to_api(one: ComputeResource) -> dict[str, Any]:
    """A ComputeResource as a manifest: what :func:`compute_resource_from_api` reads."""
    spec: dict[str, Any] = {"nodeName": one.node_name} if one.node_name else {}
    spec |= {"resourceName": one.resource_name, "properties": dict(one.properties)}
    if one.devices:
        spec["devices"] = list(one.devices)
    manifest: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": COMPUTE_RESOURCE,
        "metadata": {"name": one.name},
        "spec": spec,
    }
    if one.capacity is not None:
        manifest["status"] = {"capacity": str(one.capacity)}
    return manifest


def _selector(item: object, path: str) -> tuple[Requirement, ...]:
    fields = _fields(item, path, ("matchExpressions",))
    where = f"{path}.matchExpressions"
    items = _list(fields.get("matchExpressions"), where, MOST_SELECTORS)
    if not items:
        raise ClassError(where, "Required value: a selector without requirements selects nothing")
    return tuple(_requirement(one, f"{where}[{at}]") for at, one in enumerate(items))


def _requirement(item: object, path: str) -> Requirement:
    fields = _fields(item, path, ("key", "operator", "values"))
    key = _key(fields.get("key"), f"{path}.key")
    operator = _text(fields.get("operator"), f"{path}.operator")
    if operator not in OPERATORS:
        known = ", ".join(f'"{one}"' for one in OPERATORS)
        raise ClassError(
            f"{path}.operator", f'Unsupported value: "{operator[:80]}": supported values: {known}'
        )
    where = f"{path}.values"
    values = _texts(fields.get("values"), where, MOST_VALUES)
    when = f"when `operator` is '{operator}'"
    if operator in PRESENCE and values:
        raise ClassError(where, f"Forbidden: may not be specified {when}")
    if operator not in PRESENCE and not values:
        raise ClassError(where, f"Required value: must be specified {when}")
    if operator in ORDER:
        if len(values) > 1:
            raise ClassError(where, f"Invalid value: must have one value {when}")
        _quantity(values[0], f"{where}[0]")
    return Requirement(key, operator, values)


def _provision(value: object, path: str) -> ProvisionConfig:
    known = ("resourceType", "capacityNodeLabelKeys", "provisionSeconds")
    fields = _fields(value, path, known)
    kind = _text(fields.get("resourceType", NODELEVEL), f"{path}.resourceType")
    if kind not in (CLUSTERLEVEL, NODELEVEL):
        raise ClassError(
            f"{path}.resourceType",
            f'Unsupported value: "{kind[:80]}": supported values: "{CLUSTERLEVEL}", "{NODELEVEL}"',
        )
    where = f"{path}.capacityNodeLabelKeys"
    labels = _texts(fields.get("capacityNodeLabelKeys"), where, MOST_SELECTORS)
    for at, label in enumerate(labels):
        _refuse(label, qualified_name_problems, f"{where}[{at}]")
    seconds = fields.get("provisionSeconds")
    where = f"{path}.provisionSeconds"
    return ProvisionConfig(
        kind, labels, None if seconds is None else _whole(seconds, where, 0, MOST_PRIORITY)
    )


def _properties(value: object, path: str) -> Mapping[str, str]:
    fields = _mapping(value, path)
    if len(fields) > MOST_PROPERTIES:
        raise ClassError(path, f"Too many: {len(fields)}: must have at most {MOST_PROPERTIES}")
    return {
        _text(key, path): _text(text, f"{path}[{str(key)[:80]}]") for key, text in fields.items()
    }


def _check_version(manifest: Mapping[str, Any]) -> None:
    version = manifest.get("apiVersion")
    if version not in (None, API_VERSION):
        problem = f"unknown version {str(version)[:80]!r}; there is {API_VERSION}"
        raise ClassError("apiVersion", problem)


def _name(manifest: Mapping[str, Any], problems: Callable[[str], Iterator[str]]) -> str:
    metadata = _mapping(manifest.get("metadata"), "metadata")
    name = _text(metadata.get("name", ""), "metadata.name")
    if not name:
        raise ClassError("metadata.name", "Required value")
    _refuse(name, problems, "metadata.name")
    return name


def _refuse(value: str, problems: Callable[[str], Iterator[str]], path: str) -> None:
    for problem in problems(value):
        raise ClassError(path, invalid(value, problem))


def _fields(value: object, path: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    fields = _mapping(value, path)
    for name in fields:
        if name not in known:
            raise ClassError(
                f"{path}.{str(name)[:80]}", f"unknown field; there are {', '.join(known)}"
            )
    return fields


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ClassError(path, "must be a mapping")
    return value


def _list(value: object, path: str, most: int) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ClassError(path, "must be a list")
    if len(value) > most:
        raise ClassError(path, f"Too many: {len(value)}: must have at most {most} items")
    return value


def _texts(value: object, path: str, most: int) -> tuple[str, ...]:
    return tuple(_text(one, f"{path}[{at}]") for at, one in enumerate(_list(value, path, most)))


def _text(value: object, path: str) -> str:
    if value is None:
        raise ClassError(path, "Required value")
    if not isinstance(value, str):
        raise ClassError(path, "must be a string (quote it)")
    if len(value) > LONGEST_TEXT:
        raise ClassError(path, f"Too long: may not be more than {LONGEST_TEXT} characters")
    return value


def _key(value: object, path: str) -> str:
    key = _text(value, path)
    _refuse(key, qualified_name_problems, path)
    return key


def _whole(value: object, path: str, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ClassError(path, "must be an integer")
    if not least <= value <= most:
        raise ClassError(path, f"Invalid value: {value}: must be from {least} to {most}"[:200])
    return value


def _quantity(value: object, path: str) -> Quantity:
    try:
        return quantity_from_api(value, path)
    except PodError as error:
        raise ClassError(error.path, error.problem) from None
