"""The kubelet's state files: what ``pinfold state show`` and ``check`` print with ``-o json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.records import VERSION, CPUs, Record


class Checksum(Record, frozen=True, kw_only=True):
    """The checksum of a state file."""

    stored: int
    computed: int
    ok: bool


class CPUCount(Record, frozen=True, kw_only=True):
    """Some CPUs."""

    cpus: CPUs
    count: int


class StateBlock(Record, frozen=True, kw_only=True):
    """Memory of one kind that a container has."""

    numa: Sequence[int]
    type: str
    size: int
    """Bytes."""


class StateContainer(Record, frozen=True, kw_only=True):
    """What a container holds."""

    id: str | UnsetType = UNSET
    """In the oldest layout, which names no pods."""
    name: str | UnsetType = UNSET
    cpus: CPUs | UnsetType = UNSET
    count: int | UnsetType = UNSET
    blocks: Sequence[StateBlock] | UnsetType = UNSET
    resource: str | UnsetType = UNSET
    devices: Mapping[str, Sequence[str]] | UnsetType = UNSET
    """Ids by NUMA node; -1 where none is known."""


class StatePod(Record, frozen=True, kw_only=True):
    """What a pod holds."""

    uid: str
    pod: CPUCount | UnsetType = UNSET
    """CPUs of the pod as a whole."""
    blocks: Sequence[StateBlock] | UnsetType = UNSET
    """Memory of the pod as a whole."""
    containers: Sequence[StateContainer]


class StateMemory(Record, frozen=True, kw_only=True):
    """One kind of memory of a NUMA node, in bytes."""

    total: int
    system_reserved: int
    allocatable: int
    reserved: int
    free: int


class StateNUMANode(Record, frozen=True, kw_only=True):
    """A NUMA node of ``memory_manager_state``."""

    id: int
    assignments: int
    group: Sequence[int]
    memory: Mapping[str, StateMemory]


class StateFile(Record, frozen=True, kw_only=True):
    """What ``pinfold state show`` prints; which fields there are is up to the kind of the file."""

    file: str
    version: Literal[1] = VERSION
    kind: str
    layout: str
    checksum: Checksum
    policy: str | UnsetType = UNSET
    shared: CPUCount | UnsetType = UNSET
    exclusive: CPUCount | UnsetType = UNSET
    containers: Sequence[StateContainer] | UnsetType = UNSET
    numa_nodes: Sequence[StateNUMANode] | UnsetType = UNSET
    registered: Mapping[str, Sequence[str]] | UnsetType = UNSET
    """Device ids by resource."""
    pods: Sequence[StatePod] | UnsetType = UNSET


class StateFinding(Record, frozen=True, kw_only=True):
    """One thing that is wrong with a state file."""

    severity: Annotated[str, Meta(extra_json_schema={"enum": ["error", "warning", "note"]})]
    what: str
    where: str
    why: str
    """Why it matters."""
    fix: str
    """What mends it: a command, or a sentence."""


class StateCheck(Record, frozen=True, kw_only=True):
    """What ``pinfold state check`` prints."""

    version: Literal[1] = VERSION
    file: str
    kubelet: str | UnsetType = UNSET
    """The version whose answers these are; absent: one that writes the file's layout."""
    findings: Sequence[StateFinding]


class StateAcceptance(Record, frozen=True, kw_only=True):
    """What one kubelet makes of a state file that it finds at its start."""

    kubelet: str
    """Its version, such as ``1.36``."""
    pod_level_managers: bool | UnsetType = UNSET
    """Whether PodLevelResourceManagers is on; absent where the version has no such gate."""
    recorded: bool
    """Whether its answers were seen; else they were read from proposals."""
    outcome: Annotated[str, Meta(extra_json_schema={"enum": ["accepted", "migrated", "refused"]})]
    """``migrated``: it is read, and the next write makes another layout of it."""
    writes: str | UnsetType = UNSET
    """The layout of its next write; absent for files that have one layout only."""
    error: str | UnsetType = UNSET
    """Why it refuses the file, in its words."""
    lost: Sequence[str] | UnsetType = UNSET
    """Uids of pods whose CPUs or memory as a whole it does not take from the file."""


class StateVersions(Record, frozen=True, kw_only=True):
    """What ``pinfold state versions`` prints."""

    version: Literal[1] = VERSION
    file: str
    kind: str
    layout: str
    """The layout of the file that is judged: that of ``written_by``, if any."""
    written_by: str | UnsetType = UNSET
    """The kubelet that has taken the file first, and has written it anew."""
    lost_by_writer: Sequence[str] | UnsetType = UNSET
    """Uids of pods whose CPUs or memory as a whole ``written_by`` has dropped by that."""
    kubelets: Sequence[StateAcceptance]
