"""Pods in the Kubernetes API's JSON form.

Errors name the field by its path, as the API server does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pinfold.core.pod.pod import NO_RESOURCES, Container, Pod, PodResources, Resources
from pinfold.core.values.errors import PinfoldError, wrong_type
from pinfold.core.values.quantity import NULL, Quantity, QuantityError

_LARGEST: Final = 10**64
"""Larger integers are no quantities, and Python does not print those of thousands of digits."""


class PodError(PinfoldError, ValueError):
    """An object that is no pod; ``path`` is the field that is wrong."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


def described(manifest: Mapping[str, Any]) -> str:
    """An object in the words of an error: its kind and, where it has one, its name."""
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    shown = repr(name) if isinstance(name, str) else "without a name"
    return f"{manifest.get('kind')} {shown}"


def pod_from_api(manifest: Mapping[str, Any], path: str = "") -> Pod:
    """Read a Pod object (or a pod template); nothing is defaulted.

    ``path`` is where the object is, for error texts (such as ``spec.template.``).

    Raises:
        PodError: a field of the wrong type, or a malformed quantity.
        TypeError: no mapping.
    """
    if not isinstance(manifest, Mapping):
        raise wrong_type("manifest", "a Pod as a mapping", manifest)
    metadata = _mapping(manifest.get("metadata"), f"{path}metadata")
    spec = _mapping(manifest.get("spec"), f"{path}spec")
    annotations = _mapping(metadata.get("annotations"), f"{path}metadata.annotations")
    name = _text(metadata.get("name"), f"{path}metadata.name") or ""
    namespace = _text(metadata.get("namespace"), f"{path}metadata.namespace") or "default"
    source = annotations.get("kubernetes.io/config.source", "api")
    return Pod(
        uid=_text(metadata.get("uid"), f"{path}metadata.uid") or f"{namespace}/{name}",
        name=name,
        namespace=namespace,
        init_containers=tuple(_containers(spec, "initContainers", path)),
        containers=tuple(_containers(spec, "containers", path)),
        overhead=quantities_from_api(spec.get("overhead"), f"{path}spec.overhead"),
        resources=_pod_resources(spec.get("resources"), f"{path}spec.resources"),
        annotations=annotations,
        priority=_whole(spec.get("priority"), f"{path}spec.priority"),
        priority_class_name=_text(spec.get("priorityClassName"), f"{path}spec.priorityClassName"),
        creation_timestamp=_text(
            metadata.get("creationTimestamp"), f"{path}metadata.creationTimestamp"
        ),
        node_name=_text(spec.get("nodeName"), f"{path}spec.nodeName") or "",
        static=source != "api",
        scale_down_grace_period=_whole(
            spec.get("scaleDownGracePeriodSeconds"), f"{path}spec.scaleDownGracePeriodSeconds"
        ),
    )


def metadata_of(pod: Pod) -> dict[str, str]:
    """What a ``fieldRef`` may name here."""
    return {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": pod.uid,
    }


def _containers(spec: Mapping[str, Any], key: str, path: str) -> Iterable[Container]:
    items = spec.get(key)
    if items is None:
        return
    where = f"{path}spec.{key}"
    if not isinstance(items, list):
        raise PodError(where, f"must be a list, not {_kind(items)}")
    for index, item in enumerate(items):
        here = f"{where}[{index}]"
        fields = _mapping(item, here)
        name = _text(fields.get("name"), f"{here}.name")
        if not name:
            raise PodError(f"{here}.name", "Required value")
        resources = _mapping(fields.get("resources"), f"{here}.resources")
        yield Container(
            name,
            quantities_from_api(resources.get("requests"), f"{here}.resources.requests"),
            quantities_from_api(resources.get("limits"), f"{here}.resources.limits"),
            _text(fields.get("restartPolicy"), f"{here}.restartPolicy"),
        )


def _pod_resources(value: object, path: str) -> PodResources | None:
    if value is None:
        return None
    fields = _mapping(value, path)
    return PodResources(
        quantities_from_api(fields.get("requests"), f"{path}.requests"),
        quantities_from_api(fields.get("limits"), f"{path}.limits"),
    )


def quantities_from_api(value: object, path: str) -> Resources:
    """Read a list of resources, as JSON and YAML have it; None is an empty one; raises PodError."""
    if value is None:
        return NO_RESOURCES
    return {
        str(name): quantity_from_api(amount, f"{path}.{name}")
        for name, amount in _mapping(value, path).items()
    }


def quantity_from_api(value: object, path: str) -> Quantity:
    """Read a quantity that is a text or a number, as JSON and YAML have it; raises PodError.

    None is nothing, as with the API server: a limit of ``null`` is a limit of 0.
    """
    if value is None:
        return NULL
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PodError(path, f"must be a quantity such as 500m or 1Gi, not {_kind(value)}")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise PodError(path, "Invalid value: a number beyond any resource")
    try:
        return Quantity.parse(str(value).strip())
    except QuantityError as error:
        raise PodError(path, f"Invalid value: {str(value)[:80]!r}: {error}") from None


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PodError(path, f"must be a mapping, not {_kind(value)}")
    return value


def _whole(value: object, path: str) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise PodError(path, f"must be an integer, not {value!r}"[:200])


def _text(value: object, path: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise PodError(path, f"must be a string, not {_kind(value)} (quote it)")


def as_yaml(value: object) -> str:
    """A value that is no text, as a manifest has it."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _kind(value: object) -> str:
    kinds = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return "nothing" if value is None else kinds.get(type(value), "a mapping")
