"""Where the objects that create pods have the template of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct


class Workload(Struct, frozen=True):
    """A kind that creates pods: its API groups, and where the object with ``template`` is."""

    groups: tuple[str, ...]
    path: tuple[str, ...] = ("spec",)


POD_GROUPS: Final = ("",)
_APPS: Final = Workload(("apps", "extensions"))
WORKLOADS: Final[Mapping[str, Workload]] = {
    "Deployment": _APPS,
    "StatefulSet": _APPS,
    "DaemonSet": _APPS,
    "ReplicaSet": _APPS,
    "ReplicationController": Workload(POD_GROUPS),
    "Job": Workload(("batch",)),
    "CronJob": Workload(("batch",), ("spec", "jobTemplate", "spec")),
}


def template_path(kind: str) -> tuple[str, ...] | None:
    """Where an object has its pod, or the template of its pods; None for kinds without pods.

    >>> template_path("CronJob")
    ('spec', 'jobTemplate', 'spec', 'template')
    """
    if kind == "Pod":
        return ()
    return (*WORKLOADS[kind].path, "template") if kind in WORKLOADS else None


def pod_template(kind: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A pod, or the template of those that a workload creates; nothing where there is none."""
    path = template_path(kind)
    holder: Any = {} if path is None else content
    for key in path or ():
        holder = holder.get(key) if isinstance(holder, Mapping) else None
    return holder if isinstance(holder, Mapping) else {}
