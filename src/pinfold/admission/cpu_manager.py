"""The CPU manager as a hint provider of the topology manager, for one admission."""

from __future__ import annotations

from collections.abc import Mapping

from pinfold.core.cpu.static_policy import CPUAllocation, PodTransaction, StaticPolicy
from pinfold.core.kubelet.faults import CPUS_NOT_FREE, KubeletFault, UpstreamFaultError
from pinfold.core.pod.pod import CPU, Container, Pod, guaranteed_cpus
from pinfold.core.topology_manager.hints import AllocationError, ResourceHints, TopologyHint
from pinfold.core.values.cpuset import CPUSet
from pinfold.state.ledger import Ledger


class CPUManager:
    """Works on one pod's draft.

    ``allocations`` is what it has given so far, by container; ``fault`` is set once the kubelet
    itself would have had no valid answer; ``parked`` is the bitmask of CPUs that are nobody's and
    offline, so that they can only stay idle.
    """

    def __init__(self, policy: StaticPolicy, transaction: PodTransaction, parked: int = 0) -> None:
        self.policy = policy
        self.transaction = transaction
        self.parked = parked
        self.allocations: dict[str, CPUAllocation] = {}
        self.fault: KubeletFault | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Wishes that were not binding and are not met."""
        return ()

    def get_topology_hints(self, pod: Pod, container: Container) -> ResourceHints | None:
        """The NUMA affinities that could serve a container (resource ``cpu``)."""
        return _named(self.policy.container_hints(self.transaction, pod, container))

    def get_pod_topology_hints(self, pod: Pod) -> ResourceHints | None:
        """The NUMA affinities that could serve the whole pod."""
        return _named(self.policy.pod_hints(self.transaction, pod))

    def allocate(self, pod: Pod, container: Container, affinity: TopologyHint) -> None:
        """Give the container its exclusive CPUs, if it is to have any; raises AllocationError."""
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


def draft_for_pod(
    policy: StaticPolicy | None, ledger: Ledger, offline: CPUSet, pod: Pod
) -> CPUManager | None:
    """The manager to admit a whole pod, which keeps what it has; None under policy none.

    CPUs that are ``offline`` are given to nobody.
    """
    if policy is None:
        return None
    held = {name: cpus.mask for name, cpus in ledger.used_by(pod.uid).items()}
    free = _free(policy, ledger, offline)
    draft = PodTransaction(pod.uid, free, held, idle=_idle(ledger, pod, held))
    return CPUManager(policy, draft, (ledger.default & offline).mask)


def draft_for_container(
    policy: StaticPolicy | None,
    ledger: Ledger,
    offline: CPUSet,
    asking: tuple[Pod, Container],
    idle: Mapping[str, CPUSet],
) -> CPUManager | None:
    """The manager for one container of a pod; None where it is to have no CPUs of its own.

    ``offline`` CPUs are given to nobody; ``idle`` ones, of the pod's containers that have ended,
    may be taken over by the container that is ``asking``.
    """
    pod, container = asking
    requested = guaranteed_cpus(pod, container)
    if policy is None or requested == 0:
        return None
    held = {
        other: cpus.mask
        for other, cpus in ledger.used_by(pod.uid).items()
        if other not in idle and (other != container.name or len(cpus) == requested)
    }
    claims = ledger.assignments.get(pod.uid, {})
    # What it had in another number it gives back first (a resize).
    own = claims.get(container.name, CPUSet())
    reusable = 0 if container.name in held else own.mask
    for cpus in idle.values():
        reusable |= cpus.mask
    for other in held:
        reusable &= ~claims[other].mask
    free = _free(policy, ledger, offline)
    draft = PodTransaction(pod.uid, free, held, reusable & ~offline.mask, _idle(ledger, pod, held))
    return CPUManager(policy, draft, (ledger.default.mask | reusable) & offline.mask)


def _idle(ledger: Ledger, pod: Pod, held: Mapping[str, int]) -> dict[str, int]:
    """The siblings that stay idle for those of a pod's containers that keep what they have."""
    return {name: cpus.mask for name, cpus in ledger.idle.get(pod.uid, {}).items() if name in held}


def _free(policy: StaticPolicy, ledger: Ledger, offline: CPUSet) -> int:
    """The CPUs that nobody has; of one that was offline at the start it may not be known where."""
    return ledger.default.mask & ~offline.mask & policy.topology.all
