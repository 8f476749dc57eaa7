"""``memory_manager_state``: the memory manager's checkpoint.

The 1.34 layout (v1) and the one with ``podEntries`` (v2, feature gate PodLevelResourceManagers)
are read and written.  Sizes are bytes.  Upstream: ``memorymanager/state/checkpoint.go`` and, for
what a starting kubelet makes of it, ``memorymanager/policy_static.go`` (``validateState``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pinfold.core.memory.memory import Block, MemoryState, MemoryTable, NUMANodeState
from pinfold.state.cpu_manager_state import Checkpoint, CheckpointError
from pinfold.state.go_json import GoJSONError, Object, parse, quote
from pinfold.state.go_value import (
    GoField,
    GoInteger,
    GoMap,
    GoPointer,
    GoSlice,
    GoString,
    GoStruct,
    Value,
    unmarshal,
)

MEMORY_MANAGER_STATE: Final = "memory_manager_state"
"""The file's name, in the kubelet's root directory."""

_UINT64: Final = GoInteger("uint64", signed=False)
_INT: Final = GoInteger("int", signed=True)
_RESOURCE: Final = GoString("v1.ResourceName")
_CELLS: Final = GoSlice(_INT)
_TABLE: Final = GoStruct(
    "state.MemoryTable",
    [
        GoField("TotalMemSize", "total", _UINT64),
        GoField("SystemReserved", "systemReserved", _UINT64),
        GoField("Allocatable", "allocatable", _UINT64),
        GoField("Reserved", "reserved", _UINT64),
        GoField("Free", "free", _UINT64),
    ],
)
_NODE: Final = GoStruct(
    "state.NUMANodeState",
    [
        GoField("NumberOfAssignments", "numberOfAssignments", _INT),
        GoField("MemoryMap", "memoryMap", GoMap(_RESOURCE, GoPointer(_TABLE))),
        GoField("Cells", "cells", _CELLS),
    ],
)
_BLOCK: Final = GoStruct(
    "state.Block",
    [
        GoField("NUMAAffinity", "numaAffinity", _CELLS),
        GoField("Type", "type", _RESOURCE),
        GoField("Size", "size", _UINT64),
    ],
)
_BLOCKS: Final = GoSlice(_BLOCK)
_POD_ENTRY: Final = GoStruct(
    "state.PodEntry", [GoField("MemoryBlocks", "memoryBlocks", _BLOCKS, omitempty=True)]
)
_HEAD: Final = (
    GoField("PolicyName", "policyName", GoString()),
    GoField("MachineState", "machineState", GoMap(_INT, GoPointer(_NODE), "state.NUMANodeMap")),
    GoField(
        "Entries",
        "entries",
        GoMap(GoString(), GoMap(GoString(), _BLOCKS), "state.ContainerMemoryAssignments"),
        omitempty=True,
    ),
)
_PODS: Final = GoField(
    "PodEntries",
    "podEntries",
    GoMap(GoString(), _POD_ENTRY, "state.PodMemoryAssignments"),
    omitempty=True,
)
_END: Final = GoField("Checksum", "checksum", GoInteger("checksum.Checksum", signed=False))
_V1: Final = GoStruct("state.MemoryManagerCheckpoint", (*_HEAD, _END))
_V2: Final = GoStruct("state.MemoryManagerCheckpoint", (*_HEAD, _PODS, _END))


Blocks = Mapping[str, tuple[Block, ...] | None]
"""Container name -> its blocks."""


class MemoryManagerCheckpoint(Checkpoint, frozen=True):
    """The content of a ``memory_manager_state`` file; ``None`` stands for JSON ``null``.

    ``pod_entries`` is ``None`` in the layout of 1.34.
    """

    policy_name: str
    machine_state: Mapping[int, NUMANodeState | None] | None
    entries: Mapping[str, Blocks | None] | None
    pod_entries: Mapping[str, tuple[Block, ...] | None] | None = None

    @classmethod
    def parse(cls, file: bytes) -> MemoryManagerCheckpoint:
        """Read a file; the checksum is not looked at.

        Raises:
            CheckpointError: no JSON or values of other types, in the words of Go's decoder.
        """
        try:
            node = parse(file)
            keys = {k.lower() for k, _ in node.members} if isinstance(node, Object) else set()
            has_pods = "podentries" in keys
            type_ = _V2 if has_pods else _V1
            initial = type_.zero() | {"MachineState": {}, "Entries": {}}
            value = unmarshal(type_, node, initial | ({"PodEntries": {}} if has_pods else {}))
        except GoJSONError as error:
            raise CheckpointError(str(error)) from None
        pods = value.get("PodEntries")
        return cls(
            policy_name=value["PolicyName"],
            machine_state=_map(value["MachineState"], _node),
            entries=_map(value["Entries"], lambda containers: _map(containers, _blocks)),
            pod_entries=_map(pods, lambda entry: _blocks(entry["MemoryBlocks"])),
            checksum=value["Checksum"],
        )

    def _value(self) -> dict[str, Value]:
        return {
            "PolicyName": self.policy_name,
            "MachineState": _map(self.machine_state, _node_value),
            "Entries": _map(self.entries, lambda containers: _map(containers, _blocks_value)),
            "PodEntries": _map(
                self.pod_entries, lambda blocks: {"MemoryBlocks": _blocks_value(blocks)}
            ),
            "Checksum": self.checksum,
        }

    @property
    def _type(self) -> GoStruct:
        return _V1 if self.pod_entries is None else _V2

    def hash_input(self) -> str:
        """The text that the kubelet takes the checksum over."""
        dump = self._type.dump(self._value() | {"Checksum": 0})
        return f"(*state.MemoryManagerCheckpoint){dump}"

    def encode(self) -> bytes:
        """The file's bytes, as a kubelet writes them: one line without an end of line."""
        return self._type.encode(self._value()).encode("utf-8", "surrogatepass")


def restore_memory(
    file: bytes, policy_name: str, *, path: str = "/var/lib/kubelet/memory_manager_state"
) -> MemoryManagerCheckpoint:
    """Restore the state as a starting kubelet with ``memoryManagerPolicy`` ``policy_name`` does.

    Raises:
        CheckpointError: the kubelet exits; the message is the kubelet's, with ``path``.
    """
    try:
        return _load(file, policy_name)
    except CheckpointError as error:
        raise CheckpointError(
            f"could not restore state from checkpoint: {error}, please drain this node and delete "
            f"the memory manager checkpoint file {quote(path)} before restarting Kubelet"
        ) from None


def _load(file: bytes, policy_name: str) -> MemoryManagerCheckpoint:
    checkpoint = MemoryManagerCheckpoint.parse(file)
    checkpoint.verify()
    if checkpoint.policy_name != policy_name:
        raise CheckpointError(
            f"[memorymanager] configured policy {quote(policy_name)} differs from state "
            f"checkpoint policy {quote(checkpoint.policy_name)}"
        )
    return checkpoint


def checkpoint_of(policy_name: str, state: MemoryState) -> MemoryManagerCheckpoint:
    """The sealed file content of a state; under policy ``None`` give ``MemoryState()``."""
    bubbles = state.bubbles or None
    return MemoryManagerCheckpoint(policy_name, state.machine, state.assignments, bubbles).sealed()


def state_of(checkpoint: MemoryManagerCheckpoint) -> MemoryState:
    """The state that a file holds, as it stands there; nothing is checked against a machine.

    A container without blocks, which a kubelet takes for one without assignment, is left out.

    Raises:
        CheckpointError: a NUMA node is ``null``.
    """
    machine: dict[int, NUMANodeState] = {}
    for node_id, node in (checkpoint.machine_state or {}).items():
        if node is None:
            raise CheckpointError(f"machineState: NUMA node {node_id} is null, delete the file")
        machine[node_id] = node
    assignments = {
        uid: {name: blocks for name, blocks in containers.items() if blocks is not None}
        for uid, containers in (checkpoint.entries or {}).items()
        if containers is not None
    }
    bubbles = {uid: blocks or () for uid, blocks in (checkpoint.pod_entries or {}).items()}
    return MemoryState(machine, assignments, bubbles)


def _map(value: Value, convert: Callable[[Value], object]) -> Value:
    return None if value is None else {key: convert(entry) for key, entry in value.items()}


def _node(value: dict[str, Value] | None) -> NUMANodeState | None:
    if value is None:
        return None
    return NUMANodeState(
        number_of_assignments=value["NumberOfAssignments"],
        memory_map=_map(
            value["MemoryMap"],
            lambda table: (
                None if table is None else MemoryTable(*(table[f.name] for f in _TABLE.fields))
            ),
        ),
        cells=_tuple(value["Cells"]),
    )


def _node_value(node: NUMANodeState | None) -> dict[str, Value] | None:
    if node is None:
        return None
    return {
        "NumberOfAssignments": node.number_of_assignments,
        "MemoryMap": _map(node.memory_map, _table_value),
        "Cells": node.cells,
    }


def _table_value(table: MemoryTable | None) -> dict[str, int] | None:
    if table is None:
        return None
    return {
        "TotalMemSize": table.total,
        "SystemReserved": table.system_reserved,
        "Allocatable": table.allocatable,
        "Reserved": table.reserved,
        "Free": table.free,
    }


def _blocks(value: list[dict[str, Value]] | None) -> tuple[Block, ...] | None:
    if value is None:
        return None
    return tuple(Block(_tuple(b["NUMAAffinity"]), b["Type"], b["Size"]) for b in value)


def _blocks_value(blocks: Sequence[Block] | None) -> list[dict[str, Value]] | None:
    if blocks is None:
        return None
    return [{"NUMAAffinity": b.numa_affinity, "Type": b.type, "Size": b.size} for b in blocks]


def _tuple(value: Iterable[int] | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(value)
