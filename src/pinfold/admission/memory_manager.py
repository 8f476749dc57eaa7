"""The memory manager as a hint provider of the topology manager, for one admission."""

from __future__ import annotations

from pinfold.core.kubelet.faults import MEMORY_WRAPS_AROUND, NO_MEMORY_REFUSED, KubeletFault
from pinfold.core.memory.memory import Block
from pinfold.core.memory.policy import MemoryTransaction, StaticMemoryPolicy
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.pod.pod_level import memory_is_shared
from pinfold.core.topology_manager.hints import AllocationError, ResourceHints, TopologyHint


class MemoryManager:
    """Works on one pod's draft.  Under policy ``None`` there is none.

    ``fault`` is set where the kubelet's own answer is no valid one.
    """

    def __init__(self, policy: StaticMemoryPolicy, transaction: MemoryTransaction) -> None:
        self.policy = policy
        self.transaction = transaction
        self.fault: KubeletFault | None = None

    @property
    def allocations(self) -> dict[str, tuple[Block, ...]]:
        """What the pod has by now, by container.

        Blocks of init containers shrink by what later containers take over from them.
        """
        return dict(self.transaction.state.assignments.get(self.transaction.pod_uid, {}))

    @property
    def whole(self) -> tuple[Block, ...]:
        """What the pod has as a whole, of which what its containers have is a part."""
        return self.transaction.state.bubbles.get(self.transaction.pod_uid, ())

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The NUMA affinities that could serve a container, by resource."""
        return self.policy.container_hints(self.transaction, pod, container)

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The NUMA affinities that could serve the whole pod."""
        return self.policy.pod_hints(self.transaction, pod)

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Give the container its memory, if the policy serves it; raises AllocationError."""
        try:
            self.policy.allocate(self.transaction, pod, container, affinity)
        except AllocationError:
            if pod.has_pod_level_resources and memory_is_shared(container):
                self.fault = NO_MEMORY_REFUSED
            raise

    def allocate_pod(self, pod: Pod, affinity: TopologyHint) -> None:
        """Give a pod with resources of its own its memory as a whole; raises AllocationError."""
        given = self.policy.allocate_pod(self.transaction, pod, affinity)
        if given is not None and self.policy.overdrawn(self.transaction.state, pod) is not None:
            self.fault = MEMORY_WRAPS_AROUND
