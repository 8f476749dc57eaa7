"""The CPUs of a pod as a whole, divided among its containers.

Source: observed of kubelet 1.36.2 (KEP-5526).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from pinfold.core.pod.pod import Pod
from pinfold.core.pod.pod_level import exclusive_cpus


class Division(Struct, frozen=True):
    """Bitmasks of what each container runs on, and of the pod shared pool."""

    parts: dict[str, int]
    pool: int


def divide(pod: Pod, bubble: int, take: Callable[[str, int, int], int]) -> Division:
    """Divide a bubble among the containers of its pod, in the order in which they start.

    What an ordinary init container has is there for those after it, exclusive or not.  Whoever
    shares while the pod runs gets what is left at the end.

    Args:
        pod: which takes part (:func:`~pinfold.core.pod.pod_level.takes_part`).
        bubble: bitmask of its CPUs.
        take: chooses for a container (its name) from a bitmask so many CPUs.

    Raises:
        AllocationError: of ``take``, where too few are left.
    """
    parts: dict[str, int] = {}
    left = bubble
    sharing = []
    for init in pod.init_containers:
        count = exclusive_cpus(init)
        if count:
            parts[init.name] = take(init.name, left, count)
            if init.is_sidecar:
                left &= ~parts[init.name]
        elif init.is_sidecar:
            sharing.append(init.name)
        else:
            parts[init.name] = left
    for container in pod.containers:
        count = exclusive_cpus(container)
        if count:
            parts[container.name] = take(container.name, left, count)
            left &= ~parts[container.name]
        else:
            sharing.append(container.name)
    return Division(parts | dict.fromkeys(sharing, left), left)


def shared_pool(pod: Pod, bubble: int, parts: Mapping[str, int]) -> int:
    """What of a bubble none of the containers has for itself that run as long as the pod."""
    for container in pod.all_containers:
        is_running = container.is_sidecar or container in pod.containers
        if is_running and exclusive_cpus(container):
            bubble &= ~parts.get(container.name, 0)
    return bubble
