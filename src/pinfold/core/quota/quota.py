"""ResourceQuota: how much of what the pods of a namespace may ask for together.

Source: the Kubernetes API (``core/v1`` ``ResourceQuota``, 1.34).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.pod.api import PodError, quantities_from_api, quantity_from_api
from pinfold.core.pod.manifest.fields import mapping, mappings, text_of
from pinfold.core.pod.pod import NO_RESOURCES, Resources
from pinfold.core.quota.names import EXISTS


class ScopeRequirement(Struct, frozen=True):
    """A scope, and what of it has to hold; ``values`` None is a list that is not there."""

    scope_name: str
    operator: str
    values: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f"{{{self.scope_name} {self.operator} [{' '.join(self.values or ())}]}}"


class ResourceQuota(Struct, frozen=True):
    """A quota; ``selector`` None is a ``scopeSelector`` that is not there.

    ``status_hard`` and ``used`` are those of its status: what it enforces, and what is in use.
    ``resource_version`` is that of the object read, "" for one of a manifest.
    """

    namespace: str
    name: str
    hard: Resources = NO_RESOURCES
    scopes: tuple[str, ...] = ()
    selector: tuple[ScopeRequirement, ...] | None = None
    status_hard: Resources = NO_RESOURCES
    used: Resources = NO_RESOURCES
    resource_version: str = ""
    uid: str = ""
    annotations: Mapping[str, str] = {}

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def requirements(self) -> Iterator[ScopeRequirement]:
        """All that a pod has to meet for the quota to count it."""
        for scope in self.scopes:
            yield ScopeRequirement(scope, EXISTS)
        yield from self.selector or ()

    @property
    def counts_claims(self) -> bool:
        """Whether claims are charged to it: what is asked of pods, no claim meets."""
        return not any(self.requirements)

    def with_status(self, used: Resources) -> ResourceQuota:
        """The quota in force as its spec says, with this in use."""
        return replace(self, status_hard=self.hard, used=used)


def quota_from_api(manifest: Mapping[str, Any], path: str = "") -> ResourceQuota:
    """Read a ResourceQuota; what the API server would refuse in it is not looked for.

    ``path`` is where the object is, for error texts.

    Raises:
        PodError: a field of the wrong type, or a malformed quantity.
    """
    metadata = mapping(manifest.get("metadata"), f"{path}metadata")
    spec = mapping(manifest.get("spec"), f"{path}spec")
    status = mapping(manifest.get("status"), f"{path}status")
    annotations = mapping(metadata.get("annotations"), f"{path}metadata.annotations")
    return ResourceQuota(
        namespace=text_of(metadata.get("namespace"), f"{path}metadata.namespace") or "default",
        name=text_of(metadata.get("name"), f"{path}metadata.name") or "",
        hard={
            str(name): quantity_from_api(amount, f"{path}spec.hard[{name}]")
            for name, amount in mapping(spec.get("hard"), f"{path}spec.hard").items()
        },
        scopes=tuple(_texts(spec.get("scopes"), f"{path}spec.scopes") or ()),
        selector=_selector(spec.get("scopeSelector"), f"{path}spec.scopeSelector"),
        status_hard=quantities_from_api(status.get("hard"), f"{path}status.hard"),
        used=quantities_from_api(status.get("used"), f"{path}status.used"),
        resource_version=text_of(metadata.get("resourceVersion"), f"{path}metadata.resourceVersion")
        or "",
        uid=text_of(metadata.get("uid"), f"{path}metadata.uid") or "",
        annotations={
            str(key): text_of(value, f"{path}metadata.annotations.{key}") or ""
            for key, value in annotations.items()
        },
    )


def requirements_from_api(value: object, path: str) -> tuple[ScopeRequirement, ...]:
    """Read a list of ``{scopeName, operator, values}``; raises PodError."""
    return tuple(
        ScopeRequirement(
            text_of(item.get("scopeName"), f"{here}.scopeName") or "",
            text_of(item.get("operator"), f"{here}.operator") or "",
            _texts(item.get("values"), f"{here}.values"),
        )
        for item, here in mappings(value, path)
    )


def _selector(value: object, path: str) -> tuple[ScopeRequirement, ...] | None:
    if value is None:
        return None
    expressions = mapping(value, path).get("matchExpressions")
    return requirements_from_api(expressions, f"{path}.matchExpressions")


def _texts(value: object, path: str) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise PodError(path, "must be a list of strings")
    return tuple(text_of(item, f"{path}[{index}]") or "" for index, item in enumerate(value))
