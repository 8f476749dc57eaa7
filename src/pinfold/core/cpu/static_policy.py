"""The static policy: exclusive CPUs for containers of Guaranteed pods with whole CPU requests.

Source: upstream ``cpumanager/policy_static.go`` (kubelet 1.34).  The policy holds no state: a
:class:`PodTransaction` carries the shared pool and the sets of one pod through an admission, and
what it ends with becomes effects on the ledger.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from pinfold.core.cpu.allocation import Step
from pinfold.core.cpu.bubble import divide, shared_pool
from pinfold.core.cpu.choice import choose, choose_reserved, cores_of_reserved
from pinfold.core.cpu.hints import cpu_hints, nodes_to_cpus, sockets_of_nodes
from pinfold.core.kubelet.faults import KUBELET, AllocationRules
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.pod import Container, Pod, guaranteed_cpus, pod_guaranteed_cpus
from pinfold.core.pod.pod_level import cpu_budget, cpu_shortage, exclusive_cpus, takes_part
from pinfold.core.topology_manager.hints import (
    AllocationError,
    EmptyPodSharedPoolError,
    TopologyHint,
)
from pinfold.core.values.cpuset import CPUSet

SMT_ALIGNMENT_ERROR: Final = "SMTAlignmentError"
"""The admission reason under ``full-pcpus-only``."""


class SMTAlignmentError(AllocationError):
    """The request cannot be met with whole cores; the message is the kubelet's."""

    reason: Final = SMT_ALIGNMENT_ERROR


class PodTransaction(Struct):
    """The CPUs of one pod while it is being admitted.

    Args:
        pod_uid: whose admission this is.
        default: bitmask of the shared pool.
        assigned: the pod's containers and their exclusive CPUs (bitmasks).
        reusable: bitmask of CPUs of finished init containers that later ones may take over.
        idle: the siblings that stay idle for those of the containers that are SMT-isolated.
        bubble: bitmask of the CPUs that the pod has as a whole; 0: none.
    """

    pod_uid: str
    default: int
    assigned: dict[str, int] = field(default_factory=dict)
    reusable: int = 0
    idle: dict[str, int] = field(default_factory=dict)
    bubble: int = 0


class CPUAllocation(Struct, frozen=True):
    """What one container was given: its CPUs, where they came from, and how they were chosen."""

    cpus: CPUSet
    not_free: CPUSet
    """CPUs that belonged to somebody else (only ever by a fault of the kubelet)."""
    steps: tuple[Step, ...]
    idle: CPUSet | None = None
    """Their siblings, on which nothing runs; None: the container is not SMT-isolated."""

    @property
    def claim(self) -> CPUSet:
        """All that nobody else can have."""
        return self.cpus if self.idle is None else self.cpus | self.idle


class PodAllocation(Struct, frozen=True):
    """What a pod was given as a whole.

    Attributes:
        bubble: all of it.
        pool: the pod shared pool, on which its containers without a part of their own run.
        containers: what each of them runs on: its own part, or a pool.
        not_free: as of :class:`CPUAllocation`.
        steps: how the bubble was chosen.
    """

    bubble: CPUSet
    pool: CPUSet
    containers: dict[str, CPUAllocation]
    not_free: CPUSet
    steps: tuple[Step, ...]


class StaticPolicy(Struct, frozen=True):
    """The static policy on one machine; build it with :meth:`create`."""

    topology: CPUTopology
    options: StaticPolicyOptions
    reserved: CPUSet
    reserved_cores: CPUSet
    """The reserved CPUs with their siblings."""
    rules: AllocationRules = KUBELET
    pod_level: bool = False
    """Whether pods are served by their pod-level resources (gate ``PodLevelResourceManagers``)."""

    @classmethod
    def create(  # noqa: PLR0913 - what a kubelet is configured with
        cls,
        topology: CPUTopology,
        options: StaticPolicyOptions,
        *,
        reserved_count: int,
        reserved_cpus: CPUSet | None = None,
        topology_manager_policy: str = "none",
        rules: AllocationRules = KUBELET,
        pod_level: bool = False,
    ) -> StaticPolicy:
        """Choose and check the reserved CPUs (upstream ``NewStaticPolicy``).

        Args:
            topology: the kubelet's view of the machine.
            options: the parsed policy options.
            reserved_count: how many CPUs are reserved; they are chosen with the allocator.
            reserved_cpus: the explicit set (``reservedSystemCPUs``), which must have that size.
            topology_manager_policy: for the options that depend on it.
            rules: the kubelet's allocation, or the sound one.
            pod_level: whether the gate ``PodLevelResourceManagers`` is on.

        Raises:
            PolicyOptionError: an option that does not fit the machine.
            ReservationError: reserved CPUs that do not exist or are too few.
        """
        options.check(topology, topology_manager_policy)
        reserved = reserved_cpus or choose_reserved(topology, options, reserved_count, rules)
        cores = cores_of_reserved(topology, reserved, reserved_count)
        return cls(topology, options, reserved, cores, rules, pod_level)

    @property
    def assignable(self) -> CPUSet:
        """The CPUs that may ever be given exclusively (the kubelet's allocatable CPUs)."""
        return self.topology.cpus - self.reserved

    @property
    def initial_default(self) -> CPUSet:
        """The shared pool of an empty node."""
        return self.assignable if self.options.strict_cpu_reservation else self.topology.cpus

    @property
    def group_size(self) -> int:
        """The CPUs per core that ``full-pcpus-only`` goes by."""
        return self.topology.cpus_per_core

    def heeds_pod_level(self, pod: Pod) -> bool:
        """Whether a pod's own resources count here: as a whole, or by its exclusive containers."""
        return self.pod_level and takes_part(pod)

    def exclusive_cpus(self, pod: Pod, container: Container) -> int:
        """The exclusive CPUs that a container is to get; 0: it shares."""
        if not pod.has_pod_level_resources:
            return guaranteed_cpus(pod, container)
        return exclusive_cpus(container) if self.heeds_pod_level(pod) else 0

    def container_hints(
        self, transaction: PodTransaction, pod: Pod, container: Container
    ) -> list[TopologyHint] | None:
        """The NUMA affinities that could serve a container.

        None is no opinion (the container uses the shared pool); an empty list is "impossible".
        """
        requested = self.exclusive_cpus(pod, container)
        if requested == 0:
            return None
        allocated = transaction.assigned.get(container.name)
        if allocated is None:
            return self._hints(self._available(transaction), transaction.reusable, requested)
        if allocated.bit_count() != requested:
            return []
        return self._hints(allocated, 0, requested)

    def pod_hints(self, transaction: PodTransaction, pod: Pod) -> list[TopologyHint] | None:
        """The NUMA affinities that could serve the whole pod (topology manager scope pod).

        Those of a pod that is served by its pod-level resources are for its budget, and none where
        it is unsound.
        """
        requested = self._pod_cpus(pod)
        if requested == 0:
            return None
        if pod.has_pod_level_resources:
            if cpu_shortage(pod):
                return []
            if transaction.bubble and not self.rules.allocates_pods_again:
                return self._hints(transaction.bubble, 0, requested)
        assigned = 0
        for container in (*pod.init_containers, *pod.containers):
            allocated = transaction.assigned.get(container.name)
            if allocated is None:
                continue
            if allocated.bit_count() != self.exclusive_cpus(pod, container):
                return []
            assigned |= allocated
        if assigned.bit_count() == requested:
            return self._hints(assigned, 0, requested)
        reusable = transaction.reusable | assigned
        return self._hints(self._available(transaction), reusable, requested)

    def allocate(
        self,
        transaction: PodTransaction,
        pod: Pod,
        container: Container,
        affinity: TopologyHint | None = None,
    ) -> CPUAllocation | None:
        """Give a container its exclusive CPUs; None where it uses the shared pool.

        The transaction is changed only on success.

        Args:
            transaction: the pod's admission so far.
            pod: the pod, and ``container`` one of its containers.
            container: who asks.
            affinity: the topology manager's answer.

        Raises:
            SMTAlignmentError: whole cores were asked for and cannot be given.
            AllocationError: there are not enough CPUs.
            UpstreamFaultError: the kubelet would never return.
        """
        requested = self.exclusive_cpus(pod, container)
        if requested == 0:
            return None
        if self.options.full_pcpus_only:
            self._check_smt_alignment(transaction, requested)
        present = transaction.assigned.get(container.name)
        if present is not None:
            _update_reusable(transaction, pod, container, present)
            idle = transaction.idle.get(container.name)
            return CPUAllocation(
                CPUSet.from_mask(present),
                CPUSet(),
                (),
                None if idle is None else CPUSet.from_mask(idle),
            )
        steps: list[Step] = []
        free = self._available(transaction) | transaction.reusable
        taken = self._take_within(affinity, free, requested, steps)
        transaction.default &= ~taken
        transaction.assigned[container.name] = taken
        _update_reusable(transaction, pod, container, taken)
        return _allocation(taken, free, steps)

    def allocate_pod(
        self, transaction: PodTransaction, pod: Pod, affinity: TopologyHint | None = None
    ) -> PodAllocation | None:
        """Give a pod its CPUs as a whole, and divide them among its containers.

        None where it is not served so, or its budget is no whole number of CPUs: all of it is on
        the shared pool.  The transaction is changed only on success, by the kubelet's rules also
        where the parts do not fit the bubble.  The arguments are as of :meth:`allocate`.

        Raises:
            EmptyPodSharedPoolError: the pod is unsound.
            SMTAlignmentError: whole cores were asked for and cannot be given.
            AllocationError: there are not enough CPUs, on the node or in the budget.
            UpstreamFaultError: the kubelet would never return.
        """
        requested = cpu_budget(pod) if self.heeds_pod_level(pod) else 0
        if requested == 0:
            return None
        if transaction.bubble and not self.rules.allocates_pods_again:
            return _present(transaction, pod)
        if shortage := cpu_shortage(pod):
            raise EmptyPodSharedPoolError(shortage)
        if self.options.full_pcpus_only:
            self._check_smt_alignment(transaction, requested)
        steps: list[Step] = []
        free = self._available(transaction) | transaction.reusable
        bubble = self._take_within(affinity, free, requested, steps)
        if self.rules.leaks_bubbles:
            transaction.default &= ~bubble
            transaction.bubble = bubble
        given: dict[str, CPUAllocation] = {}

        def take(name: str, left: int, count: int) -> int:
            chosen: list[Step] = []
            part = self._take(left, count, chosen)
            given[name] = _allocation(part, left, chosen)
            return part

        division = divide(pod, bubble, take)
        for name, part in division.parts.items():
            given.setdefault(name, _allocation(part, part, []))
        transaction.default &= ~bubble
        transaction.bubble, transaction.assigned = bubble, division.parts
        not_free = CPUSet.union_of([a.not_free for a in given.values()])
        return PodAllocation(
            CPUSet.from_mask(bubble),
            CPUSet.from_mask(division.pool),
            given,
            not_free | CPUSet.from_mask(bubble & ~free),
            tuple(steps),
        )

    def remove(self, transaction: PodTransaction, container_name: str) -> None:
        """Return a container's CPUs to the shared pool, but for those its siblings still have.

        A pod that has CPUs as a whole keeps all of them until the last of its containers goes.
        """
        released = transaction.assigned.pop(container_name, 0)
        if transaction.bubble:
            if released and not transaction.assigned:
                transaction.default |= transaction.bubble
                transaction.bubble = 0
            return
        for cpus in transaction.assigned.values():
            released &= ~cpus
        transaction.default |= released

    def _pod_cpus(self, pod: Pod) -> int:
        if not pod.has_pod_level_resources:
            return pod_guaranteed_cpus(pod)
        return cpu_budget(pod) if self.heeds_pod_level(pod) else 0

    def _available(self, transaction: PodTransaction) -> int:
        return transaction.default & ~self.reserved.mask

    def _hints(self, available: int, reusable: int, requested: int) -> list[TopologyHint]:
        return cpu_hints(
            self.topology,
            available,
            reusable,
            requested,
            align_by_socket=self.options.align_by_socket,
        )

    def _aligned_cpus(self, nodes: int, free: int) -> int:
        if not self.options.align_by_socket:
            return free & nodes_to_cpus(self.topology, nodes)
        cpus = 0
        for socket in sockets_of_nodes(self.topology, nodes):
            cpus |= self.topology.sockets[socket]
        return free & cpus

    def _take_within(
        self, affinity: TopologyHint | None, free: int, count: int, steps: list[Step]
    ) -> int:
        """Choose ``count`` of the ``free`` CPUs, on the nodes of the affinity first."""
        taken = 0
        if affinity is not None and affinity.mask is not None:
            aligned = self._aligned_cpus(affinity.mask, free)
            taken = self._take(aligned, min(count, aligned.bit_count()), steps)
        return taken | self._take(free & ~taken, count - taken.bit_count(), steps)

    def _take(self, free: int, count: int, steps: list[Step]) -> int:
        return choose(self.topology, self.options, free, count, rules=self.rules, steps=steps)

    def _check_smt_alignment(self, transaction: PodTransaction, requested: int) -> None:
        size = self.group_size
        if requested % size:
            raise SMTAlignmentError(
                f"SMT Alignment Error: requested {requested} cpus "
                f"not multiple cpus per core = {size}"
            )
        # Reserving single threads must not lead to cores that are given in part.
        available = (transaction.default & ~self.reserved_cores.mask).bit_count()
        if requested > available:
            raise SMTAlignmentError(
                "SMT Alignment Error: not enough free physical CPUs: "
                f"available physical CPUs = {available}, requested CPUs = {requested}, "
                f"CPUs per core = {size}"
            )


def _allocation(taken: int, free: int, steps: list[Step]) -> CPUAllocation:
    return CPUAllocation(CPUSet.from_mask(taken), CPUSet.from_mask(taken & ~free), tuple(steps))


def _present(transaction: PodTransaction, pod: Pod) -> PodAllocation:
    """What the pod has as a whole already."""
    bubble, parts = transaction.bubble, transaction.assigned
    return PodAllocation(
        CPUSet.from_mask(bubble),
        CPUSet.from_mask(shared_pool(pod, bubble, parts)),
        {name: _allocation(cpus, cpus, []) for name, cpus in parts.items()},
        CPUSet(),
        (),
    )


def _update_reusable(
    transaction: PodTransaction, pod: Pod, container: Container, cpus: int
) -> None:
    is_init = any(init.name == container.name for init in pod.init_containers)
    if is_init and not container.is_sidecar:
        transaction.reusable |= cpus
    else:
        transaction.reusable &= ~cpus
