"""The CPU manager's hints, against listing every combination of NUMA nodes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.cpu.hints import (
    MAX_HINT_NODES,
    TooManyNUMANodesError,
    cpu_hints,
    least_nodes,
    nodes_to_cpus,
    sockets_of_nodes,
)
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.topology_manager.hints import TopologyHint, numa_mask
from tests.scenes.strategies import free_cpus, topologies


def plain_hints(
    topology: CPUTopology, available: int, reusable: int, request: int, *, align_by_socket: bool
) -> list[TopologyHint]:
    """As the kubelet words it: try all combinations, keep the fitting, prefer the narrowest."""
    nodes = list(topology.numa_nodes)
    everything = [c for size in range(1, len(nodes) + 1) for c in combinations(nodes, size)]

    def count(cpus: int, combination: tuple[int, ...]) -> int:
        return sum(cpus >> row.cpu & 1 for row in topology.rows if row.numa_node in combination)

    least = len(nodes)
    for combination in everything:
        if count(topology.all, combination) >= request:
            least = min(least, len(combination))
    reused_nodes = {row.numa_node for row in topology.rows if reusable >> row.cpu & 1}
    hints = []
    for combination in everything:
        if not reused_nodes <= set(combination):
            continue
        if count(available, combination) + count(reusable, combination) < request:
            continue
        preferred = len(combination) == least
        per_socket = len(nodes) // topology.num_sockets
        if align_by_socket and per_socket:
            sockets = {row.socket for row in topology.rows if row.numa_node in combination}
            preferred = preferred or len(sockets) == -(-least // per_socket)
        hints.append(TopologyHint(numa_mask(combination), preferred))
    return hints


@given(st.data(), st.booleans())
def test_it_agrees_with_trying_every_combination(
    data: st.DataObject,
    align_by_socket: bool,
) -> None:
    topology = data.draw(topologies())
    reusable = data.draw(free_cpus(topology)) if data.draw(st.booleans()) else 0
    available = data.draw(free_cpus(topology)) & ~reusable
    request = data.draw(st.integers(1, len(topology.rows) + 1))
    got = cpu_hints(topology, available, reusable, request, align_by_socket=align_by_socket)
    assert got == plain_hints(
        topology, available, reusable, request, align_by_socket=align_by_socket
    )


@given(st.data())
def test_the_narrowest_hint_says_how_many_nodes_are_needed(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    request = data.draw(st.integers(1, len(topology.rows)))
    hints = cpu_hints(topology, topology.all, 0, request)
    widths = [hint.mask.bit_count() for hint in hints if hint.mask is not None]
    assert min(widths) == widths[0] == least_nodes(topology, request)
    assert [h.preferred for h in hints] == [width == widths[0] for width in widths]


@given(st.data())
def test_groups_of_nodes(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    nodes = data.draw(st.sets(st.sampled_from(list(topology.numa_nodes))))
    rows = [row for row in topology.rows if row.numa_node in nodes]
    assert nodes_to_cpus(topology, numa_mask(nodes)) == sum(1 << row.cpu for row in rows)
    assert sockets_of_nodes(topology, numa_mask(nodes)) == sorted({row.socket for row in rows})


def test_a_node_that_is_not_there_has_no_cpus() -> None:
    topology = CPUTopology.from_rows([(0, 0, 0, 0, 0)])
    assert nodes_to_cpus(topology, 0b110) == 0


def many_nodes(count: int) -> CPUTopology:
    return CPUTopology.from_rows([(cpu, cpu, 0, cpu, cpu) for cpu in range(count)])


def test_more_nodes_than_can_be_listed_are_refused() -> None:
    topology = many_nodes(MAX_HINT_NODES + 1)
    with pytest.raises(TooManyNUMANodesError, match="21 NUMA nodes have CPUs") as error:
        cpu_hints(topology, topology.all, 0, 1)
    assert "use topology manager policy none" in str(error.value)


def test_nothing_fits_where_too_little_is_free() -> None:
    topology = many_nodes(3)
    assert cpu_hints(topology, 0b011, 0, 3) == []
