"""Caches from ``cpuN/cache/indexM``: the level 3 ones, and what cAdvisor sees of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from pinfold.adapters.machines.reader import Reader
from pinfold.adapters.machines.tree import CPU_DIRECTORY
from pinfold.core.machine.machine import L3Cache, UpperCache
from pinfold.core.values.cpuset import CPUSet

_L3_TYPES: Final = frozenset({"Unified", "Data"})

_NEEDED_BY_CADVISOR: Final = frozenset({"id", "size", "level", "type", "shared_cpu_map"})
"""The files whose absence makes cAdvisor give up on the caches of a NUMA node."""


class CacheFolder(Struct, frozen=True):
    """The caches of one CPU.

    ``upper`` are those above level 2, in the order of the folders' names; None where there is no
    cache folder.  ``incomplete``: a file that cAdvisor needs is missing.
    """

    upper: tuple[UpperCache, ...] | None
    incomplete: bool = False


class Caches(Struct, frozen=True):
    """The caches of a machine: ``l3`` ordered by the lowest CPU, and the folders by CPU."""

    l3: tuple[L3Cache, ...]
    folders: Mapping[int, CacheFolder]


class _Index(Struct, frozen=True):
    """One ``indexM`` folder; ``cpus`` None without a usable map."""

    level: int
    type: str
    cpus: CPUSet | None
    id: int | None
    incomplete: bool
    path: str


def read_caches(reader: Reader, online: CPUSet, cores: tuple[CPUSet, ...]) -> Caches:
    """Read the caches of the online CPUs; ``cores`` own the caches whose map is empty.

    Raises:
        MachineError: a file is not what it should be.
    """
    core_of = {cpu: core for core in cores for cpu in core}
    folders: dict[int, CacheFolder] = {}
    firsts: dict[CPUSet, _Index] = {}
    for cpu in online:
        folder = f"{CPU_DIRECTORY}/cpu{cpu}/cache"
        names = reader.tree.names(folder)
        if not names and not reader.tree.is_directory(folder):
            folders[cpu] = CacheFolder(upper=None)
            continue
        # cAdvisor takes them as ReadDir gives them, sorted by name.
        found = [_index(reader, f"{folder}/{n}") for n in names if n.startswith("index")]
        folders[cpu] = CacheFolder(
            upper=tuple(
                UpperCache(id=index.id, cpu_count=len(index.cpus))
                for index in found
                if index.level > 2 and index.cpus is not None
            ),
            incomplete=any(index.incomplete for index in found),
        )
        for index in found:
            if index.level == 3 and index.type in _L3_TYPES:
                cpus = index.cpus & online if index.cpus else core_of[cpu]
                firsts.setdefault(cpus | CPUSet((cpu,)), index)
                break
    return Caches(
        l3=tuple(
            L3Cache(cpus=cpus, size=reader.size(f"{index.path}/size"), id=index.id)
            for cpus, index in firsts.items()
        ),
        folders=folders,
    )


def _index(reader: Reader, path: str) -> _Index:
    names = reader.tree.names(path)
    level = reader.number(f"{path}/level") if "level" in names else None
    incomplete = not set(names) >= _NEEDED_BY_CADVISOR
    if level is None or level < 3:
        # Only cAdvisor's giving up depends on the lower levels.
        return _Index(level or 0, "", None, None, incomplete, path)
    return _Index(
        level=level,
        type=(reader.text(f"{path}/type") if "type" in names else None) or "Unified",
        cpus=reader.cpu_set((f"{path}/shared_cpu_map",), (f"{path}/shared_cpu_list",)) or None,
        id=reader.number(f"{path}/id") if "id" in names else None,
        incomplete=incomplete,
        path=path,
    )
