"""Topology hints of the CPU manager: which NUMA nodes could hold a request of n CPUs.

Source: upstream ``staticPolicy.generateCPUTopologyHints``.  The numbers of free CPUs of all
combinations of NUMA nodes are built up from one another, so a hint costs one addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.topology_manager.hints import TopologyHint, numa_mask
from pinfold.core.values.cpuset import iter_bits

MAX_HINT_NODES = 20
"""Most NUMA nodes with CPUs for which hints are made (a million combinations)."""

FEW_NODES: Final = 8
"""Up to so many the hints are remembered; a kubelet takes no more unless it is told to."""


class TooManyNUMANodesError(ValueError):
    """There are more combinations of NUMA nodes than can be listed."""


def cpu_hints(
    topology: CPUTopology,
    available: int,
    reusable: int,
    request: int,
    *,
    align_by_socket: bool = False,
) -> list[TopologyHint]:
    """The NUMA node combinations that can hold ``request`` CPUs, in the kubelet's order.

    Args:
        topology: the kubelet's view of the machine.
        available: bitmask of the free CPUs.
        reusable: bitmask of CPUs that this pod has already; a hint must cover all their nodes.
        request: number of CPUs, at least 1.
        align_by_socket: prefer by sockets (policy option ``align-by-socket``).

    Raises:
        TooManyNUMANodesError: more than ``MAX_HINT_NODES`` nodes; a kubelet would try them all.
    """
    nodes = tuple(topology.numa_nodes)
    if len(nodes) > MAX_HINT_NODES:
        raise TooManyNUMANodesError(
            f"{len(nodes)} NUMA nodes have CPUs: the kubelet would try 2^{len(nodes)} combinations "
            "of them for each container and never finish; use topology manager policy none"
        )
    needed, free = 0, [0]
    for position, cpus in enumerate(topology.numa_nodes.values()):
        count = (available & cpus).bit_count()
        if reusable & cpus:
            count += (reusable & cpus).bit_count()
            needed |= 1 << position
        free += [before + count for before in free]
    fitting = [s for s in _combinations_by_size(len(nodes)) if free[s] >= request]
    if needed:
        fitting = [s for s in fitting if s & needed == needed]
    least = least_nodes(topology, request)
    hints = _hints_of_few(nodes, least) if len(nodes) <= FEW_NODES else _hints(nodes, least)
    if not align_by_socket:
        return [hints[s] for s in fitting]
    return [
        TopologyHint(mask, preferred or _is_socket_aligned(topology, mask or 0, least))
        for mask, preferred in (hints[s] for s in fitting)
    ]


def least_nodes(topology: CPUTopology, request: int) -> int:
    """How many NUMA nodes a request needs on this machine when it is empty."""
    sizes = sorted((mask.bit_count() for mask in topology.numa_nodes.values()), reverse=True)
    total = 0
    for count, size in enumerate(sizes, start=1):
        total += size
        if total >= request:
            return count
    return len(sizes)


def sockets_of_nodes(topology: CPUTopology, nodes: int) -> list[int]:
    """The sockets that have CPUs in any of these NUMA nodes (a bitmask), ascending."""
    cpus = nodes_to_cpus(topology, nodes)
    return [socket for socket, mask in topology.sockets.items() if mask & cpus]


def nodes_to_cpus(topology: CPUTopology, nodes: int) -> int:
    """All CPUs of these NUMA nodes (both bitmasks)."""
    cpus = 0
    for node in iter_bits(nodes):
        cpus |= topology.numa_nodes.get(node, 0)
    return cpus


def _is_socket_aligned(topology: CPUTopology, nodes: int, least: int) -> bool:
    per_socket = topology.num_numa_nodes // topology.num_sockets
    if per_socket == 0:
        return False
    least_sockets = -(-least // per_socket)
    return len(sockets_of_nodes(topology, nodes)) == least_sockets


def _hints(nodes: Sequence[int], least: int) -> Sequence[TopologyHint]:
    """A hint for each subset of the nodes' positions; those of ``least`` nodes are preferred."""
    masks = [0]
    for node in nodes:
        bit = numa_mask((node,))
        masks += [mask | bit for mask in masks]
    return [TopologyHint(mask, mask.bit_count() == least) for mask in masks]


_hints_of_few = lru_cache(maxsize=64)(_hints)

_ORDERS: dict[int, Sequence[int]] = {}


def _combinations_by_size(count: int) -> Sequence[int]:
    """All non-empty subsets of ``count`` positions: by size, then as nested loops visit them."""
    if count not in _ORDERS:
        # Nested loops visit position 0 first: descending by the bits read from position 0 on.
        width = f"0{count}b"
        _ORDERS[count] = tuple(
            sorted(
                range(1, 1 << count),
                key=lambda subset: (subset.bit_count(), -int(format(subset, width)[::-1], 2)),
            )
        )
    return _ORDERS[count]
