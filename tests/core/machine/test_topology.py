"""The rows that make a topology, and those that cannot."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pinfold.core.machine.topology import CPUTopology, TopologyError

Row = tuple[int, int, int, int, int]


def row(cpu: int, core: int) -> Row:
    return cpu, core, 0, 0, 0


def test_a_core_may_be_named_by_its_lowest_cpu_or_by_one_below() -> None:
    """On a machine whose nodes overlap, the kubelet names a core by a CPU that it has not."""
    assert dict(CPUTopology.from_rows([row(2, 2), row(3, 2)]).cores) == {2: 0b1100}
    assert dict(CPUTopology.from_rows([row(2, 1), row(3, 1)]).cores) == {1: 0b1100}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "a topology needs at least one CPU"),
        ([row(-1, -1)], "CPU id -1 is negative"),
        ([row(0, 0), row(1, 0), row(0, 0)], "CPU 0 appears twice"),
        # Also where it is the very next one, and one of its own.
        ([row(0, 1), row(1, 1)], "core 1 is named by a CPU above its lowest"),
        ([row(0, 0), row(4, 6), row(6, 6)], "core 6 is named by a CPU above its lowest"),
    ],
)
def test_rows_that_cannot_be_one_machine(rows: Sequence[Row], words: str) -> None:
    with pytest.raises(TopologyError) as refused:
        CPUTopology.from_rows(rows)
    assert str(refused.value) == words


@pytest.mark.parametrize("count", ["num_cpus", "num_cores", "num_sockets", "num_uncore_caches"])
def test_counts_are_the_rows_own_or_given_and_at_least_one(count: str) -> None:
    rows = [row(cpu, cpu & ~1) for cpu in range(4)]
    counted = {"num_cpus": 4, "num_cores": 2, "num_sockets": 1, "num_uncore_caches": 1}
    assert getattr(CPUTopology.from_rows(rows), count) == counted[count]
    assert getattr(CPUTopology.from_rows(rows, **{count: 1}), count) == 1
    with pytest.raises(TopologyError, match=f"^{count} is 0, must be at least 1$"):
        CPUTopology.from_rows(rows, **{count: 0})


def test_whether_all_cores_are_alike() -> None:
    pairs = [row(cpu, cpu & ~1) for cpu in range(4)]
    assert CPUTopology.from_rows(pairs).cores_alike
    assert not CPUTopology.from_rows(pairs[:3]).cores_alike, "one has one thread"
    assert not CPUTopology.from_rows(pairs, num_cores=4).cores_alike, "the kubelet divides by four"
