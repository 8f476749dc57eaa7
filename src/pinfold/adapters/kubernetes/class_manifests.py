"""ResourceClasses and ComputeResources among other manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from pinfold.adapters.kubernetes.files import ManifestError, object_refused
from pinfold.core.classes.api import (
    COMPUTE_RESOURCE,
    GROUP,
    RESOURCE_CLASS,
    ClassError,
    class_from_api,
    compute_resource_from_api,
    pod_with_classes,
)
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.names import with_class_quota
from pinfold.core.classes.resource_class import ResourceClass
from pinfold.core.pod.api import described

_KINDS: Final = (RESOURCE_CLASS, COMPUTE_RESOURCE)
_GROUPS: Final = (None, GROUP)


class ClassManifests(Struct):
    """The classes that were read, and what is said of devices; each by its name."""

    classes: dict[str, ResourceClass] = field(default_factory=dict)
    compute_resources: dict[str, ComputeResource] = field(default_factory=dict)
    _read: dict[tuple[str, str], str] = field(default_factory=dict)

    @staticmethod
    def are(kind: str, group: str | None) -> bool:
        """Whether objects of this kind are read here; None is a group that is not said."""
        return kind in _KINDS and group in _GROUPS

    def read(self, kind: str, content: Mapping[str, Any], where: str) -> None:
        """Read one; raises ManifestError, which names the place."""
        try:
            if kind == RESOURCE_CLASS:
                name = self._once(kind, one := class_from_api(content), where)
                self.classes[name] = one
            else:
                name = self._once(kind, other := compute_resource_from_api(content), where)
                self.compute_resources[name] = other
        except ClassError as error:
            raise object_refused(where, f"{described(content)}: {error}") from None

    def _once(self, kind: str, one: ResourceClass | ComputeResource, where: str) -> str:
        before = self._read.setdefault((kind, one.name), where)
        if before != where:
            raise ManifestError(f"{where}: {kind} {one.name} is there already ({before})")
        return one.name

    def in_pod(self, pod: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """A pod, or a template, with classes by the names of their resources; raises PodError."""
        return pod_with_classes(pod, self.classes, path)

    def in_quota(self, quota: Mapping[str, Any]) -> Mapping[str, Any]:
        """A quota with classes by the names that are counted."""
        return with_class_quota(quota, self.classes)
