"""The memory manager's static policy: memory and huge pages of Guaranteed pods by NUMA node.

Source: upstream ``memorymanager/policy_static.go`` (kubelet 1.34).  The policy holds no state: a
:class:`MemoryTransaction` carries the state through the admission of one pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pinfold.core.allocation import AllocationError
from pinfold.core.cpu_hints import TooManyNUMANodesError
from pinfold.core.cpuset import iter_bits
from pinfold.core.hints import TopologyHint, numa_mask
from pinfold.core.memory import (
    UINT64,
    Block,
    MemoryState,
    NodeMemory,
    charge,
    default_machine_state,
    remove_container,
)
from pinfold.core.memory_hints import NodeGroups, best_hint, memory_hints
from pinfold.core.memory_reservation import reserved_by_node
from pinfold.core.pod import (
    HUGEPAGES_PREFIX,
    MEMORY,
    Container,
    Pod,
    QOSClass,
    Resources,
    container_requests,
)

_NOT_INT64: Final = "[memorymanager] failed to represent quantity as int64"
_NO_DEFAULT: Final = (
    "[memorymanager] failed to get the default NUMA affinity, "
    "no NUMA nodes with enough memory is available"
)
_DEFAULT_NOT_PREFERRED: Final = "[memorymanager] failed to find the default preferred hint"
_NO_EXTENSION: Final = (
    "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
)
_EXTENSION_NOT_PREFERRED: Final = "[memorymanager] failed to find the extended preferred hint"
_VIOLATION: Final = "[memorymanager] preferred hint violates NUMA node allocation"


@dataclass(slots=True)
class MemoryTransaction:
    """The memory of all pods while one of them is being admitted.

    Args:
        pod_uid: whose admission this is.
        state: what is assigned by now; replaced by each step that succeeds.
        reusable: bitmask of NUMA nodes -> resource -> bytes of the pod's finished init containers
            that its later containers take over.
    """

    pod_uid: str
    state: MemoryState
    reusable: dict[int, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StaticMemoryPolicy:
    """The static policy on one machine; build it with :meth:`create`.

    Where a pod asks for a huge page size that no NUMA node has, a kubelet crashes; here the
    hints for it are impossible and the allocation is refused.
    """

    nodes: Mapping[int, NodeMemory]
    """The NUMA nodes by id, with what is reserved on each."""

    @classmethod
    def create(
        cls,
        nodes: Mapping[int, NodeMemory],
        reserved_memory: Iterable[Mapping[str, Any]],
        reservation: Resources,
    ) -> StaticMemoryPolicy:
        """Check ``reservedMemory`` as a starting kubelet does (upstream ``NewPolicyStatic``).

        Args:
            nodes: the NUMA nodes by id; what they say is reserved is not looked at.
            reserved_memory: ``{numaNode, limits}`` as in :class:`~.node_config.NodeConfig`.
            reservation: what node allocatable withholds from pods: kubeReserved, systemReserved
                and hard eviction together.

        Raises:
            MemoryReservationError: the two do not agree, or no memory is reserved.
        """
        reserved = reserved_by_node(nodes, reserved_memory, reservation)
        return cls(
            {
                node_id: NodeMemory(node.memory, node.hugepages, reserved[node_id])
                for node_id, node in nodes.items()
            }
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
        if not _is_served(pod):
            return None
        try:
            requested = self._requested(transaction.state, container)
        except AllocationError:
            return None
        blocks = transaction.state.blocks_of(pod.uid, container.name)
        if blocks is not None:
            return _regenerated(blocks, requested)
        return _hints(transaction, requested)

    def pod_hints(
        self, transaction: MemoryTransaction, pod: Pod
    ) -> dict[str, list[TopologyHint]] | None:
        """The NUMA affinities that could serve the whole pod; as for a container.

        Raises:
            TooManyNUMANodesError: a kubelet would try combinations for ever.
        """
        if not _is_served(pod):
            return None
        try:
            requested = self._requested_by_pod(transaction.state, pod)
        except AllocationError:
            return None
        for container in pod.all_containers:
            blocks = transaction.state.blocks_of(pod.uid, container.name)
            if blocks is not None:
                # Upstream holds the first container's blocks against what the whole pod asks for.
                return _regenerated(blocks, requested)
        return _hints(transaction, requested)

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
        if not _is_served(pod):
            return None
        state = transaction.state
        present = state.blocks_of(pod.uid, container.name)
        if present is not None:
            _update_reusable(transaction, pod, container, present)
            return present
        requested = self._requested(state, container)
        missing = _missing(state, requested)
        if missing:
            raise AllocationError(
                f"[memorymanager] container {container.name} asks for {missing[0]}, but no NUMA "
                f"node of this machine has pages of that size (a kubelet would crash)"
            )
        mask = _choose(transaction, requested, affinity or TopologyHint(None, preferred=False))
        nodes = tuple(iter_bits(mask))
        blocks = tuple(Block(nodes, resource, size) for resource, size in requested.items())
        reusable = transaction.reusable.get(mask, {})
        machine = dict(state.machine)
        for block in blocks:
            charge(machine, block, max(block.size - reusable.get(block.type, 0), 0))
        _update_reusable(transaction, pod, container, blocks)
        containers = _shrunk(state, pod, container, blocks) | {container.name: blocks}
        transaction.state = MemoryState(machine, {**state.assignments, pod.uid: containers})
        return blocks

    def remove(self, transaction: MemoryTransaction, container_name: str) -> None:
        """Give back what a container of the transaction's pod has, if anything."""
        transaction.state = remove_container(transaction.state, transaction.pod_uid, container_name)

    def _requested(self, state: MemoryState, container: Container) -> dict[str, int]:
        """Bytes by resource, in the order of the names.

        Raises:
            AllocationError: an amount that is no whole 64-bit number.
        """
        requested = {}
        for name, quantity in sorted(container.requests.items()):
            if name != MEMORY and not name.startswith(HUGEPAGES_PREFIX):
                continue
            size = quantity.as_int64()
            if size is None:
                raise AllocationError(_NOT_INT64)
            if size or state.has(name):
                requested[name] = size & UINT64
        return requested

    def _requested_by_pod(self, state: MemoryState, pod: Pod) -> dict[str, int]:
        for container in pod.init_containers:
            self._requested(state, container)
        names = {name for c in pod.containers for name in self._requested(state, c)}
        total = container_requests(pod)
        return {name: total[name].value() & UINT64 for name in sorted(names)}


def _is_served(pod: Pod) -> bool:
    return pod.qos is QOSClass.GUARANTEED and not pod.has_pod_level_resources


def _missing(state: MemoryState, requested: Mapping[str, int]) -> list[str]:
    return [name for name in requested if not state.has(name)]


def _hints(
    transaction: MemoryTransaction, requested: Mapping[str, int]
) -> dict[str, list[TopologyHint]]:
    missing = _missing(transaction.state, requested)
    if missing:
        return {name: [] for name in missing}
    hints = memory_hints(transaction.state.machine, requested, transaction.reusable)
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


def _choose(
    transaction: MemoryTransaction, requested: Mapping[str, int], affinity: TopologyHint
) -> int:
    """The NUMA nodes that an allocation under ``affinity`` uses (a bitmask)."""
    state = transaction.state
    mask, preferred = affinity
    if mask is None:
        hints = _listed(transaction, requested)
        if not hints:
            raise AllocationError(_NO_DEFAULT)
        default = best_hint(hints)
        if preferred and not default.preferred:
            raise AllocationError(_DEFAULT_NOT_PREFERRED)
        mask, preferred = default.mask or 0, default.preferred
    if not _satisfies(state, mask, requested):
        wider = [h for h in _listed(transaction, requested) if mask & ~(h.mask or 0) == 0]
        if not wider:
            raise AllocationError(_NO_EXTENSION)
        extended = best_hint(wider)
        if preferred and not extended.preferred:
            raise AllocationError(_EXTENSION_NOT_PREFERRED)
        mask = extended.mask or 0
    if mask & (mask - 1) and not NodeGroups.of(state.machine).may_span(mask):
        raise AllocationError(_VIOLATION)
    return mask


def _listed(transaction: MemoryTransaction, requested: Mapping[str, int]) -> list[TopologyHint]:
    try:
        return memory_hints(transaction.state.machine, requested, transaction.reusable)
    except TooManyNUMANodesError as error:
        raise AllocationError(f"[memorymanager] {error}") from None


def _satisfies(state: MemoryState, mask: int, requested: Mapping[str, int]) -> bool:
    """Whether the nodes have enough free, what can be reused not counted."""
    unknown = [node for node in iter_bits(mask) if node not in state.machine]
    if unknown:
        raise AllocationError(
            f"[memorymanager] the topology manager's answer has NUMA node {unknown[0]}, which "
            "the memory manager does not know"
        )
    nodes = [state.machine[node] for node in iter_bits(mask)]
    return all(
        sum(node.table(resource).free for node in nodes) & UINT64 >= size
        for resource, size in requested.items()
    )


def _update_reusable(
    transaction: MemoryTransaction, pod: Pod, container: Container, blocks: Iterable[Block]
) -> None:
    is_init = _is_regular_init(pod, container)
    for block in blocks:
        left = transaction.reusable.setdefault(numa_mask(block.numa_affinity or ()), {})
        before = left.get(block.type, 0)
        left[block.type] = max(before, block.size) if is_init else max(before - block.size, 0)


def _is_regular_init(pod: Pod, container: Container) -> bool:
    return not container.is_sidecar and any(
        init.name == container.name for init in pod.init_containers
    )


def _shrunk(
    state: MemoryState, pod: Pod, container: Container, blocks: Iterable[Block]
) -> dict[str, tuple[Block, ...]]:
    """The pod's assignments, less what ``blocks`` take over from earlier init containers.

    So the blocks of a pod add up to what is reserved for it.
    """
    assigned = dict(state.assignments.get(pod.uid, {}))
    left = {(numa_mask(b.numa_affinity or ()), b.type): b.size for b in blocks}
    for init in pod.init_containers:
        if init.name == container.name:
            break
        if init.is_sidecar or init.name not in assigned:
            continue
        kept = []
        for block in assigned[init.name]:
            key = numa_mask(block.numa_affinity or ()), block.type
            taken = min(left.get(key, 0), block.size)
            if taken:
                left[key] -= taken
            kept.append(Block(block.numa_affinity, block.type, block.size - taken))
        assigned[init.name] = tuple(kept)
    return assigned
