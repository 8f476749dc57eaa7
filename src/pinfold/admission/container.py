"""What a node decides about one container of a pod that a kubelet has admitted.

CPUs and memory only: whether the pod fits the node at all was the kubelet's question, and the
devices are those that it gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product, starmap

from msgspec.structs import replace

from pinfold.admission.admission import Node, NodeState, cpu_wishes, memory_draft
from pinfold.admission.cpu_manager import draft_for_container, draft_for_pod
from pinfold.admission.decision import Decision
from pinfold.admission.devices.locality import GivenDevices
from pinfold.admission.isolation import IsolatedUse, isolated_uses, isolation_refusal
from pinfold.admission.memory_manager import MemoryManager
from pinfold.admission.mixed import mixed_refusal
from pinfold.admission.nearness import (
    NearAttempt,
    near_attempts,
    near_refusal,
    near_topology_manager,
)
from pinfold.admission.pod_draft import PodDraft, first_admitted
from pinfold.admission.pod_level import whole_notes, whole_refusal
from pinfold.admission.smt_isolation import smt_refusal
from pinfold.core.memory.memory import MemoryState, remove_container
from pinfold.core.memory.request import requested_memory
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.topology_manager.hints import AllocationError, ResourceHints, TopologyHint
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.podresources import NO_DEVICES, PodDevices


def decide_container(  # noqa: PLR0913, PLR0917 - the node, the container, what is known of its pod
    node: Node,
    state: NodeState,
    pod: Pod,
    name: str,
    idle: Mapping[str, CPUSet],
    devices: PodDevices = NO_DEVICES,
) -> Decision:
    """Decide about one container of a pod whose others are decided, or not known yet.

    Args:
        node: the policies.
        state: what runs on the node.
        pod: the pod, as far as its containers are known.
        name: the container.
        idle: the pod's containers that have ended, with their CPUs: this one may take these over,
            and their memory, as those of an init container.
        devices: what a kubelet has given to the pod.  Under topology manager policy none they are
            a wish, as are those of :mod:`pinfold.admission.nearness`.
    """
    container = next(one for one in pod.all_containers if one.name == name)
    pod = node.seen(pod)
    refusal = (
        near_refusal(node.localities, pod, complete=False)
        or isolation_refusal(node.isolation, pod, complete=False)
        or smt_refusal(node.smt, pod, complete=False)
        or mixed_refusal(pod, heeded=node.mixes, exclusive=node.cpu_policy is not None, only=name)
    )
    if refusal is not None:
        return Decision(pod, admitted=False, reason=refusal.reason, message=str(refusal))
    memory = state.memory
    if memory is not None and not keeps_memory(memory, pod, container):
        memory = remove_container(memory, pod.uid, name)

    def draft(attempt: NearAttempt, use: IsolatedUse | None) -> PodDraft:
        manager = memory_draft(node, memory, pod.uid)
        near = attempt.manager
        if node.localities is not None:
            near = near_topology_manager(near, node.localities)
        given = GivenDevices(devices, near.numa.nodes)
        if given.locates(container):
            attempt = replace(attempt, manager=near)
        return PodDraft(
            pod,
            cpus=draft_for_container(
                node.cpu_policy,
                state.ledger,
                state.offline,
                (pod, container),
                idle,
                cpu_wishes(node, pod, use),
            ),
            memory=None if manager is None else _AfterOthers(manager, _after(pod, idle)),
            devices=None,
            nearness=attempt,
            given=given,
            pod_level=node.pod_level,
        )

    attempts = product(
        near_attempts(node.topology_manager, node.localities, pod, complete=False),
        isolated_uses(node.isolation, pod),
    )
    decision = first_admitted(starmap(draft, attempts), (container,))
    lack = None if node.cache is None else node.cache.lack(state.ledger, pod, decision.claims)
    return decision if lack is None else decision.refused(*lack)


def decide_whole(node: Node, state: NodeState, pod: Pod) -> Decision:
    """Decide about all containers of a pod at once, which gets CPUs and memory as a whole.

    Its devices are those that a kubelet gives: nothing is aligned with them here, as nothing is
    there.

    Args:
        node: the policies.
        state: what runs on the node; the pod has nothing there.
        pod: one that is served by its pod-level resources, under topology manager scope ``pod``.
    """
    pod = node.seen(pod)
    refusal = whole_refusal(pod, node.heeded)
    if refusal is not None:
        return Decision(pod, admitted=False, reason=refusal.reason, message=str(refusal))

    def draft(attempt: NearAttempt) -> PodDraft:
        return PodDraft(
            pod,
            cpus=draft_for_pod(node.cpu_policy, state.ledger, state.offline, pod, ()),
            memory=memory_draft(node, state.memory, pod.uid),
            devices=None,
            nearness=attempt,
            pod_level=node.pod_level,
        )

    attempts = near_attempts(node.topology_manager, node.localities, pod, complete=False)
    decision = first_admitted(map(draft, attempts), pod.all_containers)
    return replace(decision, notes=(*decision.notes, *whole_notes(pod, node.heeded)))


class _AfterOthers(MemoryManager):
    """A memory manager to which the containers that have ended are init containers."""

    def __init__(self, manager: MemoryManager, pod: Pod) -> None:
        super().__init__(manager.policy, manager.transaction)
        self._pod = pod

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """See the base class."""
        del pod
        return super().get_topology_hints(self._pod, container)

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """See the base class."""
        del pod
        return super().get_pod_topology_hints(self._pod)

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """See the base class."""
        del pod
        super().allocate(self._pod, container, affinity)


def _after(pod: Pod, idle: Mapping[str, CPUSet]) -> Pod:
    every = pod.all_containers
    return replace(
        pod,
        init_containers=tuple(one for one in every if one.name in idle),
        containers=tuple(one for one in every if one.name not in idle),
    )


def keeps_memory(memory: MemoryState, pod: Pod, container: Container) -> bool:
    """Whether a container has as much memory as it asks for, and so stays where that is.

    One whose pod has memory as a whole has a part of that, however much it asks for.
    """
    has = memory.blocks_of(pod.uid, container.name)
    if pod.uid in memory.bubbles:
        return has is not None
    try:
        wants = requested_memory(memory, container.requests)
    except AllocationError:
        return False
    return has is not None and {block.type: block.size for block in has} == wants
