"""Memory by NUMA node: what there is, what is handed out, and to whom.

The values of the memory manager's state, and how an assignment changes them.  Sizes are bytes and,
as in upstream, unsigned 64-bit numbers that wrap around.  Source: upstream ``memorymanager/state``
and ``memorymanager/policy_static.go`` (kubelet 1.34).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from pinfold.core.pod.hugepages import resource_name
from pinfold.core.pod.pod import MEMORY
from pinfold.core.values.quantity import Format, Quantity

UINT64: Final = (1 << 64) - 1
"""Largest size; sums are taken modulo one more, as upstream's are."""

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


class MemoryStateError(ValueError):
    """Recorded assignments that this machine cannot hold; ``problem`` names the container."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem


class MemoryTable(Struct, frozen=True):
    """One kind of memory of one NUMA node, in bytes."""

    total: int = 0
    system_reserved: int = 0
    allocatable: int = 0
    reserved: int = 0
    free: int = 0


_NOTHING: Final = MemoryTable()


class NUMANodeState(Struct, frozen=True):
    """One NUMA node; ``cells`` are the nodes of the group that it is used in.

    ``None`` is what a file says with ``null``; a state made here has neither.
    """

    number_of_assignments: int
    memory_map: Mapping[str, MemoryTable | None] | None
    cells: tuple[int, ...] | None

    def table(self, resource: str) -> MemoryTable:
        """The table of a resource; all zeros where the node has none of it."""
        return (self.memory_map or {}).get(resource) or _NOTHING


class Block(Struct, frozen=True):
    """Memory of one kind (``memory``, ``hugepages-2Mi``...) that a container has; size in bytes."""

    numa_affinity: tuple[int, ...] | None
    type: str
    size: int


Assignments = Mapping[str, Mapping[str, tuple[Block, ...]]]
"""Pod uid -> container name -> its blocks."""

Bubbles = Mapping[str, tuple[Block, ...]]
"""Pod uid -> what the pod has as a whole, and its containers divide among themselves."""


class NodeMemory(Struct, frozen=True):
    """One NUMA node as the kubelet sees it.

    ``memory`` is its size in bytes; ``hugepages`` maps a page size in KiB to the number of pages;
    ``reserved`` (``reservedMemory``) maps a resource name to bytes.
    """

    memory: int
    hugepages: Mapping[int, int] = field(default_factory=dict)
    reserved: Mapping[str, int] = field(default_factory=dict)


def default_machine_state(nodes: Mapping[int, NodeMemory]) -> dict[int, NUMANodeState]:
    """The machine state of a machine on which nothing is assigned."""
    states = {}
    for node_id, node in nodes.items():
        tables: dict[str, MemoryTable | None] = {}
        in_hugepages = 0
        for page_size_kb, pages in node.hugepages.items():
            name = resource_name(page_size_kb * 1024)
            total = pages * page_size_kb * 1024 & UINT64
            tables[name] = _free_table(total, node.reserved.get(name, 0), total)
            in_hugepages += total
        usable = node.memory - in_hugepages
        tables[MEMORY] = _free_table(node.memory, node.reserved.get(MEMORY, 0), usable)
        states[node_id] = NUMANodeState(0, tables, (node_id,))
    return states


def _free_table(total: int, reserved: int, usable: int) -> MemoryTable:
    allocatable = (usable - reserved) & UINT64
    return MemoryTable(total, reserved, allocatable, 0, allocatable)


def charge(machine: dict[int, NUMANodeState], block: Block, size: int | None = None) -> int:
    """Take a block's memory from its NUMA nodes, the first of them first.

    Every node of the block counts one assignment more and joins the block's group, even where
    nothing is taken from it.

    The nodes of ``machine``, a draft, are replaced.  ``size`` is in bytes, where it is not the
    block's.  Returns the bytes that none of the nodes had free.
    """
    left = block.size if size is None else size
    for node_id in block.numa_affinity or ():
        node = machine[node_id]
        taken = min(left, node.table(block.type).free)
        left -= taken
        assignments = node.number_of_assignments + 1
        tables = _moved(node, block.type, taken)
        machine[node_id] = NUMANodeState(assignments, tables, block.numa_affinity)
    return left


def release(
    machine: dict[int, NUMANodeState], block: Block, kept: Mapping[int, int] | None = None
) -> None:
    """Give a block's memory back to its NUMA nodes, to the first of them first.

    In a group the single nodes may differ from what they were before the block, their sum does
    not.  A node without assignments leaves its group.

    Args:
        machine: a draft of the machine state; its nodes are replaced.
        block: what is given back.
        kept: NUMA node -> bytes that must stay reserved there, for containers that are on it alone.
    """
    left, kept = block.size, kept or {}
    for node_id in block.numa_affinity or ():
        node = machine[node_id]
        given = min(left, max(node.table(block.type).reserved - kept.get(node_id, 0), 0))
        left -= given
        assignments = node.number_of_assignments - 1
        cells = node.cells if assignments else (node_id,)
        machine[node_id] = NUMANodeState(assignments, _moved(node, block.type, -given), cells)


def _moved(
    node: NUMANodeState, resource: str, size: int
) -> Mapping[str, MemoryTable | None] | None:
    """The node's tables after ``size`` bytes went from free to reserved."""
    if size == 0:
        return node.memory_map
    table = node.table(resource)
    moved = replace(table, reserved=table.reserved + size, free=table.free - size)
    return {**(node.memory_map or {}), resource: moved}


class MemoryState(Struct, frozen=True):
    """All NUMA nodes and all assignments; never changed, only replaced.

    ``machine`` is by NUMA node id, ``assignments`` by pod uid and container name.  Of a pod in
    ``bubbles`` (upstream's ``podEntries``) the machine is charged once, with its bubble: what its
    containers are assigned is within that, and of those that share it is the same.
    """

    machine: Mapping[int, NUMANodeState] = field(default_factory=dict)
    assignments: Assignments = field(default_factory=dict)
    bubbles: Bubbles = field(default_factory=dict)

    @classmethod
    def of(
        cls, nodes: Mapping[int, NodeMemory], assignments: Assignments, bubbles: Bubbles = _NONE
    ) -> MemoryState:
        """Rebuild the state of a machine from recorded assignments.

        What a group's nodes have together is exact; nothing records how it was split among them.

        Raises:
            MemoryStateError: an assignment that does not fit the machine or another one, or a
                container with memory elsewhere than its pod.
        """
        machine = default_machine_state(nodes)
        single: set[int] = set()
        for uid, blocks in bubbles.items():
            _check_within(uid, blocks, assignments.get(uid, {}))
        for uid, container, block in sorted(_charged(assignments, bubbles), key=_narrow_first):
            who = f"pod {uid}, container {container}" if container else f"pod {uid}"
            _check(machine, block, who)
            left = charge(machine, block)
            if left:
                missing = Quantity(left, 0, Format.BINARY_SI)
                raise MemoryStateError(
                    f"{who}: {_told(block)} do not fit, {missing} are missing",
                    "end and forget the pod, or give machine and reservedMemory back what they had",
                )
            affinity = block.numa_affinity or ()
            if len(affinity) == 1:
                single.update(affinity)
        for node_id in single:
            # Only a single assignment can come to a node that is in a group, never a group to it.
            machine[node_id] = replace(machine[node_id], cells=(node_id,))
        kept = {uid: dict(pod) for uid, pod in assignments.items() if pod}
        return cls(machine, kept, dict(bubbles))

    def blocks_of(self, pod_uid: str, container: str) -> tuple[Block, ...] | None:
        """What a container has; ``None`` where it has no assignment."""
        return self.assignments.get(pod_uid, {}).get(container)

    def nodes_of(self, pod_uid: str, container: str) -> tuple[int, ...]:
        """The NUMA nodes for a container's ``cpuset.mems``, ascending; empty for no restriction."""
        blocks = self.blocks_of(pod_uid, container) or ()
        return tuple(sorted({node for block in blocks for node in block.numa_affinity or ()}))

    def has(self, resource: str) -> bool:
        """Whether any NUMA node knows the resource, be it with zero pages."""
        return any(resource in (node.memory_map or {}) for node in self.machine.values())


def remove_container(state: MemoryState, pod_uid: str, container: str) -> MemoryState:
    """Give back what a container has; the same state where it has nothing.

    Where another container is alone on a node of the group, a kubelet may give back that one's
    memory, and hand it out twice; here every container keeps its own.  A container in its pod's
    bubble has only a part of that: nothing comes back until the last one is removed, then all.
    """
    blocks = state.blocks_of(pod_uid, container)
    if blocks is None:
        return state
    left = {name: kept for name, kept in state.assignments[pod_uid].items() if name != container}
    assignments = {**state.assignments, pod_uid: left}
    if not left:
        del assignments[pod_uid]
    if pod_uid not in state.bubbles:
        return _given_back(MemoryState(state.machine, assignments, state.bubbles), blocks)
    state = MemoryState(state.machine, assignments, state.bubbles)
    return state if left else _without_bubble(state, pod_uid)


def remove_pod(state: MemoryState, pod_uid: str) -> MemoryState:
    """Give back what a pod has: its containers, and its bubble, whether or not any has some of it.

    The same state where it has nothing.
    """
    for container in state.assignments.get(pod_uid, {}):
        state = remove_container(state, pod_uid, container)
    return _without_bubble(state, pod_uid)


def _without_bubble(state: MemoryState, pod_uid: str) -> MemoryState:
    """Give back a bubble that no container has any of; the same state where there is none."""
    if pod_uid not in state.bubbles:
        return state
    blocks = state.bubbles[pod_uid]
    bubbles = {uid: kept for uid, kept in state.bubbles.items() if uid != pod_uid}
    return _given_back(MemoryState(state.machine, state.assignments, bubbles), blocks)


def _given_back(state: MemoryState, blocks: tuple[Block, ...]) -> MemoryState:
    """The state once the machine has blocks back that nobody is assigned any more."""
    machine = dict(state.machine)
    for block in blocks:
        release(machine, block, _alone(state.assignments, state.bubbles, block))
    return MemoryState(machine, state.assignments, state.bubbles)


def _charged(assignments: Assignments, bubbles: Bubbles) -> Iterator[tuple[str, str, Block]]:
    """Pod uid, container (none: its bubble) and block of all that the machine is charged with."""
    for uid, blocks in bubbles.items():
        for block in blocks:
            yield uid, "", block
    for uid, containers in assignments.items():
        if uid not in bubbles:
            for name, of_container in containers.items():
                for block in of_container:
                    yield uid, name, block


def _alone(assignments: Assignments, bubbles: Bubbles, block: Block) -> dict[int, int]:
    """NUMA node -> bytes of the block's type that containers and bubbles have on it alone."""
    sizes: dict[int, int] = {}
    nodes = block.numa_affinity or ()
    if len(nodes) > 1:
        for _, _, other in _charged(assignments, bubbles):
            if other.type == block.type and len(other.numa_affinity or ()) == 1:
                for node in other.numa_affinity or ():
                    sizes[node] = sizes.get(node, 0) + other.size
    return sizes


def _narrow_first(item: tuple[str, str, Block]) -> tuple[int, str, str, str]:
    # What must be on one node is served before what may be on any node of its group.
    uid, container, block = item
    return len(block.numa_affinity or ()), uid, container, block.type


def _check_within(
    uid: str, bubble: tuple[Block, ...], containers: Mapping[str, tuple[Block, ...]]
) -> None:
    """Make sure that no container of a pod has memory that its pod does not have."""
    had = {(block.numa_affinity, block.type): block.size for block in bubble}
    for name, blocks in containers.items():
        for block in blocks:
            if block.size > had.get((block.numa_affinity, block.type), -1):
                raise MemoryStateError(
                    f"pod {uid}, container {name}: {_told(block)}, which the pod as a whole does "
                    "not have",
                    "the record is damaged, end the pod and forget it",
                )


def _check(machine: Mapping[int, NUMANodeState], block: Block, who: str) -> None:
    affinity = block.numa_affinity or ()
    unknown = [node for node in affinity if node not in machine]
    if unknown:
        raise MemoryStateError(
            f"{who}: memory on NUMA node {unknown[0]}, but the machine has {_nodes(machine)}",
            "end the pod and forget its record",
        )
    if not affinity or len(set(affinity)) != len(affinity) or not 0 <= block.size <= UINT64:
        raise MemoryStateError(
            f"{who}: no assignment is {_told(block)}",
            "the record is damaged, end the pod and forget it",
        )
    for node in affinity:
        cells = machine[node].cells or ()
        if len(affinity) > 1 and len(cells) > 1 and set(cells) != set(affinity):
            raise MemoryStateError(
                f"{who}: memory on {_nodes(affinity)}, but node {node} is in the group "
                f"{sorted(cells)} of another container",
                "end one of their pods",
            )


def _told(block: Block) -> str:
    amount = Quantity(block.size, 0, Format.BINARY_SI)
    return f"{amount} of {block.type} on {_nodes(block.numa_affinity or ())}"


def _nodes(ids: Iterable[int]) -> str:
    found = [str(node) for node in sorted(ids)]
    return f"NUMA node{'s' * (len(found) > 1)} {','.join(found)}" if found else "no NUMA node"
