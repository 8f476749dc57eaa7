"""Masks of NUMA nodes, their order, and what a machine says about distances."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.core.topology_manager.hints import (
    MAX_NUMA_ID,
    HintError,
    NUMAInfo,
    TopologyHint,
    format_numa_mask,
    is_narrower,
    iter_numa_masks,
    narrowness,
    numa_mask,
)
from pinfold.core.values.cpuset import iter_bits

NODES = st.lists(st.integers(0, MAX_NUMA_ID), unique=True, max_size=7)
MASKS = st.integers(0, (1 << 64) - 1)


@given(NODES)
def test_mask_holds_its_nodes(nodes: list[int]) -> None:
    assert list(iter_bits(numa_mask(nodes))) == sorted(nodes)


@pytest.mark.parametrize("node", [-1, 64, 1_000_000_000])
def test_mask_refuses_other_ids(node: int) -> None:
    with pytest.raises(HintError, match=f"{node} is outside 0-63"):
        numa_mask([0, node])


@given(MASKS, MASKS)
def test_narrower_is_a_strict_total_order_with_its_key(one: int, other: int) -> None:
    assert is_narrower(one, other) == (narrowness(one) < narrowness(other))
    assert [is_narrower(one, other), is_narrower(other, one), one == other].count(True) == 1


def test_fewer_nodes_are_narrower_then_lower_ones() -> None:
    assert is_narrower(0b1000, 0b0011)
    assert is_narrower(0b0011, 0b0101)
    assert not is_narrower(0b0101, 0b0101)


@given(NODES)
def test_every_combination_once_smaller_ones_first(nodes: list[int]) -> None:
    masks = list(iter_numa_masks(nodes))
    assert len(masks) == len(set(masks)) == 2 ** len(nodes) - 1
    assert functools.reduce(int.__or__, masks, 0) == numa_mask(nodes)
    sizes = [mask.bit_count() for mask in masks]
    assert sizes == sorted(sizes)


def test_combinations_follow_the_order_of_the_nodes() -> None:
    assert [list(iter_bits(mask)) for mask in iter_numa_masks([3, 1, 0])] == [
        [3], [1], [0], [1, 3], [0, 3], [0, 1], [0, 1, 3],
    ]  # fmt: skip


def test_masks_for_people() -> None:
    assert format_numa_mask(TopologyHint(0b101, preferred=True).mask) == "{0,2}"
    assert format_numa_mask(0) == "{}"
    assert format_numa_mask(None) == "any"


def test_average_distance_counts_every_ordered_pair() -> None:
    numa = NUMAInfo((0, 2), {0: [10, 0, 21], 2: [20, 0, 10]})
    numa.check_distances()
    assert numa.mask == 0b101
    assert numa.average_distance(0b001) == 10.0
    assert numa.average_distance(0b101) == (10 + 21 + 20 + 10) / 4
    assert numa.average_distance(0) == 0.0


@pytest.mark.parametrize(
    ("distances", "message"),
    [
        (None, "error getting NUMA distances from cadvisor"),
        ({0: [10, 20, 20]}, "error getting NUMA distances from cadvisor"),
        ({0: [10, 20], 2: [20, 10]}, "node 0 end at node id 1, but the machine has node 2"),
    ],
)
def test_distances_must_cover_the_nodes(
    distances: dict[int, list[int]] | None, message: str
) -> None:
    with pytest.raises(HintError, match=message):
        NUMAInfo((0, 2), distances).check_distances()
