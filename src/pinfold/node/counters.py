"""What is counted, for metrics and ``pinfold status``.

What counts as a request and as an error is as with the kubelet (1.34 to 1.36): upstream
``cpumanager/policy_static.go``, ``memorymanager/policy_static.go``, ``topologymanager/scope_*.go``
and ``devicemanager/manager.go``, each at the place where it allocates.  An allocation is one of the
``node`` or of a ``pod`` that has CPUs and memory as a whole; a container is assigned
``node_exclusive``, ``pod_exclusive`` or ``pod_shared`` ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from msgspec import Struct, field

from pinfold.admission.admission import Node
from pinfold.admission.decision import Decision
from pinfold.admission.pod_draft import CPU_MANAGER
from pinfold.core.pod.pod import MEMORY, Container, Pod, is_hugepages
from pinfold.core.pod.pod_level import cpu_budget, exclusive_cpus, exclusive_memory
from pinfold.core.topology_manager.manager import TOPOLOGY_AFFINITY_ERROR
from pinfold.core.topology_manager.policy import Policy, Scope
from pinfold.documents.explanation import MEMORY_MANAGER
from pinfold.ports.errors import ContainerKey

START_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the histogram of container starts."""

ALLOCATE_SECONDS: Final = (*START_SECONDS, 10.0)
"""Upper bounds of the histogram of allocations by device plugins (the kubelet's)."""

MOVE_SECONDS: Final = (0.001, 0.0025, *START_SECONDS, 10.0, 30.0)
"""Upper bounds of the histogram of plans of moves."""

NUMA_NODE: Final = "numa_node"
PHYSICAL_CPU: Final = "physical_cpu"
UNCORE_CACHE: Final = "uncore_cache"

CPU_NAME: Final = "cpu"
MEMORY_NAME: Final = "memory"
OF_NODE: Final = "node"
OF_POD: Final = "pod"
NODE_EXCLUSIVE: Final = "node_exclusive"
POD_EXCLUSIVE: Final = "pod_exclusive"
POD_SHARED: Final = "pod_shared"
RESOURCE_OF: Final = {CPU_MANAGER: CPU_NAME, MEMORY_MANAGER: MEMORY_NAME}


class Durations(Struct):
    """How often something was done, and how long it took: in all, and how often within a bound."""

    count: int = 0
    seconds: float = 0.0
    buckets: Counter[float] = field(default_factory=Counter)

    def add(self, seconds: float, bounds: Sequence[float]) -> None:
        """It was done once more."""
        self.count += 1
        self.seconds += seconds
        self.buckets.update(bound for bound in bounds if seconds <= bound)


class AllocationCounters(Struct):
    """Totals by resource and source, as in ``cpu/node``; by resource and assignment likewise."""

    resource_allocations: Counter[str] = field(default_factory=Counter)
    resource_allocation_errors: Counter[str] = field(default_factory=Counter)
    container_assignments: Counter[str] = field(default_factory=Counter)

    def count_allocation(self, manager: str, container: Container, *, failed: bool) -> None:
        """A manager was asked to give something of the node to one container."""
        resource = RESOURCE_OF[manager]
        if failed:
            self.resource_allocation_errors[f"{resource}/{OF_NODE}"] += 1
            return
        # The memory manager counts each kind of memory.
        kinds = 1 if resource == CPU_NAME else len(_memory_kinds(container))
        self.resource_allocations[f"{resource}/{OF_NODE}"] += kinds
        self.container_assignments[f"{resource}/{NODE_EXCLUSIVE}"] += 1

    def count_allocations_of_pod(self, decision: Decision) -> Whole:
        """The managers were asked to serve a pod as a whole; tells how often each pinned."""
        found, pod = Whole(), decision.pod
        if decision.reason == TOPOLOGY_AFFINITY_ERROR or not decision.affinity:
            return found
        for manager in decision.providers:
            failed = manager == decision.failed_provider
            if manager == CPU_MANAGER and cpu_budget(pod):
                own = self._count_whole(decision, CPU_NAME, exclusive_cpus, failed=failed)
                found.cpu_errors += failed
                found.cpu_requests += len(own)
            elif manager == MEMORY_MANAGER:
                own = self._count_whole(decision, MEMORY_NAME, exclusive_memory, failed=failed)
                found.memory_errors += failed
                # The pod is a request of its own, and so is each init container.
                init = () if failed else pod.init_containers
                found.memory_requests += 1 + len({*own, *(one.name for one in init)})
            if failed:
                break
        return found

    def _count_whole(
        self,
        decision: Decision,
        resource: str,
        own: Callable[[Container], object],
        *,
        failed: bool,
    ) -> list[str]:
        """Count one manager's part; the containers that were given something of their own."""
        if failed:
            self.resource_allocation_errors[f"{resource}/{OF_POD}"] += 1
            return []
        containers = decision.pod.all_containers
        owners = [container.name for container in containers if own(container)]
        self.resource_allocations[f"{resource}/{OF_POD}"] += len(containers)
        self.container_assignments[f"{resource}/{POD_EXCLUSIVE}"] += len(owners)
        self.container_assignments[f"{resource}/{POD_SHARED}"] += len(containers) - len(owners)
        return owners


class Whole(Struct):
    """How often managers pinned, or could not, for a pod as a whole."""

    cpu_requests: int = 0
    cpu_errors: int = 0
    memory_requests: int = 0
    memory_errors: int = 0


class Counters(AllocationCounters):
    """Totals since the agent started; times are seconds.

    ``aligned`` and ``alignment_failures`` are by scope and boundary, as in ``container/numa_node``;
    ``device_allocations`` are by resource, those that failed too;
    ``quota_refusals`` are by namespace and name of the quota.
    """

    admissions: int = 0
    rejections: Counter[str] = field(default_factory=Counter)
    quota_refusals: Counter[str] = field(default_factory=Counter)
    pinning_requests: int = 0
    pinning_errors: int = 0
    memory_pinning_requests: int = 0
    memory_pinning_errors: int = 0
    alignment_requests: int = 0
    alignment_errors: int = 0
    aligned: Counter[str] = field(default_factory=Counter)
    alignment_failures: Counter[str] = field(default_factory=Counter)
    device_allocations: defaultdict[str, Durations] = field(
        default_factory=lambda: defaultdict(Durations)
    )
    container_starts: int = 0
    container_start_seconds: float = 0.0
    container_start_buckets: Counter[float] = field(default_factory=Counter)
    container_exits: int = 0
    reconciles: int = 0
    reconcile_seconds: float = 0.0
    repairs: int = 0
    escapes: int = 0
    cgroup_failures: int = 0
    stays_shared: int = 0
    """How often a load-driven container should have had CPUs of its own, and none fitted it."""
    moves: defaultdict[str, Durations] = field(default_factory=lambda: defaultdict(Durations))
    """Plans of moves that are over, by why and outcome, as in ``resize/done``."""

    def count_admission(self, node: Node, decision: Decision, only: str | None = None) -> None:
        """One pod was decided about, or of its containers ``only`` one."""
        self.admissions += 1
        if not decision.admitted:
            self.rejections[decision.reason or ""] += 1
        self._count_alignment(node, decision, only)
        if node.serves_whole(decision.pod):
            whole = self.count_allocations_of_pod(decision)
            self.pinning_requests += whole.cpu_requests
            self.pinning_errors += whole.cpu_errors
            self.memory_pinning_requests += whole.memory_requests
            self.memory_pinning_errors += whole.memory_errors
            return
        for container in _allocated_for(node, decision, only):
            failed = None
            if decision.failed_container == container.name:
                failed = decision.failed_provider
            for manager in decision.providers:
                if manager == CPU_MANAGER and _asks_for_cpus(node, decision.pod, container):
                    self._count_cpus(node, decision, container, failed=manager == failed)
                    if container.name not in decision.load_driven:
                        self.count_allocation(manager, container, failed=manager == failed)
                elif manager == MEMORY_MANAGER:
                    self.memory_pinning_requests += 1
                    self.memory_pinning_errors += manager == failed
                    self.count_allocation(manager, container, failed=manager == failed)
                if manager == failed:
                    break

    def _count_cpus(
        self, node: Node, decision: Decision, container: Container, *, failed: bool
    ) -> None:
        self.pinning_requests += 1
        self.pinning_errors += failed
        policy, given = node.cpu_policy, decision.allocations.get(container.name)
        if policy is not None and policy.options.full_pcpus_only:
            counted = self.alignment_failures if failed else self.aligned
            counted[f"container/{PHYSICAL_CPU}"] += 1
        if policy is not None and given is not None and not failed:
            caches = {policy.topology.by_cpu[cpu].uncore_cache for cpu in given.cpus}
            self.aligned[f"container/{UNCORE_CACHE}"] += len(caches) == 1

    def _count_alignment(self, node: Node, decision: Decision, only: str | None) -> None:
        self.alignment_requests += 1
        manager = node.topology_manager
        apart = decision.reason == TOPOLOGY_AFFINITY_ERROR
        if manager.policy is not Policy.NONE:
            self.alignment_errors += apart or decision.failed_provider is not None
        if manager.policy is not Policy.SINGLE_NUMA_NODE:
            return
        key = f"{manager.scope.value}/{NUMA_NODE}"
        self.alignment_failures[key] += apart
        given = [
            container
            for container in _allocated_for(node, decision, only)
            if container.name != decision.failed_container
        ]
        if manager.scope is Scope.CONTAINER:
            self.aligned[key] += len(given)
        elif given and decision.failed_container is None and decision.failed_provider is None:
            self.aligned[key] += 1

    def count_allocate(self, resource: str, seconds: float) -> None:
        """One call of a device plugin's Allocate has ended, however it did."""
        self.device_allocations[resource].add(seconds, ALLOCATE_SECONDS)

    def count_move(self, why: str, outcome: str, seconds: float) -> None:
        """One plan of moves is over."""
        self.moves[f"{why}/{outcome}"].add(seconds, MOVE_SECONDS)

    def count_reconcile(self, seconds: float, repaired: int, failed: int) -> None:
        """One reconciliation has ended."""
        self.reconciles += 1
        self.reconcile_seconds += seconds
        self.repairs += repaired
        self.cgroup_failures += failed

    def count_start(self, seconds: float) -> None:
        """One container was started."""
        self.container_starts += 1
        self.container_start_seconds += seconds
        self.container_start_buckets.update(b for b in START_SECONDS if seconds <= b)


_LOOKS: Final = 10
_MANY: Final = 3
_LATE: Final = 0b11
"""What drifted in many of the last looks, and in one of these, does so again and again."""


class Drifts:
    """At which of the last reconciliations a container had drifted, or None: the shared pool."""

    def __init__(self) -> None:
        self._bits: dict[ContainerKey | None, int] = {}

    def look(self, drifted: Collection[ContainerKey | None]) -> None:
        """One reconciliation has looked, and found these."""
        last, known = (1 << _LOOKS) - 1, {*self._bits, *drifted}
        bits = {key: self._bits.get(key, 0) << 1 & last | (key in drifted) for key in known}
        self._bits = {key: some for key, some in bits.items() if some}

    def recurring(self) -> Iterator[tuple[ContainerKey | None, str]]:
        """What drifts again and again, and how often, in words: somebody else writes, and wins."""
        for key, bits in self._bits.items():
            if bits.bit_count() >= _MANY and bits & _LATE:
                yield key, f"in {bits.bit_count()} of the last {_LOOKS} looks"


def _asks_for_cpus(node: Node, pod: Pod, container: Container) -> bool:
    policy = node.cpu_policy
    return policy is not None and policy.exclusive_cpus(pod, container) > 0


def _allocated_for(node: Node, decision: Decision, only: str | None) -> list[Container]:
    """The containers for which managers were asked to allocate, the one that failed last."""
    asked: list[Container] = []
    for container in decision.pod.all_containers:
        if only in (None, container.name):
            asked.append(container)
        if container.name == decision.failed_container:
            break
    if decision.admitted:
        return asked
    if not decision.providers:
        return []
    if node.topology_manager.policy is not Policy.NONE:
        # A container has an affinity once its hints were merged, and were accepted.
        asked = [container for container in asked if container.name in decision.affinity]
    return asked


def _memory_kinds(container: Container) -> list[str]:
    return [
        name
        for name, amount in container.requests.items()
        if (name == MEMORY or is_hugepages(name)) and not amount.is_zero
    ]
