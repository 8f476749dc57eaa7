"""``memory_manager_state``: the memory manager's checkpoint.

- v1: pod uid -> container name -> blocks, and what the NUMA nodes have.
- v2 (1.36 with the feature gate PodLevelResourceManagers): v1 and ``podEntries``, the pods' own
  blocks.
- v3 (1.37): v1, for older kubelets, and the content of v2 as a text (``data``) with a checksum of
  its own, which is the one that counts.

Sizes are bytes.  Upstream: ``memorymanager/state/checkpoint.go`` and, for
what a starting kubelet makes of it, ``memorymanager/policy_static.go`` (``validateState``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from pinfold.core.memory.memory import Block, MemoryState, MemoryTable, NUMANodeState
from pinfold.state.cpu_manager_state import (
    CORRUPT,
    Attempt,
    Checkpoint,
    CheckpointError,
)
from pinfold.state.fields import FieldsOfFile
from pinfold.state.go_json import GoJSONError, Object, parse
from pinfold.state.go_value import (
    GoField,
    GoInteger,
    GoMap,
    GoPointer,
    GoSlice,
    GoString,
    GoStruct,
    Value,
)
from pinfold.state.layouts import MEMORY_STATE, Layout, StateForm

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
_NAME: Final = "state.MemoryManagerCheckpoint"
_DATA: Final = GoStruct("state.MemoryManagerCheckpointData", (*_HEAD, _PODS))
_BLANK: Final[dict[str, Value]] = {
    "PolicyName": "",
    "MachineState": {},
    "Entries": {},
    "PodEntries": {},
}
_TYPES: Final = {
    Layout.V1: GoStruct(_NAME, (*_HEAD, _END)),
    Layout.V2: GoStruct(_NAME, (*_HEAD, _PODS, _END)),
    Layout.V3: GoStruct(
        _NAME,
        (
            *_HEAD,
            _END,
            GoField("Data", "data", GoString()),
            GoField("DataChecksum", "dataChecksum", GoInteger("checksum.Checksum", signed=False)),
        ),
    ),
}
_FILE: Final = FieldsOfFile("memory", _TYPES, _DATA, _BLANK)


Blocks = Mapping[str, tuple[Block, ...] | None]
"""Container name -> its blocks."""


class MemoryManagerCheckpoint(Checkpoint, frozen=True):
    """The content of a ``memory_manager_state`` file; ``None`` stands for JSON ``null``.

    ``pod_entries`` exists in v2 and v3.
    """

    policy_name: str
    machine_state: Mapping[int, NUMANodeState | None] | None
    entries: Mapping[str, Blocks | None] | None
    pod_entries: Mapping[str, tuple[Block, ...] | None] | None = None
    layout: Layout = Layout.V1
    data: str = ""
    data_checksum: int = 0

    @classmethod
    def parse(cls, file: bytes, layout: Layout | None = None) -> MemoryManagerCheckpoint:
        """Read a file as one layout, else as the one that it has; the checksum is not looked at.

        Raises:
            CheckpointError: no JSON or values of other types, in the words of Go's decoder.
        """
        attempt = cls.attempt(file, detect_memory_layout(file) if layout is None else layout)
        if attempt.error:
            raise CheckpointError(attempt.error)
        return attempt.checkpoint

    @classmethod
    def attempt(cls, file: bytes, layout: Layout) -> Attempt[MemoryManagerCheckpoint]:
        """Read as much of ``file`` as can be read as one layout."""
        read = _FILE.read(file, layout)
        return Attempt(cls._of(layout, read.outer, read.content), read.error)

    @classmethod
    def _of(
        cls, layout: Layout, outer: dict[str, Value], content: dict[str, Value]
    ) -> MemoryManagerCheckpoint:
        value = _BLANK | content
        pods = None if layout is Layout.V1 else value["PodEntries"]
        return cls(
            policy_name=value["PolicyName"],
            machine_state=_map(value["MachineState"], _node),
            entries=_map(value["Entries"], lambda containers: _map(containers, _blocks)),
            pod_entries=_map(pods, lambda entry: _blocks(entry["MemoryBlocks"])),
            layout=layout,
            checksum=outer["Checksum"],
            data=outer.get("Data", ""),
            data_checksum=outer.get("DataChecksum", 0),
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
            "Data": self.data,
            "DataChecksum": self.data_checksum,
        }

    @property
    def is_newest(self) -> bool:
        """Whether it was surely written in its layout, so that no older one is tried."""
        return bool(self.data) or self.data_checksum != 0

    def hash_input(self) -> str:
        """The text that the kubelet takes the checksum over."""
        if self.layout is Layout.V3:
            return f"(string){self.data}"
        dump = _TYPES[self.layout].dump(self._value() | {"Checksum": 0})
        return f"(*{_NAME}){dump}"

    def verify(self, form: StateForm = MEMORY_STATE.anything) -> None:
        """Check the checksum as a kubelet of ``form`` does, else as the most lenient one.

        Raises:
            CheckpointError: it does not fit.
        """
        found = self.data_checksum if self.layout is Layout.V3 else self.checksum
        passes = found == 0 and self.layout in form.zero_passes
        if not passes and found != self.computed_checksum():
            raise CheckpointError(CORRUPT)

    def sealed(self) -> MemoryManagerCheckpoint:
        """The same content with the checksum that belongs to it."""
        if self.layout is not Layout.V3:
            return replace(self, checksum=self.computed_checksum())
        older = replace(self, layout=Layout.V1).computed_checksum()
        written = replace(self, data=_DATA.encode(self._value()), checksum=older)
        return replace(written, data_checksum=written.computed_checksum())

    def encode(self) -> bytes:
        """The file's bytes, as a kubelet writes them: one line without an end of line."""
        text = _TYPES[self.layout].encode(self._value())
        return text.encode("utf-8", "surrogatepass")


def detect_memory_layout(file: bytes) -> Layout:
    """The layout that a file's content has; v1 where nothing tells.

    Raises:
        CheckpointError: no JSON, in the words of Go's decoder.
    """
    try:
        node = parse(file)
    except GoJSONError as error:
        raise CheckpointError(str(error)) from None
    keys = {key.lower() for key, _ in node.members} if isinstance(node, Object) else set()
    if keys & {"data", "datachecksum"}:
        return Layout.V3
    if "podentries" in keys:
        return Layout.V2
    # v2 leaves out empty podEntries: only the checksum tells it from v1.
    attempt = MemoryManagerCheckpoint.attempt(file, Layout.V2)
    is_v2 = not attempt.error and attempt.checkpoint.checksum == (
        attempt.checkpoint.computed_checksum()
    )
    return Layout.V2 if is_v2 else Layout.V1


def checkpoint_of(
    policy_name: str, state: MemoryState, layout: Layout = Layout.V1
) -> MemoryManagerCheckpoint:
    """The sealed file content of a state; under policy ``None`` give ``MemoryState()``.

    v1 has no place for what pods have as a whole.
    """
    return MemoryManagerCheckpoint(
        policy_name,
        state.machine,
        state.assignments,
        None if layout is Layout.V1 else state.bubbles,
        layout,
    ).sealed()


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
