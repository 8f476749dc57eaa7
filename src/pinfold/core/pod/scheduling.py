"""What a pod says of the nodes that it may run on, and nodes of the pods that may.

Source: the Kubernetes API (``core/v1``, 1.34) and upstream ``component-helpers/scheduling``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.core.pod.manifest.fields import mapping, mappings, text_of

HOSTNAME: Final = "kubernetes.io/hostname"
_UNHEEDED: Final = ("affinity", "topologySpreadConstraints", "schedulingGates")
_REPELS: Final = ("NoSchedule", "NoExecute")


class Taint(Struct, frozen=True):
    """A taint of a node."""

    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.value}" if self.value else self.key

    @property
    def repels(self) -> bool:
        """Whether a pod that does not tolerate it is not placed there."""
        return self.effect in _REPELS


UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
"""That of a node that is cordoned."""


class Toleration(Struct, frozen=True):
    """A toleration of a pod; what is empty stands for all."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether a taint is none to who says so."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.operator == "Exists" or (bool(self.key) and self.value == taint.value)


class Scheduling(Struct, frozen=True):
    """What a pod says; ``unheeded`` are the fields that are not heeded here."""

    node_selector: Mapping[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    unheeded: tuple[str, ...] = ()


ANYWHERE: Final = Scheduling()


def scheduling_from_api(manifest: Mapping[str, Any]) -> Scheduling:
    """Read what a Pod, or a template of pods, says; raises PodError."""
    spec = mapping(manifest.get("spec"), "spec")
    selector = mapping(spec.get("nodeSelector"), "spec.nodeSelector")
    found = Scheduling(
        {str(k): text_of(v, f"spec.nodeSelector.{k}") or "" for k, v in selector.items()},
        tuple(
            Toleration(*_texts(item, path, "key", "operator", "value", "effect"))
            for item, path in mappings(spec.get("tolerations"), "spec.tolerations")
        ),
        tuple(name for name in _UNHEEDED if spec.get(name)),
    )
    return ANYWHERE if found == ANYWHERE else found


def taints_from_api(value: object, path: str) -> tuple[Taint, ...]:
    """Read the taints of a node; raises PodError."""
    return tuple(
        Taint(*_texts(item, here, "key", "value", "effect")) for item, here in mappings(value, path)
    )


def _texts(item: Mapping[str, Any], path: str, *names: str) -> list[str]:
    return [text_of(item.get(name), f"{path}.{name}") or "" for name in names]
