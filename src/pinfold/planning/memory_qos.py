"""What a plan says of MemoryQoS: whose memory is protected, and where it is throttled.

Told where the gate is on: somebody writes these files, a kubelet or an agent.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from pinfold.core.kubelet.feature_gates import MEMORY_QOS
from pinfold.core.memory.protection import MemoryQoS, Protection, memory_qos
from pinfold.core.pod.annotations import MEMORY_LIMIT
from pinfold.core.pod.pod import MEMORY, Pod
from pinfold.documents import plan as form
from pinfold.planning.planner import Planner

_V1: Final = 1
_BY_KUBELET: Final = "nri"


def rules_of(planner: Planner) -> MemoryQoS | None:
    """By which rules the files are written on this node; None: nobody writes anything there."""
    return None if planner.kernel.cgroups == _V1 else _wished(planner)


def _wished(planner: Planner) -> MemoryQoS | None:
    """The rules; None: the gate is off, or protects and throttles nothing, as 1.37's default."""
    rules = memory_qos(planner.config, planner.node.allocatable.get(MEMORY))
    return rules if rules is not None and rules.has_effect else None


def without_effect(planner: Planner) -> tuple[str, ...]:
    """What is to be said where the gate is on and the machine cannot have it."""
    if _wished(planner) is not None and planner.kernel.cgroups == _V1:
        return (f"the feature gate {MEMORY_QOS} has no effect: the machine has cgroup v1",)
    return ()


def with_memory_qos(
    planned: form.PlannedPod, pod: Pod, planner: Planner, rules: MemoryQoS | None
) -> form.PlannedPod:
    """The document of a pod, with what is written for its cgroups."""
    if rules is None or not planned.admitted:
        return planned
    # A kubelet knows no such annotation.
    heeded = not _in_classes(planner)
    limited = not (heeded and MEMORY_LIMIT.of(pod.annotations, ""))
    by_name = {
        one.name: rules.of_container(pod, one, limited=limited) for one in pod.all_containers
    }
    return replace(
        planned,
        memory_qos=_cgroup(rules.of_pod(pod)),
        containers=[
            replace(one, memory_qos=_cgroup(by_name[one.name])) for one in planned.containers
        ],
    )


def of_classes(
    planner: Planner, pods: Iterable[Pod], rules: MemoryQoS | None
) -> form.ClassMemory | UnsetType:
    """The document of the cgroups of the QoS classes; unset where there are none.

    An agent's tree has no level of classes (ADR 36).
    """
    if rules is None or not _in_classes(planner):
        return UNSET
    kubepods, burstable = map(_cgroup, rules.of_classes(pods))
    if kubepods is UNSET and burstable is UNSET:
        return UNSET
    return form.ClassMemory(kubepods=kubepods, burstable=burstable)


def _in_classes(planner: Planner) -> bool:
    """Whether a kubelet makes the cgroups, and not an agent."""
    return planner.config.own is None or planner.config.runtime == _BY_KUBELET


def _cgroup(protection: Protection) -> form.CgroupMemory | UnsetType:
    if protection == Protection():
        return UNSET
    return form.CgroupMemory(min=protection.min, low=protection.low, high=protection.high)
