"""CPUs by pod and container, as plain mappings: what a ledger is made of, and what can be wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from pinfold.core.values.cpuset import CPUSet, iter_bits

Containers = Mapping[str, CPUSet]
"""Container name -> its exclusive CPUs."""

NO_ASSIGNMENTS: Final[Mapping[str, Containers]] = MappingProxyType({})
NO_CONTAINERS: Final[Containers] = MappingProxyType({})


def mask_of(sets: Containers) -> int:
    """The bitmask of all CPUs that are in one of the sets."""
    mask = 0
    for cpus in sets.values():
        mask |= cpus.mask
    return mask


def union(pods: Iterable[Containers]) -> int:
    """The bitmask of all CPUs that the pods have."""
    mask = 0
    for containers in pods:
        mask |= mask_of(containers)
    return mask


def with_entry(
    pods: Mapping[str, Containers], pod_uid: str, containers: Containers
) -> Mapping[str, Containers]:
    """The same, with what a pod's containers have now; without any the pod is left out."""
    if not containers and pod_uid not in pods:
        return pods
    changed = dict(pods)
    if containers:
        changed[pod_uid] = MappingProxyType(dict(containers))
    else:
        del changed[pod_uid]
    return MappingProxyType(changed) if changed else NO_ASSIGNMENTS


def idle_problem(idle: CPUSet, claim: CPUSet | None) -> str | None:
    """What is wrong with the idle siblings of a container that has claimed these CPUs."""
    if not idle <= (claim or CPUSet()):
        return f"idle siblings {idle - (claim or CPUSet())} are not among its CPUs"
    return f"all of its CPUs {claim} are idle" if claim == idle else None


def outside(pod_uid: str, containers: Containers, bubble: CPUSet) -> list[str]:
    """What a pod's containers have that is no part of the CPUs that the pod has as a whole."""
    return [
        f"pod {pod_uid!r}, container {name!r}: CPUs {cpus - bubble} are not in the pod's {bubble}"
        for name, cpus in containers.items()
        if not cpus <= bubble
    ]


def shared_between_pods(owned: Mapping[str, int]) -> list[str]:
    """Which CPUs belong to two pods; the bitmasks are by pod uid."""
    found = []
    taken = 0
    owner: dict[int, str] = {}
    for uid, mask in owned.items():
        common: dict[str, int] = {}
        for cpu in iter_bits(mask & taken):
            common[owner[cpu]] = common.get(owner[cpu], 0) | 1 << cpu
        found += [
            f"CPUs {CPUSet.from_mask(cpus)} belong to pods {other!r} and {uid!r}"
            for other, cpus in common.items()
        ]
        owner.update(dict.fromkeys(iter_bits(mask & ~taken), uid))
        taken |= mask
    return found
