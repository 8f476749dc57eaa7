"""Hypothesis strategies for machines and free CPUs."""

from __future__ import annotations

from hypothesis import strategies as st

from pinfold.core.machine.topology import CPUTopology


@st.composite
def topologies(draw: st.DrawFn, *, even: bool = False, max_nodes: int = 6) -> CPUTopology:
    """Small machines: nested either way round, any numbering, and (unless ``even``) with holes."""
    sockets = draw(st.integers(1, 3))
    nodes = draw(st.integers(1, max(1, max_nodes // sockets)))
    cores, threads = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    several_sockets_a_node = draw(st.booleans())
    caches = draw(st.integers(1, 2))
    places = [
        (core + cores * (node + nodes * socket), socket, node + nodes * socket, core % caches)
        for socket in range(sockets)
        for node in range(nodes)
        for core in range(cores)
        for _ in range(threads)
    ]
    ids = list(range(len(places)))
    if draw(st.booleans()):
        ids = draw(st.permutations(ids))
    elif draw(st.booleans()):
        ids = [i // threads + (i % threads) * (len(ids) // threads) for i in ids]
    kept = list(range(len(ids)))
    if not even and draw(st.booleans()):
        kept = sorted(draw(st.sets(st.sampled_from(kept), min_size=1)))
    lowest: dict[int, int] = {}
    for i in kept:
        core = places[i][0]
        lowest[core] = min(ids[i], lowest.get(core, ids[i]))
    rows = []
    for i in kept:
        core, socket, node, cache = places[i]
        outer, inner = (node, socket) if several_sockets_a_node else (socket, node)
        rows.append((ids[i], lowest[core], outer, inner, inner * caches + cache))
    return CPUTopology.from_rows(rows)


@st.composite
def free_cpus(draw: st.DrawFn, topology: CPUTopology) -> int:
    """A bitmask of some of the machine's CPUs."""
    free = draw(st.sets(st.sampled_from([row.cpu for row in topology.rows])))
    return sum(1 << cpu for cpu in free)
