"""What the API server would refuse in what a pod takes from the downward API, in its words.

Source: upstream ``pkg/apis/core/validation`` (1.34), and KEP-6369 for ``assigned.cpuset`` and
``assigned.memset``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pinfold.core.pod.api import PodError, quantity_from_api
from pinfold.core.pod.manifest.assigned_fields import ASSIGNED
from pinfold.core.pod.manifest.names import items
from pinfold.core.pod.pod import CPU, MEMORY, is_hugepages

_BINARY_DIVISORS: Final = (
    *("1", "1k", "1M", "1G", "1T", "1P", "1E"),
    *("1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"),
)
_FIELD_RESOURCES: Final = tuple(
    f"{key}.{name}" for key in ("limits", "requests") for name in (CPU, "ephemeral-storage", MEMORY)
)
"""Those that the text of the API server names."""

_VOLUME_FIELDS: Final = (
    *("metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace"),
    "metadata.uid",
)
_MOST: Final = 0o777
_MODE: Final = "must be a number between 0 and 0777 (octal), both inclusive"


def downward_problems(source: Mapping[str, Any], path: str) -> Iterator[PodError]:
    """Yield what is wrong with a ``downwardAPI`` volume."""
    yield from _mode_problems(source.get("defaultMode"), f"{path}.defaultMode")
    seen: set[str] = set()
    for item, here in items(source, "items", path):
        name = item.get("path")
        if not isinstance(name, str) or not name:
            yield PodError(f"{here}.path", "Required value")
        else:
            yield from _path_problems(name, f"{here}.path")
            if name in seen:
                yield PodError(f"{here}.path", f'Duplicate value: "{name}"')
            seen.add(name)
        field, resource = item.get("fieldRef"), item.get("resourceFieldRef")
        if isinstance(field, Mapping):
            yield from _object_field_problems(field, f"{here}.fieldRef")
            if resource is not None:
                yield PodError(
                    here,
                    'Invalid value: "resource": fieldRef and resourceFieldRef can not be '
                    "specified simultaneously",
                )
        elif isinstance(resource, Mapping):
            where = f"{here}.resourceFieldRef"
            yield from resource_field_problems(resource, where, in_volume=True)
        else:
            yield PodError(here, "Required value: one of fieldRef and resourceFieldRef is required")
        yield from _mode_problems(item.get("mode"), f"{here}.mode")


def _mode_problems(value: object, path: str) -> Iterator[PodError]:
    if isinstance(value, int) and not isinstance(value, bool) and not 0 <= value <= _MOST:
        yield PodError(path, f"Invalid value: {value}: {_MODE}")


def _path_problems(name: str, path: str) -> Iterator[PodError]:
    shown = name[:80]
    if name.startswith("/"):
        yield PodError(path, f'Invalid value: "{shown}": must be a relative path')
    if ".." in name.split("/"):
        yield PodError(path, f"Invalid value: \"{shown}\": must not contain '..'")
    elif name.startswith(".."):
        yield PodError(path, f"Invalid value: \"{shown}\": must not start with '..'")
    elif "\0" in name or not name.strip("/.") or any(part in {"", "."} for part in name.split("/")):
        yield PodError(path, f'Invalid value: "{shown!r}": must be a path of a file')


def _object_field_problems(field: Mapping[str, Any], path: str) -> Iterator[PodError]:
    name = field.get("fieldPath")
    if not isinstance(name, str) or not name:
        yield PodError(f"{path}.fieldPath", "Required value")
    elif name.partition("[")[0] not in _VOLUME_FIELDS:
        known = ", ".join(f'"{one}"' for one in _VOLUME_FIELDS)
        yield PodError(
            f"{path}.fieldPath", f'Unsupported value: "{name[:80]}": supported values: {known}'
        )


def resource_field_problems(
    field: Mapping[str, Any], path: str, *, in_volume: bool = False
) -> Iterator[PodError]:
    """Yield what is wrong with a ``resourceFieldRef``; ``in_volume`` it has to name a container."""
    if in_volume and not field.get("containerName"):
        yield PodError(f"{path}.containerName", "Required value")
        return
    resource = field.get("resource")
    if not isinstance(resource, str) or not resource:
        yield PodError(f"{path}.resource", "Required value")
        return
    key, _, name = resource.partition(".")
    pages = key in ("limits", "requests") and is_hugepages(name)
    if not pages and resource not in (*_FIELD_RESOURCES, *ASSIGNED):
        names = ", ".join(f'"{known}"' for known in _FIELD_RESOURCES)
        yield PodError(
            f"{path}.resource", f'Unsupported value: "{resource}": supported values: {names}'
        )
        return
    value = field.get("divisor")
    try:
        divisor = quantity_from_api("0" if value is None else value, f"{path}.divisor")
    except PodError as error:
        yield error
        return
    if divisor.is_zero:
        return
    known: tuple[str, ...] = _BINARY_DIVISORS
    texts, kind = ", ".join(known), name
    if resource in ASSIGNED:
        known, texts, kind = ("1",), "1", resource
    elif name == CPU:
        known, texts = ("1m", "1"), "1m and 1"
    elif name == "ephemeral-storage":
        kind = "local ephemeral storage"
    elif pages:
        kind = "hugepages"
    if str(divisor) not in known:
        yield PodError(
            f"{path}.divisor",
            f'Invalid value: "{resource}": only divisor\'s values {texts} are supported with the '
            f"{kind} resource",
        )
