"""What the memory manager's static policy makes of a restored state when the kubelet starts.

Upstream: ``memorymanager/policy_static.go`` (``validateState``, ``getDefaultMachineState``).
Sizes are bytes and, as in upstream, unsigned 64-bit numbers that wrap around.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from pinfold.core.memory.memory import (
    UINT64,
    Block,
    MemoryTable,
    NodeMemory,
    NUMANodeState,
    charge,
    default_machine_state,
)
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint


class MemoryStartError(ValueError):
    """A state with which the kubelet does not start; the message is the kubelet's."""


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

    A pod with blocks of its own is charged for these, and not for its containers'; one of which no
    container has any for nothing.

    Raises:
        MemoryStartError: an assignment on a node or of a resource that the machine lacks.
    """
    states = dict(unused)
    pods = checkpoint.pod_entries or {}
    for uid, containers in sorted((checkpoint.entries or {}).items()):
        if uid in pods:
            whole = {f"(pod: {uid})": pods[uid]}
        else:
            owners = sorted((containers or {}).items())
            whole = {f"(pod: {uid}, container: {name})": blocks for name, blocks in owners}
        for who, blocks in whole.items():
            for block in blocks or ():
                _check(states, block, who)
                charge(states, block)
    return states


def _check(states: Mapping[int, NUMANodeState], block: Block, who: str) -> None:
    for node_id in block.numa_affinity or ():
        node = states.get(node_id)
        if node is None:
            raise MemoryStartError(
                f"[memorymanager] {who} the memory assignment uses the NUMA that does not exist"
            )
        if (node.memory_map or {}).get(block.type) is None:
            raise MemoryStartError(
                f"[memorymanager] {who} the memory assignment uses memory resource "
                "that does not exist"
            )


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
        mine = sum(getattr(_table(state, cell, name), what) for cell in cells) & UINT64
        theirs = sum(getattr(_table(expected, cell, name), what) for cell in cells) & UINT64
        if mine != theirs:
            return f"{what} in the group {list(cells)} is {mine}, the assignments make {theirs}"
    return None


def _table(states: Mapping[int, NUMANodeState | None], node_id: int, name: str) -> MemoryTable:
    node = states.get(node_id)
    return MemoryTable() if node is None else node.table(name)
