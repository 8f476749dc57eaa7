"""The packed allocation against a plain one written with sets, and its invariants."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.core.cpu.allocation import Step, lowest_bits, take_packed
from pinfold.core.kubelet.faults import KUBELET, SOUND
from pinfold.core.machine.topology import CPUInfo, CPUTopology
from pinfold.core.topology_manager.hints import AllocationError
from pinfold.core.values.cpuset import iter_bits
from tests.scenes.strategies import free_cpus, topologies


def plain_take_packed(topology: CPUTopology, available: set[int], n: int) -> set[int] | None:
    """Whole NUMA nodes and sockets, whole cores, single threads: one CPU at a time, with sets."""
    free = {row for row in topology.rows if row.cpu in available}
    taken: list[CPUInfo] = []

    def of(field: int, rows: set[CPUInfo]) -> dict[int, set[CPUInfo]]:
        groups: dict[int, set[CPUInfo]] = {}
        for row in rows:
            groups.setdefault(row[field], set()).add(row)
        return groups

    def fullest_first(field: int, rows: set[CPUInfo]) -> list[int]:
        sizes = {id_: len(group) for id_, group in of(field, free).items()}
        return sorted(of(field, rows), key=lambda id_: (sizes[id_], id_))

    nodes_first = topology.num_sockets >= topology.num_numa_nodes
    outer, inner = (3, 2) if nodes_first else (2, 3)

    def inner_order() -> list[int]:
        return [
            i for o in fullest_first(outer, free) for i in fullest_first(inner, of(outer, free)[o])
        ]

    def core_order() -> list[int]:
        return [c for i in inner_order() for c in fullest_first(1, of(inner, free)[i])]

    def take(rows: set[CPUInfo]) -> None:
        taken.extend(rows)
        free.difference_update(rows)

    every = set(topology.rows)
    averages = {2: topology.cpus_per_socket, 1: topology.cpus_per_core}
    for field, order in (
        (outer, fullest_first(outer, free)),
        (inner, inner_order),
        (1, core_order),
    ):
        for id_ in order if isinstance(order, list) else order():
            whole = of(field, every)[id_]
            size = averages.get(field, len(whole))
            if len(of(field, free).get(id_, ())) == size and n - len(taken) >= len(whole):
                take(whole)
    rest = [row for core in core_order() for row in sorted(of(1, free)[core])]
    for row in rest:
        if len(taken) < n:
            take({row})
    return {row.cpu for row in taken} if len(taken) >= n else None


@settings(max_examples=300)
@given(st.data())
def test_it_agrees_with_a_plain_allocation(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    available = data.draw(free_cpus(topology))
    n = data.draw(st.integers(1, max(1, available.bit_count())))
    if n > available.bit_count():
        return
    plain = plain_take_packed(topology, set(iter_bits(available)), n)
    assert plain == set(iter_bits(take_packed(topology, available, n)))


@settings(max_examples=200)
@given(st.data())
def test_a_sound_result_is_free_and_of_the_size_asked_for(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    available = data.draw(free_cpus(topology))
    n = data.draw(st.integers(0, available.bit_count()))
    spread, uncore = data.draw(st.booleans()), data.draw(st.booleans())
    steps: list[Step] = []
    taken = take_packed(
        topology, available, n, spread=spread, align_uncore=uncore, rules=SOUND, steps=steps
    )
    assert taken & ~available == 0
    assert taken.bit_count() == n
    assert sum(step.cpus for step in steps) == taken


@settings(max_examples=200)
@given(st.data())
def test_even_machines_have_one_answer(data: st.DataObject) -> None:
    topology = data.draw(topologies(even=True))
    available = data.draw(free_cpus(topology))
    n = data.draw(st.integers(0, available.bit_count()))
    kubelet = take_packed(topology, available, n, rules=KUBELET)
    assert kubelet == take_packed(topology, available, n, rules=SOUND)
    shuffled = data.draw(st.permutations(topology.rows))
    assert kubelet == take_packed(CPUTopology(shuffled), available, n)


@settings(max_examples=200)
@given(st.data())
def test_whole_cores_are_taken_where_only_whole_cores_are_free(data: st.DataObject) -> None:
    topology = data.draw(topologies(even=True))
    cores = data.draw(st.sets(st.sampled_from(list(topology.cores))))
    available = sum(topology.cores[core] for core in cores)
    n = data.draw(st.integers(0, len(cores))) * topology.cpus_per_core
    taken = take_packed(topology, available, n)
    assert all(taken & core in (0, core) for core in topology.cores.values())


def test_too_large_a_request_has_the_kubelets_words() -> None:
    topology = CPUTopology.from_rows([(0, 0, 0, 0, 0), (1, 0, 0, 0, 0)])
    with pytest.raises(AllocationError) as caught:
        take_packed(topology, 0b1, 2)
    assert str(caught.value) == (
        "not enough cpus available to satisfy request: requested=2, available=1"
    )
    assert take_packed(topology, 0b1, 0) == take_packed(topology, 0b1, -1) == 0


@given(st.integers(0, 1 << 200), st.integers(0, 200))
def test_lowest_bits_are_the_first_set_ones(mask: int, count: int) -> None:
    assert list(iter_bits(lowest_bits(mask, count))) == list(iter_bits(mask))[:count]


def test_whole_numa_nodes_come_before_sockets_unless_there_are_more_of_them() -> None:
    def steps(numa_nodes: int, n: int) -> list[Step]:
        rows = ((cpu, cpu, cpu // 4, cpu // (8 // numa_nodes), 0) for cpu in range(8))
        taken: list[Step] = []
        take_packed(CPUTopology.from_rows(rows), 0b1111_1111, n, rules=KUBELET, steps=taken)
        return taken

    assert steps(1, 8) == [Step("NUMA node", 0, 0b1111_1111)]
    assert steps(2, 4) == [Step("NUMA node", 0, 0b1111)]
    assert steps(4, 4) == [Step("socket", 0, 0b1111)]
    assert steps(4, 6) == [Step("socket", 0, 0b1111), Step("NUMA node", 2, 0b11_0000)]
