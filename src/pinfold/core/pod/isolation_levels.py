"""Who a container has its CPUs for, and what becomes of CPU quotas for that.

A kubelet knows three levels: CPUs that the container has for itself, those that it shares with
others of its pod and nobody else, and the node's shared pool.  A quota is pointless where nobody
shares.  Source: observed of kubelet 1.36.2 (``ResourceIsolationLevel``, KEP-5526); before, there
were exclusive CPUs of a container or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum

from pinfold.core.pod.pod import Container, Pod
from pinfold.core.pod.pod_level import exclusive_cpus


class IsolationLevel(Enum):
    """Who a container has its CPUs for."""

    HOST = "host"
    """They are the node's shared pool."""
    POD = "pod"
    """They are its pod's, shared with others of the pod."""
    CONTAINER = "container"
    """They are its own."""


def isolation_level(
    pod: Pod, container: Container, *, owns: bool, pod_level: bool
) -> IsolationLevel:
    """The level of one container.

    Args:
        pod: the pod, and ``container`` one of its containers.
        container: of whom it is asked.
        owns: whether the CPU manager has a set on record for it.
        pod_level: the feature gate PodLevelResourceManagers.
    """
    if not owns:
        return IsolationLevel.HOST
    if pod_level and pod.has_pod_level_resources and not exclusive_cpus(container):
        return IsolationLevel.POD
    return IsolationLevel.CONTAINER


def isolation_levels(
    pod: Pod, owners: Iterable[str], *, pod_level: bool
) -> Mapping[str, IsolationLevel]:
    """The levels of a pod's containers by name; ``owners`` have a set on record."""
    names = frozenset(owners)
    return {
        one.name: isolation_level(pod, one, owns=one.name in names, pod_level=pod_level)
        for one in pod.all_containers
    }


def pod_has_exclusive_cpus(pod: Pod, levels: Mapping[str, IsolationLevel]) -> bool:
    """Whether the pod's cgroup is not to have a quota for the sake of exclusive CPUs.

    Those of one container are enough; where the pod has resources of its own, all of them have to
    have their own, since the pod's quota is what holds the others to its budget.
    """
    own = [level is IsolationLevel.CONTAINER for level in levels.values()]
    return all(own) if pod.resources is not None and pod.has_pod_level_resources else any(own)
