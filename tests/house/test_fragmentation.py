"""The fragmentation benchmark counts what it says."""

from __future__ import annotations

from benchmarks.fragmentation import MACHINES, Figures, FragmentedNode, row, simulate
from benchmarks.fragmentation_plot import as_svg
from msgspec import to_builtins

from pinfold.ports.arrivals import Arrival, PodSize

_LONG = 10.0**6


def comes(at: float, cpus: int, ends: float = _LONG) -> Arrival:
    return Arrival(at, ends - at, PodSize(1000 * cpus, 0))


CROWD = [comes(1.0 + n, cpus) for n, cpus in enumerate((30, 40, 16, 30))]
"""The last one would fit into the first NUMA node, were the third in the other one."""


def counted(topology_manager: str, *, dynamic: bool) -> Figures:
    node = FragmentedNode(2, topology_manager, dynamic=dynamic)
    node.counting = True
    for arrival in CROWD:
        node.come(arrival)
    node.pass_time(3604.0, 4.0)
    return node.finish(3604.0)


def test_a_scheduler_sends_only_what_there_are_cpus_for() -> None:
    node = FragmentedNode(2, "best-effort", dynamic=False)
    crowd = [comes(1.0 + n, 16) for n in range(200)]
    figures = simulate(crowd, node)
    assert (node.free, len(node.running)) == (126 - 7 * 16, 7)
    assert figures.arrivals == 0, "the first ones fill the node"


def test_pods_of_one_size_never_move() -> None:
    node = FragmentedNode(8, "best-effort", dynamic=True)
    pairs = [comes(10.0 * n, 2, 10.0 * n + 7 * (n % 91) + 1) for n in range(400)]
    figures = simulate(pairs, node)
    assert (figures.arrivals, figures.moves, figures.split) == (300, 0, 0)


def test_room_is_made_for_who_would_be_rejected() -> None:
    static, dynamic = (counted("single-numa-node", dynamic=d) for d in (False, True))
    assert (static.rejected, static.moves) == (1, 0)
    assert (dynamic.rejected, dynamic.moves, dynamic.moved_cpus) == (0, 1, 16)


def test_who_is_split_is_counted_until_he_is_whole() -> None:
    static, dynamic = (counted("best-effort", dynamic=d) for d in (False, True))
    assert (static.split, static.moves, static.split_hours) == (1, 0, 1.0)
    assert dynamic.split == 0
    assert 0 < dynamic.moves <= 2
    assert dynamic.split_hours == 296 / 3600, "until the first rebalance"
    assert static.hours == dynamic.hours


def test_all_machines_have_as_many_cpus() -> None:
    for numa_nodes in MACHINES:
        node = FragmentedNode(numa_nodes, "best-effort", dynamic=False)
        assert node.free == 126
        assert len(node.objective.topology.numa_nodes) == numa_nodes


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
