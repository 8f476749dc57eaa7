"""What a node decides about one pod: exclusive CPUs, then whether everything else fits.

The order is the kubelet's (1.34, seen live on 1.36): the topology manager's admit handler gives
out the CPUs first, the capacity check comes after it.  A decision is complete before anything is
changed, so a rejected pod holds nothing (a kubelet lets go of its CPUs at the next admission).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pinfold.core.cpuset import CPUSet
from pinfold.core.hints import TopologyHint
from pinfold.core.kubelet_faults import KubeletFault
from pinfold.core.pod import CPU, MEMORY, Pod, guaranteed_cpus, pod_guaranteed_cpus, pod_requests
from pinfold.core.static_policy import CPUAllocation, PodTransaction, StaticPolicy
from pinfold.core.topology_manager import (
    UNEXPECTED_ADMISSION_ERROR,
    AffinityDecision,
    TopologyManager,
)
from pinfold.node.cpu_manager import CPUManager
from pinfold.state.ledger import Assign, Change, Ledger

PODS: Final = "pods"
EPHEMERAL_STORAGE: Final = "ephemeral-storage"

POOL_EMPTY: Final = (
    "no CPU would be left for the containers that share CPUs (strict-cpu-reservation)"
)


@dataclass(frozen=True, slots=True)
class Node:
    """A configured node: the policies in force, and what pods may request in total.

    ``allocatable`` holds milli-CPUs for ``cpu`` and whole units for everything else; it names
    every resource that the node has.
    """

    cpu_policy: StaticPolicy | None
    topology_manager: TopologyManager
    allocatable: Mapping[str, int]
    max_pods: int = 110


@dataclass(frozen=True, slots=True)
class NodeState:
    """What runs on the node: the ledger of CPUs, the sum of requests, the number of pods.

    CPUs that are ``offline`` keep their owners, and are given to nobody else.
    """

    ledger: Ledger
    requested: Mapping[str, int] = field(default_factory=dict)
    pods: int = 0
    offline: CPUSet = CPUSet()  # noqa: RUF009 - immutable


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to one pod, with everything that it was made from.

    ``reason`` and ``message`` are the kubelet's, None when admitted.  ``affinities`` are the
    topology manager's merges; ``allocations`` the exclusive sets by container; ``fault`` is set
    where the kubelet itself has no valid answer.
    """

    pod: Pod
    admitted: bool
    reason: str | None = None
    message: str | None = None
    allocations: Mapping[str, CPUAllocation] = field(default_factory=dict)
    affinities: tuple[AffinityDecision, ...] = ()
    affinity: Mapping[str, TopologyHint] = field(default_factory=dict)
    failed_container: str | None = None
    fault: KubeletFault | None = None
    requests: Mapping[str, int] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[Change, ...]:
        """What admitting the pod changes in the ledger."""
        return tuple(
            Assign(self.pod.uid, name, allocation.cpus)
            for name, allocation in self.allocations.items()
        )


def decide(node: Node, state: NodeState, pod: Pod) -> Decision:
    """Decide about a pod; nothing is changed."""
    decision = _allocate(node, state, pod)
    if not decision.admitted:
        return decision
    requests = amounts(pod)
    shortage = _shortage(node, state, requests)
    if shortage is None:
        return replace(decision, requests=requests)
    resource, message = shortage
    reason = f"OutOf{resource}"
    if pod.is_critical:
        # Critical pods may push others out; with nothing to push out this is what is said.
        used = state.requested.get(resource, state.pods if resource == PODS else 0)
        capacity = node.max_pods if resource == PODS else node.allocatable.get(resource, 0)
        missing = requests.get(resource, 1) - (capacity - used)
        reason = UNEXPECTED_ADMISSION_ERROR
        message = (
            "Unexpected error while attempting to recover from admission failure: preemption: "
            "error finding a set of pods to preempt: no set of running pods found to reclaim "
            f"resources: [(res: {resource}, q: {missing}), ]"
        )
    return replace(decision, admitted=False, reason=reason, message=message, allocations={})


def decide_container(
    node: Node, state: NodeState, pod: Pod, name: str, idle: Mapping[str, CPUSet]
) -> Decision:
    """Decide about one container of a pod whose others are decided, or not known yet.

    Only the CPUs: whether the pod fits the node at all was somebody else's question.

    Args:
        node: the policies.
        state: what runs on the node.
        pod: the pod, as far as its containers are known.
        name: the container.
        idle: CPUs of the pod's containers that have ended: this one may take them over, as those
            of an init container.
    """
    policy = node.cpu_policy
    container = next(one for one in pod.all_containers if one.name == name)
    requested = guaranteed_cpus(pod, container)
    if policy is None or pod.has_pod_level_resources or requested == 0:
        return Decision(pod, admitted=True)
    held = {
        other: cpus.mask
        for other, cpus in state.ledger.assignments.get(pod.uid, {}).items()
        if other not in idle and (other != name or len(cpus) == requested)
    }
    # What it had in another number it gives back first (a resize).
    own = state.ledger.cpus_of(pod.uid, name) or CPUSet()
    returned = 0 if name in held else own.mask
    taken = 0
    for mask in held.values():
        taken |= mask
    draft = PodTransaction(
        pod.uid,
        state.ledger.default.mask & ~state.offline.mask,
        held,
        (_union(idle.values()) | returned) & ~taken & ~state.offline.mask,
    )
    manager = CPUManager(policy, draft)
    admission = node.topology_manager.admit(pod, (container,), [manager])
    return Decision(
        pod=pod,
        admitted=admission.admitted,
        reason=admission.reason,
        message=admission.message,
        allocations=manager.allocations if admission.admitted else {},
        affinities=admission.decisions,
        affinity=admission.affinity,
        failed_container=admission.failed_container,
        fault=manager.fault,
    )


def settle(state: NodeState, decision: Decision) -> NodeState:
    """The state of the node after a decision; a rejected pod changes nothing.

    Raises:
        InvariantError: the decision does not fit the ledger (it was made on another one).
    """
    if not decision.admitted:
        return state
    ledger = state.ledger
    if decision.allocations:
        given = {name: allocation.cpus for name, allocation in decision.allocations.items()}
        ledger = ledger.with_pod(decision.pod.uid, given)
    requested = dict(state.requested)
    for name, amount in decision.requests.items():
        requested[name] = requested.get(name, 0) + amount
    return replace(state, ledger=ledger, requested=requested, pods=state.pods + 1)


def release(state: NodeState, pod: Pod) -> NodeState:
    """The state of the node once an admitted pod is gone."""
    return replace(recount(state, pod, None), ledger=state.ledger.without(pod.uid))


def resume(state: NodeState, pod: Pod) -> NodeState:
    """Count a pod that was admitted before, whose CPUs are in the ledger already."""
    return recount(state, None, pod)


def _allocate(node: Node, state: NodeState, pod: Pod) -> Decision:
    policy = node.cpu_policy
    if policy is None or pod.has_pod_level_resources or pod_guaranteed_cpus(pod) == 0:
        # No provider would have an opinion, and then every policy admits.
        return Decision(pod, admitted=True)
    held = state.ledger.assignments.get(pod.uid, {})
    draft = PodTransaction(
        pod.uid,
        state.ledger.default.mask & ~state.offline.mask,
        {name: cpus.mask for name, cpus in held.items()},
    )
    manager = CPUManager(policy, draft)
    admission = node.topology_manager.admit(pod, pod.all_containers, [manager])
    return Decision(
        pod=pod,
        admitted=admission.admitted,
        reason=admission.reason,
        message=admission.message,
        allocations=manager.allocations if admission.admitted else {},
        affinities=admission.decisions,
        affinity=admission.affinity,
        failed_container=admission.failed_container,
        fault=manager.fault,
    )


def recount(state: NodeState, before: Pod | None, pod: Pod | None) -> NodeState:
    """Count a pod's requests as they are now, in place of those before; None is "not there"."""
    requested = dict(state.requested)
    for one, sign in ((before, -1), (pod, 1)):
        for name, amount in ({} if one is None else amounts(one)).items():
            requested[name] = requested.get(name, 0) + sign * amount
    return replace(
        state,
        requested=requested,
        pods=state.pods + (pod is not None) - (before is not None),
    )


def _union(sets: Iterable[CPUSet]) -> int:
    mask = 0
    for cpus in sets:
        mask |= cpus.mask
    return mask


def amounts(pod: Pod) -> dict[str, int]:
    """What a pod requests: milli-CPUs for ``cpu``, whole units for everything else."""
    return {
        name: quantity.milli_value() if name == CPU else quantity.value()
        for name, quantity in pod_requests(pod).items()
    }


def _shortage(node: Node, state: NodeState, requests: Mapping[str, int]) -> tuple[str, str] | None:
    """The first resource of which there is not enough, and the kubelet's text."""
    if state.pods + 1 > node.max_pods:
        return PODS, _insufficient(PODS, 1, state.pods, node.max_pods)
    for resource in sorted(requests, key=_check_order):
        capacity = node.allocatable.get(resource)
        if capacity is None:
            if resource == EPHEMERAL_STORAGE or _is_extended(resource):
                # Nobody on this node manages it; the kubelet leaves such requests out.
                continue
            capacity = 0
        requested, used = requests[resource], state.requested.get(resource, 0)
        if requested > 0 and requested > capacity - used:
            return resource, _insufficient(resource, requested, used, capacity)
    return None


def _check_order(resource: str) -> tuple[int, str]:
    first = (CPU, MEMORY, EPHEMERAL_STORAGE)
    return (first.index(resource) if resource in first else len(first), resource)


def _is_extended(resource: str) -> bool:
    return "/" in resource and "kubernetes.io/" not in resource


def _insufficient(resource: str, requested: int, used: int, capacity: int) -> str:
    return (
        f"Node didn't have enough resource: {resource}, "
        f"requested: {requested}, used: {used}, capacity: {capacity}"
    )
