"""What a kubelet answers to a pod whose resources are changed while it runs.

Two are asked: first the handler of resizes, which knows pods that cannot be resized at all, then
the topology manager, which admits the pod anew as it is to be.  Source: upstream
``allocation/handlers.go`` (kubelet 1.34 to 1.36).
"""

from __future__ import annotations

from typing import Final

from pinfold.core.kubelet.feature_gates import (
    RESIZE,
    RESIZE_EXCLUSIVE_CPUS,
    RESIZE_EXCLUSIVE_MEMORY,
)
from pinfold.core.kubelet.node_config import STATIC, NodeConfig
from pinfold.core.memory.reservation import STATIC as STATIC_MEMORY
from pinfold.core.pod.pod import CPU, MEMORY, Pod, QOSClass
from pinfold.core.values.quantity import ZERO

INFEASIBLE: Final = "Infeasible"
"""The reason where a resize can never be had on this node."""


def infeasible_resize(before: Pod, after: Pod, config: NodeConfig) -> str | None:
    """Why the handler refuses a resize, in the kubelet's words; None: it lets it go on.

    A Guaranteed pod may have CPUs or memory of its own, so under a static policy its requests
    cannot change unless a gate says that they can.  What its containers really have is not asked.

    Args:
        before: the pod as it runs.
        after: the same as it is to be.
        config: policies, version and gates.
    """
    if not config.gate(RESIZE):
        return "InPlacePodVerticalScaling is disabled"
    if after.static:
        return "In-place resize of static-pods is not supported"
    if after.qos is not QOSClass.GUARANTEED:
        return None
    for manager, policy, static, gate, resource in (
        ("CPU", config.cpu_manager_policy, STATIC, RESIZE_EXCLUSIVE_CPUS, CPU),
        ("Memory", config.memory_manager_policy, STATIC_MEMORY, RESIZE_EXCLUSIVE_MEMORY, MEMORY),
    ):
        if policy == static and not config.gate(gate) and _changes(before, after, resource):
            return (
                f"Resize is infeasible for Guaranteed Pods alongside {manager} Manager policy "
                f'"{policy}"'
            )
    return None


def _changes(before: Pod, after: Pod, resource: str) -> bool:
    """Whether a container that can be resized asks for another amount."""
    had = {one.name: one.requests.get(resource, ZERO) for one in before.all_containers}
    sidecars = [one for one in after.init_containers if one.is_sidecar]
    return any(
        one.requests.get(resource, ZERO) != had.get(one.name, ZERO)
        for one in (*sidecars, *after.containers)
    )
