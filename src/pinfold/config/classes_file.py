"""The classes of devices that an agent knows: a file of ResourceClasses and ComputeResources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.config.file_text import UnreadableError, file_text
from pinfold.config.values import ConfigError
from pinfold.core.classes.api import (
    API_VERSION,
    COMPUTE_RESOURCE,
    RESOURCE_CLASS,
    ClassError,
    class_from_api,
    compute_resource_from_api,
)
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.resource_class import ResourceClass
from pinfold.core.pod.api import described
from pinfold.formats.json_or_yaml import DocumentError, read_documents

MAX_BYTES: Final = 4 * 1024 * 1024


class LoadedClasses(Struct, frozen=True):
    """The classes, and what is said of devices."""

    classes: tuple[ResourceClass, ...] = ()
    described: tuple[ComputeResource, ...] = ()


def load_classes(path: str | None) -> LoadedClasses:
    """Read the classes of an agent; without a file there are none.

    Raises:
        ConfigError: no such file, or anything in it that is wrong; names the place.
    """
    if path is None:
        return LoadedClasses()
    try:
        documents = list(read_documents(file_text(path, MAX_BYTES, "a file of classes")))
    except UnreadableError as error:
        raise ConfigError(f"resourceClasses: {error}") from None
    except DocumentError as error:
        raise ConfigError(str(error), path) from None
    found: dict[tuple[str, str], ResourceClass | ComputeResource] = {}
    for document in documents:
        where = f"{path}: line {document.line}"
        kind, one = _object(document.content, where)
        if (kind, one.name) in found:
            raise ConfigError(f"{kind} {one.name} is there already", where)
        found[kind, one.name] = one
    return LoadedClasses(
        tuple(one for one in found.values() if isinstance(one, ResourceClass)),
        tuple(one for one in found.values() if isinstance(one, ComputeResource)),
    )


def _object(content: object, where: str) -> tuple[str, ResourceClass | ComputeResource]:
    fields: Mapping[str, Any] = content if isinstance(content, Mapping) else {}
    kind = fields.get("kind")
    if kind not in (RESOURCE_CLASS, COMPUTE_RESOURCE) or fields.get("apiVersion") != API_VERSION:
        raise ConfigError(
            f"must be a {RESOURCE_CLASS} or a {COMPUTE_RESOURCE} of {API_VERSION}; other objects, "
            "such as quotas, come by pinfold apply",
            where,
        )
    try:
        if kind == RESOURCE_CLASS:
            return kind, class_from_api(fields)
        return kind, compute_resource_from_api(fields)
    except ClassError as error:
        raise ConfigError(f"{described(fields)}: {error}", where) from None
