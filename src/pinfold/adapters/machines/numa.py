"""NUMA nodes, their memory, hugepages and distances, from ``/sys/devices/system/node``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from pinfold.adapters.machines.memory import NodeMemory, read_memory_kinds
from pinfold.adapters.machines.reader import Reader
from pinfold.core.machine.machine import Distances, HugepagePool, Hugepages, NUMANode
from pinfold.core.values.cpuset import CPUSet

NODE_DIRECTORY: Final = "sys/devices/system/node"
HUGEPAGES_DIRECTORY: Final = "sys/kernel/mm/hugepages"

_MEM_TOTAL: Final = re.compile(r"MemTotal:\s*(\d{1,18}) kB", re.ASCII)
_DEFAULT_HUGEPAGES: Final = tuple(
    re.compile(rf"^{name}:\s*(\d{{1,15}})", re.ASCII | re.MULTILINE)
    for name in ("Hugepagesize", "HugePages_Total", "HugePages_Free")
)
_HUGEPAGES_FOLDER: Final = re.compile(r"hugepages-(\d{1,15})kB", re.ASCII)


class NodeFolder(Struct, frozen=True):
    """The nodes of a tree.

    ``links`` are the CPUs that each node folder links, in name order, as cAdvisor walks them, or
    the CPUs of its map where no folder has links (``links_missing``); None without node folders.
    """

    nodes: tuple[NUMANode, ...]
    distances: Distances | None
    links: Mapping[int, tuple[int, ...]] | None
    links_missing: bool


def parse_mem_total(text: str) -> int | None:
    """``MemTotal`` of a ``meminfo`` file in bytes, None without such a line."""
    match = _MEM_TOTAL.search(text)
    return int(match[1]) * 1024 if match else None


def parse_default_hugepages(text: str) -> Hugepages:
    """The pool of the default size in ``/proc/meminfo``, the only one that old kernels tell."""
    size, total, free = (pattern.search(text) for pattern in _DEFAULT_HUGEPAGES)
    if size is None or total is None:
        return MappingProxyType({})
    pages = int(total[1])
    pool = HugepagePool(pages, int(free[1]) if free else pages)
    return MappingProxyType({int(size[1]) * 1024: pool})


def parse_distances(text: str) -> tuple[int, ...]:
    """A row of ``distance``: numbers with blanks between them; raises ValueError."""
    row = []
    for item in text.split():
        if not (item.isascii() and item.isdecimal() and len(item) < 19):
            raise ValueError(f"{item[:40]!r} is no distance")
        row.append(int(item))
    if not row:
        raise ValueError("no distances")
    return tuple(row)


def read_hugepages(reader: Reader, folder: str) -> Hugepages:
    """The pools of every page size in a ``hugepages`` folder."""
    pools: dict[int, HugepagePool] = {}
    for name in reader.tree.names(folder):
        match = _HUGEPAGES_FOLDER.fullmatch(name)
        if match is None:
            continue
        total = reader.number(f"{folder}/{name}/nr_hugepages")
        free = reader.number(f"{folder}/{name}/free_hugepages")
        if total is not None:
            pools[int(match[1]) * 1024] = HugepagePool(total, total if free is None else free)
    return MappingProxyType(dict(sorted(pools.items())))


def read_nodes(reader: Reader, online: CPUSet, *, knights_landing: bool = False) -> NodeFolder:
    """Read the nodes; a node that holds no online CPU is memory-only or empty.

    ``knights_landing``: see :func:`~pinfold.adapters.machines.memory.read_memory_kinds`.

    Raises:
        MachineError: a file is not what it should be.
    """
    idents = reader.numbered(NODE_DIRECTORY, "node")
    if not idents:
        return NodeFolder((), None, None, links_missing=False)
    links: dict[int, tuple[int, ...]] = {}
    maps: dict[int, CPUSet] = {}
    rows: dict[int, tuple[int, ...]] = {}
    for ident in idents:
        folder = f"{NODE_DIRECTORY}/node{ident}"
        links[ident] = tuple(sorted(reader.numbered(folder, "cpu"), key=str))
        found = reader.cpu_set((f"{folder}/cpumap",), (f"{folder}/cpulist",))
        maps[ident] = CPUSet(links[ident]) if found is None else found
        row = _distances(reader, f"{folder}/distance")
        if row is not None:
            rows[ident] = row
    links_missing = not any(links.values())
    if links_missing:
        links = {ident: tuple(sorted(maps[ident], key=str)) for ident in idents}
    cpus = {ident: maps[ident] & online for ident in idents}
    kinds = read_memory_kinds(reader, NODE_DIRECTORY, cpus, rows, knights_landing=knights_landing)
    return NodeFolder(
        nodes=tuple(_node(reader, ident, cpus[ident], kinds[ident]) for ident in idents),
        distances=Distances(tuple(rows), MappingProxyType(rows)) if rows else None,
        links=MappingProxyType(links),
        links_missing=links_missing,
    )


def _distances(reader: Reader, path: str) -> tuple[int, ...] | None:
    text = reader.text(path)
    if text is None:
        return None
    try:
        return parse_distances(text)
    except ValueError as error:
        raise reader.error(path, error) from None


def _node(reader: Reader, ident: int, cpus: CPUSet, memory: NodeMemory) -> NUMANode:
    folder = f"{NODE_DIRECTORY}/node{ident}"
    return NUMANode(
        id=ident,
        cpus=cpus,
        memory_bytes=parse_mem_total(reader.text(f"{folder}/meminfo") or ""),
        hugepages=read_hugepages(reader, f"{folder}/hugepages"),
        memory_kind=memory.kind,
        local_cpus=memory.local_cpus,
    )
