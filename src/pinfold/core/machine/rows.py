"""From one row per CPU to the CPUs, cores, sockets and level 3 caches of a machine.

Every source but sysfs says of each CPU which core, socket and cache it is in; this groups the
rows and names the groups as :class:`~pinfold.core.machine.machine.Machine` wants them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.core.machine.machine import Cpu, L3Cache, MachineError, Socket
from pinfold.core.values.cpuset import CPUSet

_NO_CACHES: Final[Mapping[Hashable, CacheFacts]] = MappingProxyType({})


class CacheFacts(Struct, frozen=True):
    """What a source says of one cache: ``size`` in bytes, ``id`` the kernel's; None: unknown."""

    size: int | None = None
    id: int | None = None


class CpuRow(Struct, frozen=True):
    """Where a source puts one online CPU.

    ``core``, ``package`` and ``l3`` are any keys of the source's own: CPUs with equal keys are in
    one core, socket or cache.  ``l3`` None means no level 3 cache.  The other fields are those of
    :class:`~pinfold.core.machine.machine.Cpu`; ``numa`` lists every NUMA node that holds the CPU.
    """

    cpu: int
    core: Hashable
    package: Hashable
    l3: Hashable = None
    core_id: int | None = None
    socket: int | None = None
    die: int | None = None
    numa: tuple[int, ...] = ()
    kind: int | None = None
    allowed: bool = True


class CpuGroups(Struct, frozen=True):
    """The rows grouped; each tuple ascends by its lowest CPU."""

    cpus: tuple[Cpu, ...]
    cores: tuple[CPUSet, ...]
    sockets: tuple[Socket, ...]
    l3: tuple[L3Cache, ...]


def group_rows(
    rows: Iterable[CpuRow],
    *,
    offline: CPUSet | None = None,
    caches: Mapping[Hashable, CacheFacts] = _NO_CACHES,
) -> CpuGroups:
    """Group the rows of the online CPUs and add the offline ones.

    Args:
        rows: one for each online CPU, in any order.
        offline: CPUs that are present but not online.
        caches: what is known of the cache behind an ``l3`` key.

    Raises:
        MachineError: no CPU, or a CPU twice.
    """
    ordered = sorted(rows, key=lambda row: row.cpu)
    if not ordered:
        raise MachineError("no CPU in it; capture the machine again")
    cores: dict[Hashable, int] = {}
    packages: dict[Hashable, int] = {}
    levels: dict[Hashable, int] = {}
    seen = 0
    for row in ordered:
        bit = 1 << row.cpu
        if seen & bit:
            raise MachineError(f"CPU {row.cpu} appears twice; capture the machine again")
        seen |= bit
        cores[row.core] = cores.get(row.core, 0) | bit
        packages[row.package] = packages.get(row.package, 0) | bit
        if row.l3 is not None:
            levels[row.l3] = levels.get(row.l3, 0) | bit
    socket_ids = {row.package: row.socket for row in ordered}
    core_names = {key: _lowest(mask) for key, mask in cores.items()}
    l3_names = {key: _lowest(mask) for key, mask in levels.items()}
    unknown = CacheFacts()
    cpus = [
        Cpu(
            row.cpu,
            core=core_names[row.core],
            core_id=row.core_id,
            socket=row.socket,
            die=row.die,
            numa=min(row.numa, default=None),
            l3=None if row.l3 is None else l3_names[row.l3],
            l3_id=None if row.l3 is None else caches.get(row.l3, unknown).id,
            kind=row.kind,
            allowed=row.allowed,
            numa_all=tuple(sorted(row.numa)) if len(row.numa) > 1 else (),
        )
        for row in ordered
    ]
    if offline is not None:
        cpus += [Cpu(cpu, online=False) for cpu in offline if not seen >> cpu & 1]
        cpus.sort(key=lambda cpu: cpu.cpu)
    # Dictionaries keep the order of the rows, which is that of the lowest CPUs.
    return CpuGroups(
        cpus=tuple(cpus),
        cores=tuple(CPUSet.from_mask(mask) for mask in cores.values()),
        sockets=tuple(
            Socket(socket_ids[key], CPUSet.from_mask(mask)) for key, mask in packages.items()
        ),
        l3=tuple(
            L3Cache(
                CPUSet.from_mask(mask),
                caches.get(key, unknown).size,
                caches.get(key, unknown).id,
            )
            for key, mask in levels.items()
        ),
    )


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1
