"""Pods that get CPUs and memory as a whole, and nodes that serve them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from tests.scenes.manager_harness import ALL_MANAGERS, STATIC

_GATES: Final = {"PodLevelResourceManagers": True}

WHOLE: Final = replace(
    STATIC,
    topology_manager_policy="best-effort",
    topology_manager_scope="pod",
    feature_gates=_GATES,
)
"""CPUs are given to pods as a whole."""

WHOLE_MEMORY: Final = replace(ALL_MANAGERS, topology_manager_scope="pod", feature_gates=_GATES)
"""CPUs and memory are."""

BY_CONTAINER: Final = replace(WHOLE, topology_manager_scope="container")
"""The gate is on, and pods are aligned container by container."""


def whole_pod(
    name: str,
    budget: str,
    *own: str,
    shared: int = 1,
    init: Sequence[str] = (),
    sidecars: Sequence[str] = (),
    memory: str = "1Gi",
    **spec: Any,
) -> dict[str, Any]:
    """A pod with resources of its own: ``budget`` CPUs, and this much memory.

    Its containers ``c0``... have ``own`` CPUs, ``shared`` ones ``p0``... none; then ``init`` ones
    ``i0``... and sidecars ``s0``... ("" is none).
    """

    def container(label: str, cpu: str, **more: Any) -> dict[str, Any]:
        limits = {"cpu": cpu, "memory": "64Mi"} if cpu else {}
        resources = {"limits": limits, "requests": limits}
        return {"name": label, "command": ["run"], "resources": resources, **more}

    limits = {"cpu": budget, "memory": memory}
    beside = [container(f"s{n}", cpu, restartPolicy="Always") for n, cpu in enumerate(sidecars)]
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "resources": {"limits": limits, "requests": limits},
            "initContainers": [container(f"i{n}", cpu) for n, cpu in enumerate(init)] + beside,
            "containers": [container(f"c{n}", cpu) for n, cpu in enumerate(own)]
            + [container(f"p{n}", "") for n in range(shared)],
            **spec,
        },
    }
