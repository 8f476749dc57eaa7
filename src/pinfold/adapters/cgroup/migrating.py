"""Moving what containers have in memory to other NUMA nodes, by their cpusets.

A cpuset that loses a memory node has the kernel move what its processes have there: on cgroup v2
always (since Linux 5.15), on v1 while ``cpuset.memory_migrate`` is 1, which it is here for just
that time.  One that gains a node moves nothing.  Source: the kernel's
``Documentation/admin-guide/cgroup-v2.rst`` and ``cgroup-v1/cpusets.rst``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pinfold.adapters.cgroup.files import failure, read, read_cpus, write
from pinfold.adapters.cgroup.files import put as put_value
from pinfold.adapters.cgroup.folders import members
from pinfold.adapters.cgroup.watch import MEMS
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved, MovedMemory
from pinfold.linux.kernel_files import descendants
from pinfold.linux.numa_memory import ProcessMemory, memory_of, room_on
from pinfold.ports.errors import CgroupError

_FLAG: Final = "cpuset.memory_migrate"
"""Only version 1 has it."""

_ROUNDS: Final = 3
"""A page that somebody uses just then stays, and goes the next time."""

Put = Callable[[Path, str], None]


async def weigh(folder: Path, mems: CPUSet) -> int:
    """See :meth:`pinfold.ports.cgroups.Cgroups.weigh`; ``folder`` is the container's cgroup."""
    return await asyncio.to_thread(lambda: _weighed(folder, _memory(folder), mems))


async def migrate(folder: Path, mems: CPUSet, put: Put = put_value) -> MemoryMoved:
    """See :meth:`pinfold.ports.cgroups.Cgroups.migrate`.

    Args:
        folder: the container's cgroup, in the hierarchy of cpusets.
        mems: its NUMA nodes from now on.
        put: writes one value where it is not there already; raises CgroupError.
    """
    return await asyncio.to_thread(_migrate, folder, mems, put)


def _migrate(folder: Path, mems: CPUSet, put: Put) -> MemoryMoved:
    before = _memory(folder)
    _weighed(folder, before, mems)
    configured = read_cpus(folder / MEMS)
    began = time.monotonic()
    after = before
    try:
        for attempt in range(_ROUNDS):
            left = _elsewhere(after, mems)
            if attempt or read_cpus(folder / MEMS) == mems:
                # What is narrow already, perhaps by a hand that moved nothing, is made wide again:
                # the kernel looks at pages only when nodes go.
                _widen(folder, mems | CPUSet(left), put)
            _narrow(folder, mems, put)
            after = _memory(folder)
            if not (stayed := _ordinary(after, mems)) or stayed >= _ordinary(before, mems):
                break
        _confirm(folder, mems)
    except CgroupError:
        with suppress(CgroupError):  # what it was refused with is what matters
            put(folder / MEMS, str(configured))
        raise
    return _report(before, after, mems, time.monotonic() - began)


def _memory(folder: Path) -> ProcessMemory:
    return memory_of(members(folder))


def _elsewhere(memory: ProcessMemory, mems: CPUSet) -> list[int]:
    return [node for node in memory.nodes if node not in mems]


def _ordinary(memory: ProcessMemory, mems: CPUSet) -> int:
    return round(sum(memory.nodes[node].ordinary for node in _elsewhere(memory, mems)))


def _weighed(folder: Path, memory: ProcessMemory, mems: CPUSet) -> int:
    """The bytes that would have to move; raises CgroupError where there is no room for them."""
    if not mems:
        raise CgroupError(f"{folder}: memory cannot go to no NUMA node at all", "name one")
    wanted = _ordinary(memory, mems)
    try:
        room = sum(room_on(mems).values())
    except OSError as error:
        raise failure(error.filename or folder, error) from None
    if wanted > room:
        raise CgroupError(
            f"{folder}: {wanted >> 20} MiB of memory would go to NUMA node {mems}, where "
            f"{room >> 20} MiB can be had",
            "end or shrink something that has memory there, or leave this memory where it is",
        )
    return wanted


def _effective(folder: Path) -> CPUSet:
    name = "cpuset.effective_mems" if _has_flag(folder) else "cpuset.mems.effective"
    return read_cpus(folder / name)


def _confirm(folder: Path, mems: CPUSet) -> None:
    effective = _effective(folder)
    if effective != mems:
        raise CgroupError(
            f"{folder}: {MEMS} is {mems}, but in force is {effective}",
            "a cgroup above it has not these memory nodes, or somebody has written it",
        )


def _has_flag(folder: Path) -> bool:
    return (folder / _FLAG).exists()


def _widen(folder: Path, mems: CPUSet, put: Put) -> None:
    """Let a cpuset have these nodes, as far as the one above has them."""
    mems &= _effective(folder.parent)
    if read_cpus(folder / MEMS) < mems:
        put(folder / MEMS, str(mems))


def _narrow(folder: Path, mems: CPUSet, put: Put) -> None:
    if not _has_flag(folder):
        put(folder / MEMS, str(mems))
        return
    # A cpuset of version 1 has all that those below it have: these first.
    for text in descendants(folder):
        inner = Path(text)
        wanted = mems if inner == folder else read_cpus(inner / MEMS) & mems or mems
        with _migrating(inner):
            put(inner / MEMS, str(wanted))


@contextmanager
def _migrating(folder: Path) -> Iterator[None]:
    """Have pages follow while the nodes of this cpuset change."""
    before = read(folder / _FLAG)
    write(folder / _FLAG, "1")
    try:
        yield
    finally:
        write(folder / _FLAG, before)


def _report(
    before: ProcessMemory, after: ProcessMemory, mems: CPUSet, seconds: float
) -> MemoryMoved:
    def elsewhere(memory: ProcessMemory) -> int:
        nodes = [memory.nodes[node] for node in _elsewhere(memory, mems)]
        return round(sum(node.ordinary + node.huge for node in nodes))

    def on(memory: ProcessMemory, node: int) -> int:
        held = memory.nodes.get(node)
        return 0 if held is None else round(held.ordinary + held.huge)

    left = [after.nodes[node] for node in _elsewhere(after, mems)]
    stayed = elsewhere(after)
    return MemoryMoved(
        seconds=round(seconds, 6),
        moved=max(elsewhere(before) - stayed, 0),
        stayed=stayed,
        huge=round(sum(node.huge for node in left)),
        locked=round(sum(node.locked for node in left)),
        pinned=min(after.pinned, stayed),
        nodes=[
            MovedMemory(node=node, before=on(before, node), after=on(after, node))
            for node in sorted(before.nodes.keys() | after.nodes.keys())
        ],
    )
