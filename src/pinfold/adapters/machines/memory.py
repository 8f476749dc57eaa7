"""What kind of memory a NUMA node has, and which CPUs a node without CPUs is near to.

The kernel names neither.  hwloc derives them from the HMAT's numbers, and people know hwloc's
answers, so they are derived in the same way (hwloc 2.15, ``memattrs.c``, "memory tiers").
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

from msgspec import Struct

from pinfold.adapters.machines.reader import Reader
from pinfold.core.values.cpuset import CPUSet

DAX_DEVICES: Final = "sys/bus/dax/devices"
DAX_KMEM: Final = "sys/bus/dax/drivers/kmem"
_TIER_RATIO: Final = 1.1
"""Nodes whose bandwidth or latency differs by more are of different tiers."""

_HBM_FACTOR: Final = 2
"""High-bandwidth memory has more than twice the bandwidth of the other tier."""

_DDR_BANDWIDTH: Final = 90_000
_MCDRAM_BANDWIDTH: Final = 360_000
"""Of a Knights Landing in MiB/s, as hwloc assumes; only the ratio matters."""


class NodeMemory(Struct, frozen=True):
    """``kind``: ``DRAM``, ``HBM``, ``NVM``, ``SPM`` (specific-purpose) or None, not known."""

    kind: str | None
    local_cpus: CPUSet | None


class MemoryNode(Struct, frozen=True):
    """What the tiers are made of; bandwidth in MiB/s and latency in ns are 0 if unknown."""

    id: int
    kind: str
    bandwidth: int
    latency: int


def read_memory_kinds(
    reader: Reader,
    directory: str,
    cpus: Mapping[int, CPUSet],
    distances: Mapping[int, tuple[int, ...]],
    *,
    knights_landing: bool = False,
) -> dict[int, NodeMemory]:
    """Kind and locality of every node of ``cpus``, which holds the nodes' online CPUs.

    ``knights_landing``: every node without CPUs is the MCDRAM beside another node's DDR, of which
    the firmware tells nothing but the distance.
    """
    pairs = _mcdram(cpus, distances) if knights_landing else {}
    near = _localities(reader, directory, cpus, distances)
    for mcdram, ddr in pairs.items():
        near[mcdram] = cpus[ddr]
    dax = _dax_kinds(reader)
    nodes = []
    for ident in cpus:
        folder = _initiators(reader, f"{directory}/node{ident}")
        bandwidth = latency = 0
        if folder is not None and near[ident]:
            bandwidth = _mean(reader, folder, "bandwidth")
            latency = _mean(reader, folder, "latency")
        if pairs:
            bandwidth = _MCDRAM_BANDWIDTH if ident in pairs else _DDR_BANDWIDTH
        nodes.append(MemoryNode(ident, dax.get(ident, ""), bandwidth, latency))
    kinds = guess_kinds(nodes)
    return {
        ident: NodeMemory(
            kind=kinds.get(ident),
            local_cpus=near[ident] if near[ident] and not cpus[ident] else None,
        )
        for ident in cpus
    }


def guess_kinds(nodes: list[MemoryNode]) -> dict[int, str]:
    """The kinds by node id; nodes of unknown kind are left out."""
    kinds = {node.id: node.kind for node in nodes if node.kind}
    ordered = sorted(nodes, key=lambda node: (node.kind, -node.bandwidth))
    tiers: list[list[MemoryNode]] = [ordered[:1]] if ordered else []
    for before, node in pairwise(ordered):
        if (
            before.kind != node.kind
            or _differ(before.bandwidth, node.bandwidth)
            or _differ(before.latency, node.latency)
        ):
            tiers.append([])
        tiers[-1].append(node)
    unknown = [tier for tier in tiers if not tier[0].kind]
    special = [tier for tier in tiers if tier[0].kind == "SPM"]
    pair = unknown if not special else unknown + special
    if len(tiers) == 1 or len(pair) != 2 or not unknown:
        return kinds
    slow, fast = sorted(pair, key=_lowest_bandwidth)
    # As hwloc has it: the last node of a tier stands for its highest bandwidth, also where that
    # node has none (a node without memory).
    if _lowest_bandwidth(slow) and _lowest_bandwidth(fast) > _HBM_FACTOR * slow[-1].bandwidth:
        kinds |= {node.id: "DRAM" for node in slow} | {node.id: "HBM" for node in fast}
    return kinds


def _lowest_bandwidth(tier: list[MemoryNode]) -> int:
    return tier[0].bandwidth


def _differ(one: int, other: int) -> bool:
    return bool(one and other) and max(one, other) / min(one, other) > _TIER_RATIO


def _localities(
    reader: Reader,
    directory: str,
    cpus: Mapping[int, CPUSet],
    distances: Mapping[int, tuple[int, ...]],
) -> dict[int, CPUSet]:
    """The CPUs near each node: its own, its initiators', or those of the closest nodes."""
    near = dict(cpus)
    matrix = list(cpus) if all(len(distances.get(i, ())) >= len(cpus) for i in cpus) else []
    # Nodes with CPUs first, as the others are found by way of them.
    for ident in sorted(cpus, key=lambda node: (not cpus[node], node)):
        folder = _initiators(reader, f"{directory}/node{ident}")
        if folder is not None:
            for initiator in reader.numbered(folder, "node"):
                if initiator != ident and initiator in near:
                    near[ident] |= near[initiator]
        if not near[ident] and matrix:
            for closest in _closest(matrix, matrix.index(ident), distances[ident][: len(matrix)]):
                near[ident] |= near[closest]
    return near


def _closest(matrix: list[int], own: int, row: tuple[int, ...]) -> list[int]:
    others = [distance for at, distance in enumerate(row) if at != own]
    least = min(others, default=0)
    # Equally far from all is near to none.
    if least <= row[own] or others.count(least) == len(others):
        return []
    return [matrix[at] for at, distance in enumerate(row) if at != own and distance == least]


def _mcdram(cpus: Mapping[int, CPUSet], distances: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """The node with CPUs that each node without them is closest to; one each, or it is none."""
    order = list(cpus)
    if any(len(distances.get(ident, ())) < len(order) for ident in order):
        return {}
    ddr = [ident for ident in order if cpus[ident]]
    pairs = {
        ident: min(ddr, key=lambda other: distances[ident][order.index(other)])
        for ident in order
        if ddr and not cpus[ident]
    }
    return pairs if sorted(pairs.values()) == ddr else {}


def _initiators(reader: Reader, folder: str) -> str | None:
    # access0 may be a device's (a generic initiator); access1 is of CPUs only, where it exists.
    for name in ("access1", "access0"):
        path = f"{folder}/{name}/initiators"
        if reader.tree.is_directory(path):
            return path
    return None


def _mean(reader: Reader, folder: str, what: str) -> int:
    read = reader.number(f"{folder}/read_{what}") or 0
    write = reader.number(f"{folder}/write_{what}") or 0
    return (read + write) // 2 if read > 0 and write > 0 else 0


def _dax_kinds(reader: Reader) -> dict[int, str]:
    """Nodes that are DAX devices used as memory: persistent (NVM) or specific-purpose (SPM)."""
    kinds: dict[int, str] = {}
    for name in reader.tree.names(DAX_KMEM):
        node = reader.number(f"{DAX_DEVICES}/{name}/target_node") if "." in name else None
        if node is not None and node >= 0:
            # The device's place in the device tree tells: NVDIMMs hang below an ndbus.
            place = reader.tree.real_path(f"{DAX_DEVICES}/{name}")
            kinds[node] = "NVM" if "ndbus" in place else "SPM"
    return kinds
