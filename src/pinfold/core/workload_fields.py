"""Which fields of a manifest are not honoured when its pod is run as containers.

A kubelet would honour them: whoever moves a manifest is told, and nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

_ANY: Final = "any"
"""Everything below is honoured, or has no effect on one node."""

_ENV: Final = {"name": _ANY, "value": _ANY, "valueFrom": {"fieldRef": _ANY}}
_CONTAINER: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("name", "image", "command", "args", "workingDir", "resources"), _ANY),
    **dict.fromkeys(("imagePullPolicy", "restartPolicy"), _ANY),
    "env": [_ENV],
    "ports": [{"name": _ANY, "containerPort": _ANY, "protocol": _ANY}],
    "securityContext": {"privileged": _ANY, "runAsUser": _ANY, "runAsGroup": _ANY},
    "volumeMounts": [{"name": _ANY, "mountPath": _ANY, "readOnly": _ANY}],
}
_SPEC: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("restartPolicy", "terminationGracePeriodSeconds", "runtimeClassName"), _ANY),
    **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "resources", "overhead"), _ANY),
    **dict.fromkeys(("priority", "priorityClassName", "preemptionPolicy", "nodeName"), _ANY),
    "securityContext": {"runAsUser": _ANY, "runAsGroup": _ANY},
    "volumes": [{"name": _ANY, "hostPath": _ANY, "emptyDir": {"medium": _ANY, "sizeLimit": _ANY}}],
    "containers": [_CONTAINER],
    "initContainers": [_CONTAINER],
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    # What the API server writes into each pod, and what is so here anyway.
    "dnsPolicy": "ClusterFirst",
    "enableServiceLinks": True,
    "schedulerName": "default-scheduler",
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}


def unsupported_fields(manifest: Mapping[str, Any]) -> list[str]:
    """List the fields of a Pod's ``spec`` that have no effect here, by their paths.

    Fields that are empty, or say what the API server says by default, are left out, and so is
    ``metadata``.  The manifest is one that :func:`pinfold.core.workload_api.workload_from_api` has
    taken; of another, what can be understood is listed.
    """
    spec = manifest.get("spec")
    return [*_unknown(spec, _SPEC, "spec"), *_sizes_on_disk(spec)]


def _sizes_on_disk(spec: object) -> Iterator[str]:
    """Size limits of volumes that are not in memory: a kubelet evicts the pod that exceeds them."""
    volumes = spec.get("volumes") if isinstance(spec, Mapping) else None
    for index, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        source = volume.get("emptyDir") if isinstance(volume, Mapping) else None
        if (
            isinstance(source, Mapping)
            and not source.get("medium")
            and source.get("sizeLimit") is not None
        ):
            yield f"spec.volumes[{index}].emptyDir.sizeLimit"


def _unknown(value: object, known: Any, path: str) -> Iterator[str]:  # noqa: ANN401 - a tree of names
    if known == _ANY or value is None:
        return
    if isinstance(known, list):
        for index, item in enumerate(value if isinstance(value, list) else ()):
            yield from _unknown(item, known[0], f"{path}[{index}]")
        return
    if not isinstance(value, Mapping):
        return
    for name, below in value.items():
        here = f"{path}.{name}"
        if name in known:
            yield from _unknown(below, known[name], here)
        elif not _says_nothing(name, below):
            yield here


def _says_nothing(name: str, value: object) -> bool:
    return value in (None, "", [], {}) or (name in _DEFAULTS and value == _DEFAULTS[name])
