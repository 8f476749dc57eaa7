"""Telling the kubelet's state files apart by their content, and reading any of them."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from pinfold.state.cpu_manager_state import CheckpointError, CPUManagerCheckpoint, detect_layout
from pinfold.state.device_checkpoint import DeviceManagerCheckpoint
from pinfold.state.go_json import GoJSONError, Object, parse
from pinfold.state.layouts import Layout
from pinfold.state.ledger import Ledger
from pinfold.state.memory_manager_state import MemoryManagerCheckpoint
from pinfold.state.restore import ContainerIDs, migrate_v1, to_ledger

Document = CPUManagerCheckpoint | MemoryManagerCheckpoint | DeviceManagerCheckpoint


class Kind(Enum):
    """A state file of the kubelet, by its usual name."""

    CPU = "cpu_manager_state"
    MEMORY = "memory_manager_state"
    DEVICES = "kubelet_internal_checkpoint"


class UnusableFileError(ValueError):
    """A file that cannot be read as any state file; the message says what a kubelet would say."""


class StateFile(Struct, frozen=True):
    """A state file: its bytes, and the document that they are.

    ``layout`` is ``v1`` to ``v4`` for the CPU manager, ``v1`` to ``v3`` for the memory
    manager, ``v2`` for the device manager (the only one with NUMA nodes that is still written).
    """

    kind: Kind
    layout: str
    document: Document
    file: bytes

    @classmethod
    def read(cls, file: bytes) -> StateFile:
        """Read a file of any kind and layout; the checksum is not looked at.

        Raises:
            UnusableFileError: no JSON, values of other types, or no state file at all.
        """
        try:
            kind = _kind(file)
            if kind is Kind.MEMORY:
                memory = MemoryManagerCheckpoint.parse(file)
                return cls(kind, memory.layout.value, memory, file)
            if kind is Kind.DEVICES:
                return cls(kind, "v2", DeviceManagerCheckpoint.parse(file), file)
            layout = detect_layout(file)
            return cls(kind, layout.value, CPUManagerCheckpoint.parse(file, layout), file)
        except (CheckpointError, GoJSONError) as error:
            raise UnusableFileError(str(error)) from None

    @property
    def checksum(self) -> int:
        """The checksum that stands in the file."""
        document = self.document
        if not isinstance(document, DeviceManagerCheckpoint) and document.is_newest:
            return document.data_checksum
        return document.checksum

    @property
    def checksum_fits(self) -> bool:
        """Whether some kubelet takes the checksum."""
        try:
            self.document.verify()
        except CheckpointError:
            return False
        return True


def _kind(file: bytes) -> Kind:
    node = parse(file)
    if not isinstance(node, Object):
        raise UnusableFileError("the file is JSON, but no object: it is no state file")
    keys = {key.lower() for key, _ in node.members}
    if "machinestate" in keys:
        return Kind.MEMORY
    data = next((member for key, member in node.members if key.lower() == "data"), None)
    if isinstance(data, Object):
        return Kind.DEVICES
    if keys & {"defaultcpuset", "data"} or {"policyname", "entries"} <= keys:
        return Kind.CPU
    raise UnusableFileError(
        "the file is JSON, but has none of the keys defaultCpuSet, machineState and Data: "
        "it is no state file of the kubelet"
    )


class _AnyContainer(dict[str, tuple[str, str]]):
    """Stands for the containers of a v1 file where nobody knows them."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> tuple[str, str]:
        return (key, key)


UNKNOWN_CONTAINERS: ContainerIDs = _AnyContainer()
"""Takes every container id of a v1 file for a pod uid and a container name."""


def ledger_of(
    checkpoint: CPUManagerCheckpoint, container_ids: ContainerIDs = UNKNOWN_CONTAINERS
) -> Ledger:
    """The sets of a checkpoint of any layout, its checksum right or not; raises CheckpointError."""
    if checkpoint.layout is Layout.V1:
        return to_ledger(migrate_v1(checkpoint, container_ids))
    return to_ledger(checkpoint)
