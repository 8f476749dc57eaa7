"""What ``pinfold audit`` knows of memory: the memory manager's state file beside the CPUs'."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from pinfold.adapters.procfs.owners import Assignments, Located
    from pinfold.audit.findings import Finding
    from pinfold.audit.record import Owner
    from pinfold.core.values.cpuset import CPUSet
    from pinfold.state.memory_manager_state import MemoryManagerCheckpoint

Nodes = Mapping[tuple[str, str], "CPUSet"]
"""Pod uid and container name -> the NUMA nodes of its memory."""


def memory_file(state: Path) -> Path:
    """Where the memory manager's state lies when the CPU manager's is at ``state``."""
    from pinfold.state.memory_manager_state import MEMORY_MANAGER_STATE  # noqa: PLC0415 - late

    return state.with_name(MEMORY_MANAGER_STATE)


def read_memory(path: Path) -> bytes | None:
    """The file's content; None where there is none, as under policy None."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def memory_nodes(data: bytes | None, path: Path) -> tuple[Nodes, tuple[Finding, ...]]:
    """Who has memory of which NUMA nodes, and what is wrong with the record."""
    from pinfold.audit.findings import RECORD_BROKEN, Finding  # noqa: PLC0415 - late
    from pinfold.state.cpu_manager_state import CheckpointError  # noqa: PLC0415
    from pinfold.state.memory_manager_state import MemoryManagerCheckpoint  # noqa: PLC0415

    if data is None:
        return {}, ()
    try:
        checkpoint = MemoryManagerCheckpoint.parse(data)
        checkpoint.verify()
    except CheckpointError as error:
        return {}, (Finding(RECORD_BROKEN, f"{path}: {error}", str(path)),)
    return _nodes(checkpoint), ()


def _nodes(checkpoint: MemoryManagerCheckpoint) -> Nodes:
    from pinfold.core.values.cpuset import CPUSet  # noqa: PLC0415 - after --help

    found = {
        (uid, name): {node for block in blocks or () for node in block.numa_affinity or ()}
        for uid, containers in (checkpoint.entries or {}).items()
        for name, blocks in (containers or {}).items()
    }
    return {key: CPUSet(n for n in nodes if n >= 0) for key, nodes in found.items() if nodes}


def with_sharers(assignments: Assignments, nodes: Nodes) -> dict[str, dict[str, CPUSet]]:
    """The owners of CPUs, and those who have memory only with no CPUs: all are looked for."""
    from pinfold.core.values.cpuset import CPUSet  # noqa: PLC0415 - after --help

    every = {uid: dict(sets) for uid, sets in assignments.items()}
    for uid, name in nodes:
        every.setdefault(uid, {}).setdefault(name, CPUSet())
    return every


def apart(
    located: Located, assignments: Assignments, nodes: Nodes
) -> tuple[Located, tuple[Owner, ...]]:
    """The owners of CPUs, and the others, who go on to count as containers of the shared pool."""
    owners: list[Owner] = []
    sharers: list[Owner] = []
    for owner in located.owners:
        known = replace(owner, mems=nodes.get((owner.pod, owner.container), owner.mems))
        owns = owner.container in assignments.get(owner.pod, {})
        (owners if owns else sharers).append(known)
    paths = [path for sharer in sharers for path in sharer.cgroups]
    shared = (*located.shared, *(path for path in paths if path not in located.shared))
    return replace(located, owners=tuple(owners), shared=shared), tuple(sharers)
