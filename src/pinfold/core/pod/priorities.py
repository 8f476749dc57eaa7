"""Priorities of pods by the names of their classes, as an API server fills them in.

Source: upstream ``plugin/pkg/admission/priority`` and ``pkg/apis/scheduling`` (1.34).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.fields import flag, mapping, text_of
from pinfold.core.pod.pod import SYSTEM_CRITICAL_PRIORITY, SYSTEM_NODE_CRITICAL, Pod

_HIGHEST: Final = 1_000_000_000
_SYSTEM: Final = "system-"


class PriorityClass(Struct, frozen=True):
    """A PriorityClass; ``is_default`` is for pods that name none."""

    name: str
    value: int
    is_default: bool = False


_BUILT_IN: Final = (
    PriorityClass("system-cluster-critical", SYSTEM_CRITICAL_PRIORITY),
    PriorityClass(SYSTEM_NODE_CRITICAL, SYSTEM_CRITICAL_PRIORITY + 1000),
)


class Priorities(Struct, frozen=True):
    """The classes that there are: those of Kubernetes itself, and others."""

    classes: Mapping[str, PriorityClass]

    @staticmethod
    def of(classes: Iterable[PriorityClass] = ()) -> Priorities:
        """These, and those of Kubernetes itself."""
        return Priorities({one.name: one for one in (*classes, *_BUILT_IN)})

    def knows(self, pod: Pod) -> bool:
        """Whether the priority of a pod is known."""
        named = pod.priority_class_name
        return pod.priority is not None or not named or named in self.classes

    def given(self, pod: Pod) -> Pod:
        """The pod with the priority of its class, or the default one, if it says none itself."""
        if pod.priority is not None:
            return pod
        named = self.classes.get(pod.priority_class_name or "")
        if named is not None:
            return replace(pod, priority=named.value)
        default = [one for one in self.classes.values() if one.is_default]
        if pod.priority_class_name or not default:
            return pod
        lowest = min(default, key=lambda one: one.value)
        return replace(pod, priority=lowest.value, priority_class_name=lowest.name)


def priority_class_from_api(manifest: Mapping[str, Any]) -> PriorityClass:
    """Read a PriorityClass.

    Raises:
        PodError: what the API server would refuse.
    """
    metadata = mapping(manifest.get("metadata"), "metadata")
    name = text_of(metadata.get("name"), "metadata.name")
    if not name:
        raise PodError("metadata.name", "Required value: name or generateName is required")
    value = manifest.get("value", 0)
    if not isinstance(value, int) or isinstance(value, bool):
        raise PodError("value", "must be an integer")
    if value > _HIGHEST and not name.startswith(_SYSTEM):
        problem = f"maximum allowed value of a user defined priority is {_HIGHEST}"
        raise PodError("value", f"Forbidden: {problem}")
    return PriorityClass(name, value, flag(manifest.get("globalDefault"), "globalDefault"))
