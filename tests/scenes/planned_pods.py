"""Guaranteed pods for plans."""

from __future__ import annotations

from typing import Any

from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.pod import Pod


def planned_pod(name: str, /, *, annotations: dict[str, str] | None = None, **cpus: object) -> Pod:
    """A pod whose containers ask for so many CPUs each.

    An init container's name ends in ``_``, a sidecar's starts with ``side``.
    """

    def container(called: str, amount: object) -> dict[str, Any]:
        both = {"cpu": str(amount), "memory": "64Mi"}
        sidecar = {"restartPolicy": "Always"} if called.startswith("side") else {}
        resources = {"limits": both, "requests": both}
        return {"name": called.rstrip("_"), "resources": resources} | sidecar

    started = {n: c for n, c in cpus.items() if n.startswith("side") or n.endswith("_")}
    said = {"name": name, "annotations": annotations or {}, "uid": f"uid-{name}"}
    return pod_from_api(
        {
            "metadata": said,
            "spec": {
                "initContainers": [container(*item) for item in started.items()],
                "containers": [container(n, c) for n, c in cpus.items() if n not in started],
            },
        }
    )
