"""What the memory manager's static policy makes of a restored state when the kubelet starts.

Upstream: ``memorymanager/policy_static.go`` (``validateState``, ``getDefaultMachineState``).
Sizes are bytes and, as in upstream, unsigned 64-bit numbers that wrap around.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pinfold.state.memory_manager_state import (
    Block,
    MemoryManagerCheckpoint,
    MemoryTable,
    NUMANodeState,
)

_UINT64: Final = (1 << 64) - 1
_BINARY_SUFFIXES: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class MemoryStartError(ValueError):
    """A state with which the kubelet does not start; the message is the kubelet's."""


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """One NUMA node as the kubelet sees it.

    ``memory`` is its size in bytes; ``hugepages`` maps a page size in KiB to the number of pages;
    ``reserved`` (``reservedMemory``) maps a resource name to bytes.
    """

    memory: int
    hugepages: Mapping[int, int] = field(default_factory=dict)
    reserved: Mapping[str, int] = field(default_factory=dict)


def hugepage_resource(page_size_kb: int) -> str:
    """The resource name of a huge page size.

    >>> hugepage_resource(2048)
    'hugepages-2Mi'
    """
    size, power = page_size_kb, 1
    while size and size % 1024 == 0 and power < len(_BINARY_SUFFIXES) - 1:
        size //= 1024
        power += 1
    return f"hugepages-{size}{_BINARY_SUFFIXES[power]}"


def default_machine_state(nodes: Mapping[int, NodeMemory]) -> dict[int, NUMANodeState]:
    """The machine state of a machine on which nothing is assigned."""
    states = {}
    for node_id, node in nodes.items():
        tables: dict[str, MemoryTable | None] = {}
        in_hugepages = 0
        for page_size_kb, pages in node.hugepages.items():
            name = hugepage_resource(page_size_kb)
            total = pages * page_size_kb * 1024 & _UINT64
            tables[name] = _free_table(total, node.reserved.get(name, 0), total)
            in_hugepages += total
        tables["memory"] = _free_table(
            node.memory, node.reserved.get("memory", 0), node.memory - in_hugepages
        )
        states[node_id] = NUMANodeState(0, tables, (node_id,))
    return states


def _free_table(total: int, reserved: int, usable: int) -> MemoryTable:
    allocatable = (usable - reserved) & _UINT64
    return MemoryTable(total, reserved, allocatable, 0, allocatable)


def start_memory_policy(
    checkpoint: MemoryManagerCheckpoint, nodes: Mapping[int, NodeMemory]
) -> MemoryManagerCheckpoint:
    """Start the policy that ``checkpoint`` names: validate the state, or fill in an empty one.

    Where several assignments are wrong, upstream names one at random, this the first by name.

    Raises:
        MemoryStartError: the state does not fit the machine, in the kubelet's words.
    """
    if checkpoint.policy_name != "Static":
        return checkpoint
    if not checkpoint.machine_state:
        if checkpoint.entries:
            raise MemoryStartError(
                "[memorymanager] machine state can not be empty when it has memory assignments"
            )
        return replace(checkpoint, machine_state=default_machine_state(nodes)).sealed()
    expected = expected_machine_state(checkpoint, default_machine_state(nodes))
    difference = machine_state_difference(checkpoint.machine_state, expected)
    if difference is not None:
        raise MemoryStartError(
            "[memorymanager] the expected machine state is different from the real one"
        )
    return checkpoint


def cleared_machine_state(checkpoint: MemoryManagerCheckpoint) -> dict[int, NUMANodeState]:
    """The machine state that the file itself describes, without its assignments."""
    return {
        node_id: NUMANodeState(
            0,
            {
                name: MemoryTable(t.total, t.system_reserved, t.allocatable, 0, t.allocatable)
                for name, t in (node.memory_map or {}).items()
                if t is not None
            },
            (node_id,),
        )
        for node_id, node in (checkpoint.machine_state or {}).items()
        if node is not None
    }


def expected_machine_state(
    checkpoint: MemoryManagerCheckpoint, unused: Mapping[int, NUMANodeState]
) -> dict[int, NUMANodeState]:
    """The machine state that follows from the checkpoint's assignments on an unused machine.

    Raises:
        MemoryStartError: an assignment on a node or of a resource that the machine lacks.
    """
    states = dict(unused)
    for uid, containers in sorted((checkpoint.entries or {}).items()):
        for name, blocks in sorted((containers or {}).items()):
            for block in blocks or ():
                _charge(states, block, f"(pod: {uid}, container: {name})")
    return states


def _charge(states: dict[int, NUMANodeState], block: Block, who: str) -> None:
    left = block.size
    for node_id in block.numa_affinity or ():
        node = states.get(node_id)
        if node is None:
            raise MemoryStartError(
                f"[memorymanager] {who} the memory assignment uses the NUMA that does not exist"
            )
        tables = dict(node.memory_map or {})
        table = tables.get(block.type)
        if table is None:
            raise MemoryStartError(
                f"[memorymanager] {who} the memory assignment uses memory resource "
                "that does not exist"
            )
        taken = min(left, table.free)
        left -= taken
        tables[block.type] = replace(
            table, reserved=table.reserved + taken, free=table.free - taken
        )
        states[node_id] = NUMANodeState(node.number_of_assignments + 1, tables, block.numa_affinity)


def machine_state_difference(
    state: Mapping[int, NUMANodeState | None], expected: Mapping[int, NUMANodeState]
) -> str | None:
    """What is different, as a phrase for people; ``None`` when the kubelet takes them as equal.

    Free and reserved memory are compared as sums over each node's group, as upstream does.
    """
    if state.keys() != expected.keys():
        return f"NUMA nodes {sorted(state)} in the file, {sorted(expected)} in the machine"
    for node_id, node in sorted(state.items()):
        other = expected[node_id]
        if node is None:
            return f"NUMA node {node_id} is null"
        if node.number_of_assignments != other.number_of_assignments:
            return (
                f"NUMA node {node_id}: numberOfAssignments is {node.number_of_assignments}, "
                f"the assignments make {other.number_of_assignments}"
            )
        if sorted(node.cells or ()) != sorted(other.cells or ()):
            return (
                f"NUMA node {node_id}: cells are {sorted(node.cells or ())}, "
                f"the assignments make {sorted(other.cells or ())}"
            )
        tables, other_tables = node.memory_map or {}, other.memory_map or {}
        if tables.keys() != other_tables.keys():
            return f"NUMA node {node_id}: {sorted(tables)} in the file, {sorted(other_tables)} here"
        for name in sorted(tables):
            difference = _table_difference(name, node_id, state, expected)
            if difference is not None:
                return f"NUMA node {node_id}, {name}: {difference}"
    return None


def _table_difference(
    name: str,
    node_id: int,
    state: Mapping[int, NUMANodeState | None],
    expected: Mapping[int, NUMANodeState],
) -> str | None:
    table, other = _table(state, node_id, name), _table(expected, node_id, name)
    for what in ("total", "system_reserved", "allocatable"):
        mine, theirs = getattr(table, what), getattr(other, what)
        if mine != theirs:
            return f"{what.replace('_', ' ')} is {mine}, of the machine {theirs}"
    node = state[node_id]
    cells = (node.cells or ()) if node is not None else ()
    for what in ("free", "reserved"):
        mine = sum(getattr(_table(state, cell, name), what) for cell in cells) & _UINT64
        theirs = sum(getattr(_table(expected, cell, name), what) for cell in cells) & _UINT64
        if mine != theirs:
            return f"{what} in the group {list(cells)} is {mine}, the assignments make {theirs}"
    return None


def _table(states: Mapping[int, NUMANodeState | None], node_id: int, name: str) -> MemoryTable:
    node = states.get(node_id)
    return ((node.memory_map or {}).get(name) if node is not None else None) or MemoryTable()
