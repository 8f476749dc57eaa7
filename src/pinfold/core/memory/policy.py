"""The memory manager's static policy: memory and huge pages of Guaranteed pods by NUMA node.

Source: upstream ``memorymanager/policy_static.go`` (kubelet 1.34).  The policy holds no state: a
:class:`MemoryTransaction` carries the state through the admission of one pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.kubelet.faults import KUBELET, AllocationRules
from pinfold.core.kubelet.feature_gates import POD_LEVEL_RESOURCE_MANAGERS
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.kubelet_view import KubeletView
from pinfold.core.memory.affinity import choose_nodes
from pinfold.core.memory.bubble import overdrawn, parts_of
from pinfold.core.memory.hints import Reusable, memory_hints
from pinfold.core.memory.memory import (
    Block,
    MemoryState,
    NodeMemory,
    charge,
    default_machine_state,
    remove_container,
)
from pinfold.core.memory.request import (
    pod_requested_memory,
    remembered_after,
    requested_memory,
    reusable_memory,
    shrunk_assignments,
)
from pinfold.core.memory.reservation import (
    NONE,
    MemoryPolicyError,
    check_policy_name,
    check_reserved_fits,
    node_memory,
    reserved_by_node,
)
from pinfold.core.pod.pod import Container, Pod, QOSClass, Resources
from pinfold.core.pod.pod_level import memory_is_shared, memory_shortage
from pinfold.core.topology_manager.hints import (
    AllocationError,
    EmptyPodSharedPoolError,
    HintError,
    TopologyHint,
    numa_mask,
)
from pinfold.core.values.cpuset import iter_bits


class MemoryTransaction(Struct):
    """The memory of all pods while one of them, ``pod_uid``, is being admitted.

    ``state`` is what is assigned by now; each step that succeeds replaces it.  What init containers
    leave to later ones follows from it; ``remembered`` is what a kubelet takes for that, where it
    matters: it keeps it from one admission of the pod to the next, though these may have gone.
    """

    pod_uid: str
    state: MemoryState
    remembered: Reusable | None = None

    def reusable(self, pod: Pod, container: Container) -> Reusable:
        """What a container may take over from the pod's init containers."""
        if self.remembered is not None:
            return self.remembered
        return reusable_memory(self.state, pod, container)


class MemoryPodAllocation(Struct, frozen=True):
    """What a pod with resources of its own has: as a whole, and of that by container."""

    bubble: tuple[Block, ...]
    containers: Mapping[str, tuple[Block, ...]]


class StaticMemoryPolicy(Struct, frozen=True):
    """The static policy on one machine; build it with :meth:`create`.

    Where a pod asks for a huge page size that no NUMA node has, a kubelet crashes; here the
    hints for it are impossible and the allocation is refused.
    """

    nodes: Mapping[int, NodeMemory]
    """The NUMA nodes by id, with what is reserved on each."""
    pod_level: bool = False
    """Serve pods with resources of their own, too (gate ``PodLevelResourceManagers``)."""
    rules: AllocationRules = KUBELET

    @classmethod
    def create(
        cls,
        nodes: Mapping[int, NodeMemory],
        reserved_memory: Iterable[Mapping[str, Any]],
        reservation: Resources,
        *,
        pod_level: bool = False,
        rules: AllocationRules = KUBELET,
    ) -> StaticMemoryPolicy:
        """Check ``reservedMemory`` as a starting kubelet does (upstream ``NewPolicyStatic``).

        Args:
            nodes: the NUMA nodes by id; what they say is reserved is not looked at.
            reserved_memory: ``{numaNode, limits}`` as in :class:`~.node_config.NodeConfig`.
            reservation: what node allocatable withholds from pods: kubeReserved, systemReserved
                and hard eviction together.
            pod_level: serve pods with resources of their own.
            rules: the kubelet's allocation, or the sound one.

        Raises:
            MemoryPolicyError: a NUMA node id that no kubelet's mask holds.
            MemoryReservationError: the two do not agree, no memory is reserved, or more of a
                node than it has (a kubelet would start and hand out memory that is not there).
        """
        try:
            numa_mask(nodes)
        except HintError as error:
            raise MemoryPolicyError(f"[memorymanager] {error}") from None
        reserved = reserved_by_node(nodes, reserved_memory, reservation)
        complete = {id_: replace(node, reserved=reserved[id_]) for id_, node in nodes.items()}
        check_reserved_fits(complete)
        return cls(complete, pod_level, rules)

    def _is_served(self, pod: Pod) -> bool:
        served = self.pod_level or not pod.has_pod_level_resources
        return served and pod.qos is QOSClass.GUARANTEED

    @property
    def allocatable(self) -> tuple[Block, ...]:
        """What pods may have, by NUMA node and resource (pod resources API); no zeros."""
        return tuple(
            Block((node_id,), resource, table.allocatable)
            for node_id, node in sorted(self.empty_state.machine.items())
            for resource, table in sorted((node.memory_map or {}).items())
            if table is not None and table.allocatable
        )

    @property
    def empty_state(self) -> MemoryState:
        """The state of a node without pods."""
        return MemoryState(default_machine_state(self.nodes))

    def container_hints(
        self, transaction: MemoryTransaction, pod: Pod, container: Container
    ) -> dict[str, list[TopologyHint]] | None:
        """The NUMA affinities that could serve a container, by resource.

        None is no opinion; so is, as in upstream, an empty dict, where nothing fits at present
        and allocation will fail.

        Raises:
            TooManyNUMANodesError: a kubelet would try combinations for ever.
        """
        if not self._is_served(pod):
            return None
        state = transaction.state
        try:
            requested = _requested(state, pod, container)
        except AllocationError:
            return None
        blocks = state.blocks_of(pod.uid, container.name)
        if blocks is not None:
            return _regenerated(blocks, requested)
        return _hints(state, requested, transaction.reusable(pod, container))

    def pod_hints(
        self, transaction: MemoryTransaction, pod: Pod
    ) -> dict[str, list[TopologyHint]] | None:
        """The NUMA affinities that could serve the whole pod; as for a container.

        Raises:
            TooManyNUMANodesError: a kubelet would try combinations for ever.
        """
        if not self._is_served(pod):
            return None
        state = transaction.state
        try:
            requested = pod_requested_memory(state, pod)
        except AllocationError:
            return None
        if pod.has_pod_level_resources and memory_shortage(pod):
            return {name: [] for name in requested}
        for container in pod.all_containers:
            blocks = state.blocks_of(pod.uid, container.name)
            if blocks is not None:
                # Upstream holds the first container's blocks against what the whole pod asks for.
                return _regenerated(blocks, requested)
        return _hints(state, requested, {})

    def allocate(
        self,
        transaction: MemoryTransaction,
        pod: Pod,
        container: Container,
        affinity: TopologyHint | None = None,
    ) -> tuple[Block, ...] | None:
        """Give a container its memory; None where the policy leaves it alone.

        The transaction is changed only on success.  What regular init containers of the pod had
        on the same NUMA nodes is used again, and their blocks shrink by it.

        Args:
            transaction: the pod's admission so far.
            pod: the pod, and ``container`` one of its containers.
            container: who asks.
            affinity: the topology manager's answer; None is one without a mask, not preferred.

        Raises:
            AllocationError: no NUMA nodes can serve it; the message is the kubelet's.
        """
        if not self._is_served(pod):
            return None
        state = transaction.state
        present = state.blocks_of(pod.uid, container.name)
        if present is not None:
            _remember(transaction, pod, container, present)
            return present
        requested = _requested(state, pod, container)
        if not self.rules.allocates_no_memory and _shares(pod, container):
            return None
        _check_known(state, requested, f"container {container.name}")
        reusable = transaction.reusable(pod, container)
        mask = choose_nodes(
            state, requested, reusable, affinity or TopologyHint(None, preferred=False)
        )
        nodes = tuple(iter_bits(mask))
        blocks = tuple(Block(nodes, resource, size) for resource, size in requested.items())
        left = reusable.get(mask, {})
        machine = dict(state.machine)
        for block in blocks:
            charge(machine, block, max(block.size - left.get(block.type, 0), 0))
        containers = shrunk_assignments(state, pod, container, blocks) | {container.name: blocks}
        assignments = {**state.assignments, pod.uid: containers}
        transaction.state = MemoryState(machine, assignments, state.bubbles)
        _remember(transaction, pod, container, blocks)
        return blocks

    def allocate_pod(
        self, transaction: MemoryTransaction, pod: Pod, affinity: TopologyHint | None = None
    ) -> MemoryPodAllocation | None:
        """Give a pod with resources of its own its memory as a whole; None: it is left alone.

        The transaction is changed only on success.  All containers are on the same NUMA nodes; the
        machine is charged once, with what the pod requests.

        Args:
            transaction: the pod's admission so far.
            pod: the pod.
            affinity: the topology manager's answer; None is one without a mask, not preferred.

        Raises:
            AllocationError: its containers would have none, or no NUMA nodes can serve it; the
                message is the kubelet's.
        """
        if not (pod.has_pod_level_resources and self._is_served(pod)):
            return None
        state = transaction.state
        present = state.bubbles.get(pod.uid)
        if present is not None and not self.rules.allocates_pods_again:
            return MemoryPodAllocation(present, state.assignments.get(pod.uid, {}))
        budget = pod_requested_memory(state, pod)
        for why in memory_shortage(pod).values():
            raise EmptyPodSharedPoolError(why)
        _check_known(state, budget, f"pod {pod.full_name}")
        own = {c.name: _requested(state, pod, c) for c in pod.all_containers}
        missing = None if self.rules.memory_wraps_around else overdrawn(pod, budget, own)
        if missing is not None:
            raise AllocationError(f"[memorymanager] pod {pod.full_name} has too little: {missing}")
        mask = choose_nodes(state, budget, {}, affinity or TopologyHint(None, preferred=False))
        nodes = tuple(iter_bits(mask))
        bubble = tuple(Block(nodes, resource, size) for resource, size in budget.items())
        machine = dict(state.machine)
        for block in bubble:
            charge(machine, block)
        parts = parts_of(pod, budget, own, nodes)
        transaction.state = MemoryState(
            machine, {**state.assignments, pod.uid: parts}, {**state.bubbles, pod.uid: bubble}
        )
        return MemoryPodAllocation(bubble, parts)

    def overdrawn(self, state: MemoryState, pod: Pod) -> str | None:
        """Why a pod's containers do not fit into what it has as a whole; None: they do.

        A kubelet gives it to them all the same (``MEMORY_WRAPS_AROUND``).
        """
        if not (pod.has_pod_level_resources and self._is_served(pod)):
            return None
        try:
            own = {c.name: _requested(state, pod, c) for c in pod.all_containers}
            return overdrawn(pod, pod_requested_memory(state, pod), own)
        except AllocationError:
            return None

    def remove(self, transaction: MemoryTransaction, container_name: str) -> None:
        """Give back what a container of the transaction's pod has, if anything."""
        transaction.state = remove_container(transaction.state, transaction.pod_uid, container_name)


def create_memory_policy(
    config: NodeConfig,
    view: KubeletView,
    reservation: Resources,
    rules: AllocationRules = KUBELET,
) -> StaticMemoryPolicy | None:
    """The policy that a node is configured for; ``None`` for policy ``None``.

    Raises:
        MemoryPolicyError: there is no such policy, or as :meth:`StaticMemoryPolicy.create`.
    """
    check_policy_name(config.memory_manager_policy)
    if config.memory_manager_policy == NONE:
        return None
    return StaticMemoryPolicy.create(
        node_memory(view),
        config.reserved_memory,
        reservation,
        pod_level=config.gate(POD_LEVEL_RESOURCE_MANAGERS),
        rules=rules,
    )


def _remember(
    transaction: MemoryTransaction, pod: Pod, container: Container, blocks: tuple[Block, ...]
) -> None:
    if transaction.remembered is not None:
        transaction.remembered = remembered_after(transaction.remembered, pod, container, blocks)


def _requested(state: MemoryState, pod: Pod, container: Container) -> dict[str, int]:
    """What a container is to have for itself; raises AllocationError."""
    if _shares(pod, container):
        return {}
    return requested_memory(state, container.requests)


def _shares(pod: Pod, container: Container) -> bool:
    """Whether a container has no memory of its own in a pod that has some as a whole."""
    return pod.has_pod_level_resources and memory_is_shared(container)


def _check_known(state: MemoryState, requested: Mapping[str, int], who: str) -> None:
    if missing := _missing(state, requested):
        raise AllocationError(
            f"[memorymanager] {who} asks for {missing[0]}, but no NUMA node of this machine has "
            "pages of that size (a kubelet would crash)"
        )


def _missing(state: MemoryState, requested: Mapping[str, int]) -> list[str]:
    return [name for name in requested if not state.has(name)]


def _hints(
    state: MemoryState, requested: Mapping[str, int], reusable: Reusable
) -> dict[str, list[TopologyHint]]:
    missing = _missing(state, requested)
    if missing:
        return {name: [] for name in missing}
    hints = memory_hints(state.machine, requested, reusable)
    return {name: list(hints) for name in requested} if hints else {}


def _regenerated(
    blocks: tuple[Block, ...], requested: Mapping[str, int]
) -> dict[str, list[TopologyHint]] | None:
    """The hints that lead to what is assigned already; None where that is not what is asked."""
    if len(blocks) != len(requested) or any(
        requested.get(block.type) != block.size for block in blocks
    ):
        return None
    hints: dict[str, list[TopologyHint]] = {name: [] for name in requested}
    for block in blocks:
        mask = numa_mask(block.numa_affinity or ())
        hints[block.type].append(TopologyHint(mask, preferred=True))
    return hints
