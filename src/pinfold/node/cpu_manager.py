"""The CPU manager as a hint provider of the topology manager, for one admission."""

from __future__ import annotations

from pinfold.core.allocation import AllocationError
from pinfold.core.hints import ResourceHints, TopologyHint
from pinfold.core.kubelet_faults import CPUS_NOT_FREE, KubeletFault, UpstreamFaultError
from pinfold.core.pod import CPU, Container, Pod
from pinfold.core.static_policy import CPUAllocation, PodTransaction, StaticPolicy


class CPUManager:
    """Works on one pod's draft.

    ``allocations`` is what it has given so far, by container; ``fault`` is set once the kubelet
    itself would have had no valid answer.
    """

    def __init__(self, policy: StaticPolicy, transaction: PodTransaction) -> None:
        self.policy = policy
        self.transaction = transaction
        self.allocations: dict[str, CPUAllocation] = {}
        self.fault: KubeletFault | None = None

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The NUMA affinities that could serve a container (resource ``cpu``)."""
        return _named(self.policy.container_hints(self.transaction, pod, container))

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The NUMA affinities that could serve the whole pod."""
        return _named(self.policy.pod_hints(self.transaction, pod))

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Give the container its exclusive CPUs, if it is to have any.

        Raises:
            AllocationError: it cannot have them, or the kubelet has no valid answer.
        """
        try:
            allocation = self.policy.allocate(self.transaction, pod, container, affinity)
        except UpstreamFaultError as error:
            raise self._refusal(error.fault, str(error)) from None
        if allocation is None:
            return
        if allocation.not_free:
            raise self._refusal(
                CPUS_NOT_FREE,
                f"the kubelet would hand out CPUs {allocation.not_free}, which are not free",
            )
        self.allocations[container.name] = allocation

    def _refusal(self, fault: KubeletFault, problem: str) -> AllocationError:
        self.fault = fault
        return AllocationError(f"{problem} (kubelet fault {fault.slug})")


def _named(hints: list[TopologyHint] | None) -> ResourceHints | None:
    return None if hints is None else {CPU: hints}
