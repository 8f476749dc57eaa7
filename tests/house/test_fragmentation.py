"""The fragmentation benchmark counts what it says."""

from __future__ import annotations

from benchmarks.fragmentation import MACHINES, Figures, Stream, counted, row, run_of
from benchmarks.fragmentation_plot import as_svg
from msgspec import to_builtins

from pinfold.planning.simulation.fleet.nodes import NodeModel
from tests.scenes.pod_lines import PodLine, listed

_LONG = 10.0**6
CROWD: tuple[PodLine, ...] = (
    (0.0, _LONG, 30),
    (1.0, _LONG, 40),
    (2.0, _LONG, 16),
    (3.0, _LONG, 30),
    (3603.0, _LONG, 127),
)
"""The fourth would fit into the first NUMA node, were the third in the other one.

No node is big enough for the last one, with which the hour is over.
"""


def of_crowd(topology_manager: str, *, dynamic: bool) -> Figures:
    """The figures of an hour with these pods."""
    return counted(run_of(listed(CROWD), 2, topology_manager, dynamic=dynamic), 2, warm_up=0)


def test_a_scheduler_sends_only_what_there_are_cpus_for() -> None:
    crowd = listed((1.0 + n, _LONG, 16) for n in range(200))
    figures = counted(run_of(crowd, 2, "best-effort", dynamic=False), 2, warm_up=3)
    assert figures.arrivals == 126 // 16 - 3, "the first ones fill the node"


def test_pods_of_one_size_never_move() -> None:
    pairs = listed((10.0 * n, 7.0 * (n % 91) + 1, 2 + n % 3) for n in range(400))
    figures = counted(run_of(Stream(pairs, 2), 8, "best-effort", dynamic=True), 8)
    assert (figures.arrivals, figures.moves, figures.split) == (300, 0, 0)


def test_room_is_made_for_who_would_be_rejected() -> None:
    static, dynamic = (of_crowd("single-numa-node", dynamic=d) for d in (False, True))
    assert (static.arrivals, static.rejected, static.moves) == (4, 1, 0)
    assert (dynamic.rejected, dynamic.moves, dynamic.moved_cpus) == (0, 1, 16)


def test_who_is_split_is_counted_until_he_is_whole() -> None:
    static, dynamic = (of_crowd("best-effort", dynamic=d) for d in (False, True))
    assert (static.split, static.moves, static.split_hours) == (1, 0, 1.0)
    assert dynamic.split == 0
    assert 0 < dynamic.moves <= 2
    assert dynamic.split_hours == 297 / 3600, "until the first rebalance"
    assert static.hours == dynamic.hours


def test_all_machines_have_as_many_cpus() -> None:
    for numa_nodes in MACHINES:
        spec = run_of(listed(()), numa_nodes, "best-effort", dynamic=False)
        model = NodeModel(spec.kinds[0], spec.config)
        assert model.assignable.bit_count() == 126
        assert len(model.objective.topology.numa_nodes) == numa_nodes


def test_a_row_and_a_picture() -> None:
    one = Figures(8, "best-effort", "dynamic", arrivals=200, split=5, split_hours=1, hours=50)
    one.moves = 10
    assert row(one) == (
        "| of the trace | 8 | `best-effort` | `dynamic` | 200 | 0 (0.0 %) | 5 (2.5 %) "
        "| 2.0 % | 0.050 |"
    )
    svg = as_svg([to_builtins(one)])
    assert "8 NUMA nodes, split, dynamic" in svg
    assert "2.5 %, 0.05 moves" in svg
