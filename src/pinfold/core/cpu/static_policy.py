"""The static policy: exclusive CPUs for containers of Guaranteed pods with whole CPU requests.

Source: upstream ``cpumanager/policy_static.go`` (kubelet 1.34).  The policy holds no state: a
:class:`PodTransaction` carries the shared pool and the sets of one pod through an admission, and
what it ends with becomes effects on the ledger.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

from pinfold.core.cpu.allocation import Step, take_packed
from pinfold.core.cpu.distribution import take_distributed
from pinfold.core.cpu.hints import cpu_hints, nodes_to_cpus, sockets_of_nodes
from pinfold.core.kubelet.faults import KUBELET, AllocationRules
from pinfold.core.kubelet.policy_options import StaticPolicyOptions
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.pod.pod import Container, Pod, guaranteed_cpus, pod_guaranteed_cpus
from pinfold.core.topology_manager.hints import AllocationError, TopologyHint
from pinfold.core.values.cpuset import CPUSet

SMT_ALIGNMENT_ERROR: Final = "SMTAlignmentError"
"""The admission reason under ``full-pcpus-only``."""


class ReservationError(ValueError):
    """The reserved CPUs cannot be had; a kubelet does not start."""


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
    """

    pod_uid: str
    default: int
    assigned: dict[str, int] = field(default_factory=dict)
    reusable: int = 0
    idle: dict[str, int] = field(default_factory=dict)


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


class StaticPolicy(Struct, frozen=True):
    """The static policy on one machine; build it with :meth:`create`."""

    topology: CPUTopology
    options: StaticPolicyOptions
    reserved: CPUSet
    reserved_cores: CPUSet
    """The reserved CPUs with their siblings."""
    rules: AllocationRules = KUBELET

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
    ) -> StaticPolicy:
        """Choose and check the reserved CPUs (upstream ``NewStaticPolicy``).

        Args:
            topology: the kubelet's view of the machine.
            options: the parsed policy options.
            reserved_count: how many CPUs are reserved; they are chosen with the allocator.
            reserved_cpus: the explicit set (``reservedSystemCPUs``), which must have that size.
            topology_manager_policy: for the options that depend on it.
            rules: the kubelet's allocation, or the sound one.

        Raises:
            PolicyOptionError: an option that does not fit the machine.
            ReservationError: reserved CPUs that do not exist or are too few.
        """
        options.check(topology, topology_manager_policy)
        reserved = reserved_cpus or _choose_reserved(topology, options, reserved_count, rules)
        if len(reserved) != reserved_count:
            raise ReservationError(
                "[cpumanager] unable to reserve the required amount of CPUs "
                f"(size of {reserved} did not equal {reserved_count})"
            )
        cores = 0
        for cpu in reserved:
            row = topology.by_cpu.get(cpu)
            if row is None:
                raise ReservationError(
                    "[cpumanager] unable to build the reserved physical CPUs from the reserved "
                    f"set: unknown CPU ID: {cpu}"
                )
            cores |= topology.cores[row.core]
        return cls(topology, options, reserved, CPUSet.from_mask(cores), rules)

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

    def container_hints(
        self, transaction: PodTransaction, pod: Pod, container: Container
    ) -> list[TopologyHint] | None:
        """The NUMA affinities that could serve a container.

        None is no opinion (the container uses the shared pool); an empty list is "impossible".
        """
        requested = guaranteed_cpus(pod, container)
        if requested == 0 or pod.has_pod_level_resources:
            return None
        allocated = transaction.assigned.get(container.name)
        if allocated is None:
            return self._hints(self._available(transaction), transaction.reusable, requested)
        if allocated.bit_count() != requested:
            return []
        return self._hints(allocated, 0, requested)

    def pod_hints(self, transaction: PodTransaction, pod: Pod) -> list[TopologyHint] | None:
        """The NUMA affinities that could serve the whole pod (topology manager scope pod)."""
        requested = pod_guaranteed_cpus(pod)
        if requested == 0 or pod.has_pod_level_resources:
            return None
        assigned = 0
        for container in (*pod.init_containers, *pod.containers):
            allocated = transaction.assigned.get(container.name)
            if allocated is None:
                continue
            if allocated.bit_count() != guaranteed_cpus(pod, container):
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
        requested = guaranteed_cpus(pod, container)
        if requested == 0 or pod.has_pod_level_resources:
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
        taken = 0
        if affinity is not None and affinity.mask is not None:
            aligned = self._aligned_cpus(affinity.mask, free)
            taken = self._take(aligned, min(requested, aligned.bit_count()), steps)
        taken |= self._take(free & ~taken, requested - taken.bit_count(), steps)
        transaction.default &= ~taken
        transaction.assigned[container.name] = taken
        _update_reusable(transaction, pod, container, taken)
        return CPUAllocation(CPUSet.from_mask(taken), CPUSet.from_mask(taken & ~free), tuple(steps))

    def remove(self, transaction: PodTransaction, container_name: str) -> None:
        """Return a container's CPUs to the shared pool, but for those its siblings still have."""
        released = transaction.assigned.pop(container_name, 0)
        for cpus in transaction.assigned.values():
            released &= ~cpus
        transaction.default |= released

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

    def _take(self, free: int, count: int, steps: list[Step]) -> int:
        return _choose(self.topology, self.options, free, count, rules=self.rules, steps=steps)

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


def _update_reusable(
    transaction: PodTransaction, pod: Pod, container: Container, cpus: int
) -> None:
    is_init = any(init.name == container.name for init in pod.init_containers)
    if is_init and not container.is_sidecar:
        transaction.reusable |= cpus
    else:
        transaction.reusable &= ~cpus


def _choose(  # noqa: PLR0913 - the policy and the request
    topology: CPUTopology,
    options: StaticPolicyOptions,
    free: int,
    count: int,
    *,
    rules: AllocationRules,
    steps: list[Step] | None = None,
) -> int:
    spread = options.distribute_cpus_across_cores
    if options.distribute_cpus_across_numa:
        group_size = topology.cpus_per_core if options.full_pcpus_only else 1
        return take_distributed(
            topology, free, count, group_size, spread=spread, rules=rules, steps=steps
        )
    align_uncore = options.prefer_align_cpus_by_uncorecache
    return take_packed(
        topology, free, count, spread=spread, align_uncore=align_uncore, rules=rules, steps=steps
    )


def _choose_reserved(
    topology: CPUTopology, options: StaticPolicyOptions, count: int, rules: AllocationRules
) -> CPUSet:
    try:
        mask = _choose(topology, options, topology.all, count, rules=rules)
    except AllocationError:
        # The kubelet drops this error too; the size check that follows names the problem.
        mask = 0
    return CPUSet.from_mask(mask)
