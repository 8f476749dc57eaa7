"""Pods that a node serves by their pod-level resources: who has what, and what they may wish.

Where the gate ``PodLevelResourceManagers`` is on, a Guaranteed pod with resources of its own gets
CPUs and memory as a whole, its *bubble*, under topology manager scope ``pod``; under any other its
exclusive containers have theirs as ever.  How it is divided is the kubelet's choice, so no wish of
ours narrows it: to be near a device is one more hint, a wish that is binding refuses the pod, and
of one that is not it is noted that it does nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from pinfold.admission.refusal import INVALID_ANNOTATION, UnmetWishError
from pinfold.core.cpu.allocation import Step
from pinfold.core.cpu.static_policy import PodAllocation, StaticPolicy
from pinfold.core.memory.memory import Block
from pinfold.core.pod.annotation import Annotation, AnnotationError
from pinfold.core.pod.annotations import (
    ISOLATED_CPUS,
    LOAD_DRIVEN,
    MIXED_CPUS,
    PREFER,
    REQUIRE,
    SMT_ISOLATE,
)
from pinfold.core.pod.pod import Pod, exclusive_requests
from pinfold.core.pod.pod_level import cpu_budget
from pinfold.core.topology_manager.manager import TopologyManager
from pinfold.core.topology_manager.policy import Policy, Scope
from pinfold.core.values.cpuset import CPUSet

_BINDING: Final[tuple[tuple[Annotation[Any], object, str], ...]] = (
    (MIXED_CPUS, True, "shares its own CPUs only, and none with other pods"),
    (SMT_ISOLATE, True, "has both threads of a core where these are free"),
    (ISOLATED_CPUS, REQUIRE, "has CPUs wherever these are free, isolated or not"),
)
"""An annotation, the value with which it cannot be met, and why."""

_IN_VAIN: Final[tuple[tuple[Annotation[Any], object], ...]] = (
    (ISOLATED_CPUS, PREFER),
    (LOAD_DRIVEN, True),
)


class Bubble(Struct, frozen=True):
    """What a pod has as a whole, and its containers divide.

    Attributes:
        cpus: all of its CPUs; none where it has memory only.
        pool: those that no container has for itself: the pod shared pool.
        parts: what each container runs on, its own part or one that it shares; empty without CPUs.
        memory: its memory; that of its containers is in it.
        steps: how the CPUs were chosen.
    """

    cpus: CPUSet = CPUSet()
    pool: CPUSet = CPUSet()
    parts: Mapping[str, CPUSet] = {}
    memory: tuple[Block, ...] = ()
    steps: tuple[Step, ...] = ()

    @classmethod
    def of(cls, given: PodAllocation | None, memory: tuple[Block, ...]) -> Bubble | None:
        """What the managers have given to a pod as a whole; None: nothing."""
        if given is None:
            return cls(memory=memory) if memory else None
        parts = {name: one.cpus for name, one in given.containers.items()}
        return cls(given.bubble, given.pool, parts, memory, given.steps)


def has_pod_scope(manager: TopologyManager) -> bool:
    """Whether pods are aligned as a whole."""
    return manager.policy is not Policy.NONE and manager.scope is Scope.POD


def owned_counts(policy: StaticPolicy | None, pod: Pod) -> Mapping[str, int]:
    """The containers that own CPUs on a node with this policy, with their number."""
    if policy is None:
        return {}
    if not policy.heeds_pod_level(pod):
        return exclusive_requests(pod)
    asked = {one.name: policy.exclusive_cpus(pod, one) for one in pod.all_containers}
    return {name: count for name, count in asked.items() if count}


def placed_names(policy: StaticPolicy | None, pod: Pod, *, is_whole: bool) -> Collection[str]:
    """The containers for which CPUs are chosen: all of a pod that gets them as a whole."""
    if policy is not None and is_whole:
        return [one.name for one in pod.all_containers] if cpu_budget(pod) else ()
    return owned_counts(policy, pod)


def whole_refusal(pod: Pod, heeded: Collection[Annotation[Any]]) -> UnmetWishError | None:
    """Why a pod with resources of its own cannot have what it says is binding.

    Args:
        pod: one that is served as a whole (:meth:`~.admission.Node.serves_whole`).
        heeded: the annotations that this node knows.
    """
    names = {one.name for one in pod.all_containers}
    for row, value, why in _BINDING:
        if row not in heeded:
            continue
        try:
            said = row.said(pod.annotations, names)
        except AnnotationError as error:
            return UnmetWishError(str(error), INVALID_ANNOTATION)
        for holder in (holder for holder, wish in said.items() if wish == value):
            return UnmetWishError(
                f"annotation {row.key(holder)}: a pod that gets its CPUs as a whole (resources of "
                f"the pod, gate PodLevelResourceManagers) {why}; leave the annotation out, or give "
                "resources to the containers only"
            )
    return None


def whole_notes(pod: Pod, heeded: Collection[Annotation[Any]]) -> Iterator[str]:
    """Yield the wishes of such a pod that do nothing."""
    for row, value in _IN_VAIN:
        if row in heeded and any(row.of(pod.annotations, c.name) == value for c in pod.containers):
            yield (
                f"{row.name} does nothing for a pod that gets its CPUs as a whole: "
                "the kubelet divides them among its containers"
            )
