"""Whether a node has room for what a pod requests in total.

Source: upstream ``lifecycle.generalFilter`` and ``noderesources.Fits`` (kubelet 1.34), with the
kubelet's texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pinfold.core.pod.pod import CPU, MEMORY, Pod, once_a_pod, pod_requests
from pinfold.core.topology_manager.manager import UNEXPECTED_ADMISSION_ERROR
from pinfold.core.values.resource_names import is_extended

PODS: Final = "pods"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"

_NOTHING_TO_PREEMPT: Final = (
    "Unexpected error while attempting to recover from admission failure: preemption: "
    "error finding a set of pods to preempt: no set of running pods found to reclaim resources"
)


@once_a_pod
def amounts(pod: Pod) -> Mapping[str, int]:
    """What a pod requests: milli-CPUs for ``cpu``, whole units for everything else."""
    return {
        name: quantity.milli_value() if name == CPU else quantity.value()
        for name, quantity in pod_requests(pod).items()
    }


def shortage(
    requests: Mapping[str, int],
    allocatable: Mapping[str, int],
    used: Mapping[str, int],
    *,
    critical: bool,
    devices_managed: bool = False,
) -> tuple[str, str] | None:
    """Reason and message where something is short; None where all fits.

    Args:
        requests: what the pod wants, of ``pods`` one.
        allocatable: what the node may give in total, in the same units.
        used: what others have requested.
        critical: the pod may push others out; with nothing to push out other words are said.
        devices_managed: an extended resource that is not in ``allocatable`` is one that the node
            has none of; otherwise the kubelet's rule, which leaves it to others.
    """
    found = _first_shortage(requests, allocatable, used, devices_managed=devices_managed)
    if found is None:
        return None
    resource, message = found
    if not critical:
        return f"OutOf{resource}", message
    missing = requests[resource] - (allocatable.get(resource, 0) - used.get(resource, 0))
    return (
        UNEXPECTED_ADMISSION_ERROR,
        f"{_NOTHING_TO_PREEMPT}: [(res: {resource}, q: {missing}), ]",
    )


def _first_shortage(
    requests: Mapping[str, int],
    allocatable: Mapping[str, int],
    used: Mapping[str, int],
    *,
    devices_managed: bool,
) -> tuple[str, str] | None:
    short = []
    for resource, requested in requests.items():
        capacity = allocatable.get(resource)
        if capacity is None:
            if resource == EPHEMERAL_STORAGE or (is_extended(resource) and not devices_managed):
                # Nobody on this node manages it; the kubelet leaves such requests out.
                continue
            capacity = 0
        if requested > 0 and requested > capacity - used.get(resource, 0):
            short.append(resource)
    if not short:
        return None
    first = min(short, key=_check_order)
    return first, (
        f"Node didn't have enough resource: {first}, requested: {requests[first]}, "
        f"used: {used.get(first, 0)}, capacity: {allocatable.get(first, 0)}"
    )


def _check_order(resource: str) -> tuple[int, str]:
    first = (PODS, CPU, MEMORY, EPHEMERAL_STORAGE)
    return (first.index(resource) if resource in first else len(first), resource)
