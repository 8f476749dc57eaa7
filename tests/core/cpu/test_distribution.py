"""The distribution against plain enumeration of every combination, and its invariants."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.cpu.distribution import take_distributed
from pinfold.core.kubelet.faults import (
    KUBELET,
    SOUND,
    UpstreamFaultError,
)
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.topology_manager.hints import AllocationError
from tests.scenes.strategies import free_cpus, topologies


def one_node_each(counts: Sequence[int], size: int) -> tuple[CPUTopology, int]:
    """A machine of NUMA nodes with ``size`` CPUs, of which ``counts`` are free, and those."""
    rows = [
        (node * size + i, node * size + i, node, node, node)
        for node in range(len(counts))
        for i in range(size)
    ]
    free = sum(((1 << count) - 1) << (node * size) for node, count in enumerate(counts))
    return CPUTopology.from_rows(rows), free


def deviation(values: Sequence[int]) -> float:
    mean = int(sum(values) / len(values) * 1000 + 0.5) / 1000
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return float(int(variance**0.5 * 1000 + 0.5)) / 1000


def plain_shares(counts: Sequence[int], size: int, n: int, group: int) -> list[int] | None:
    """How many CPUs each node gives, by trying everything in the kubelet's order."""
    order = sorted((i for i, c in enumerate(counts) if c), key=lambda i: (counts[i], i))
    groups = ceil(n / group)
    groups_in_machine = ceil(len(counts) * size / group)
    least = ceil(groups / ceil(groups_in_machine / len(counts)))
    for k in range(least, min(groups, len(order)) + 1):
        best: tuple[float, list[int]] | None = None
        for combo in combinations(order, k):
            even = n // k // group * group
            if sum(counts[i] // group for i in combo) * group < n:
                continue
            if any(counts[i] < even for i in combo):
                continue
            rest = n - even * k
            given_even = [even if i in combo else 0 for i in range(len(counts))]
            extra = [i for i in combo if counts[i] - even >= group]
            subsets = [s for m in range(len(extra), 0, -1) for s in combinations(extra, m)]
            for subset in subsets if rest else [()]:
                given_all = list(given_even)
                left, progress = rest, True
                while left and progress:
                    progress = False
                    for i in subset:
                        if left and counts[i] - given_all[i] >= group:
                            given_all[i] += group
                            left -= group
                            progress = True
                if left:
                    continue
                after = [counts[i] - given_all[i] for i in order]
                if best is None or deviation(after) < best[0]:
                    best = (deviation(after), given_all)
        if best is not None:
            return best[1]
    return None


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=6),
    st.integers(1, 20),
    st.sampled_from([1, 2]),
)
def test_it_agrees_with_trying_every_combination(
    counts: list[int], wanted: int, group: int
) -> None:
    n = wanted * group
    if n > sum(counts):
        return
    topology, free = one_node_each(counts, 8)
    shares = plain_shares(counts, 8, n, group)
    taken = take_distributed(topology, free, n, group, rules=SOUND)
    if shares is not None:
        got = [(taken & mask).bit_count() for mask in topology.numa_nodes.values()]
        assert got == shares


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_sound_result_is_free_and_of_the_size_asked_for(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_nodes=6))
    available = data.draw(free_cpus(topology))
    n = data.draw(st.integers(0, available.bit_count()))
    group = data.draw(st.integers(1, 3))
    taken = take_distributed(
        topology, available, n, group, spread=data.draw(st.booleans()), rules=SOUND
    )
    assert taken & ~available == 0
    assert taken.bit_count() == n


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_kubelets_answer_never_stalls_here(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_nodes=6))
    available = data.draw(free_cpus(topology))
    n = data.draw(st.integers(0, available.bit_count()))
    group = data.draw(st.integers(1, 3))
    # Whatever it is, it is an answer: a set, or one of the two declared refusals.
    with suppress(UpstreamFaultError, AllocationError):
        assert take_distributed(topology, available, n, group, rules=KUBELET).bit_count() >= n


def test_many_nodes_that_are_filled_alike_cost_nothing_extra() -> None:
    topology, free = one_node_each([8] * 40, 8)
    taken = take_distributed(topology, free, 41, 1, rules=SOUND)
    assert taken.bit_count() == 41


def test_a_later_combination_overwrites_the_best_one_only_under_the_kubelets_rules() -> None:
    sound = replace(KUBELET, shared_combinations=False)
    topology, free = one_node_each([3] * 5, 8)
    kubelet = take_distributed(topology, free, 10, 1)
    assert kubelet != take_distributed(topology, free, 10, 1, rules=sound)
    assert kubelet & ~free == 0
    few, few_free = one_node_each([3] * 4, 8)
    for n in range(1, 13):
        kubelet = take_distributed(few, few_free, n, 1)
        assert kubelet == take_distributed(few, few_free, n, 1, rules=sound)
