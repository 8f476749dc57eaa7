"""Moves in a simulation: the agent's own, within its budget, and nobody has a CPU twice."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.admission.admission import decide
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.simulation.results import Moves as CountedMoves
from pinfold.planning.simulation.engine import Engine, simulate
from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.moving import Moves
from pinfold.planning.simulation.fleet.nodes import FleetNode, RefusedBy
from pinfold.planning.simulation.fleet.shapes import PodShape
from pinfold.planning.simulation.observers.observer import Observer
from tests.scenes.pod_lines import CROWDS, PodLine, small_config, small_run
from tests.scenes.simulated_fleets import GIB


def config(topology: str = "best-effort", policy: str = "dynamic", **dynamic: Any) -> NodeConfig:
    """The policy ``dynamic`` with these options."""
    own = OwnPolicies(dynamic=DynamicOptions(**dynamic))
    return small_config(topology, cpu_manager_policy=policy, own=own)


ASIDE: Final[tuple[PodLine, ...]] = (
    (0, 20, 2),  # CPUs 1-2
    (1, 999, 2),  # CPUs 4-5
    (2, 999, 1),  # CPU 3
    (30, 999, 4),  # 4 CPUs are free: 1-2 and 6-7
    (60, 1, 1),
)


def test_room_is_made_for_who_would_be_refused() -> None:
    # The second pod moves from 4-5 to 1-2, and the fourth has NUMA node 1 for itself.
    found = simulate(small_run(ASIDE, config("single-numa-node", make_room=True)))
    run = found.run
    assert run.moves == CountedMoves(
        made_room=1, rebalances=0, containers=1, cpus=2, memory_bytes=GIB
    )
    assert run.fates.refusals == {"Unschedulable": 1}
    claims = {pod: str(CPUSet.from_mask(one.claim)) for pod, one in found.nodes[0].pods.items()}
    assert claims == {1: "1-2", 2: "3", 3: "4-7"}
    assert run.series["moved"][-1] == 1


@pytest.mark.parametrize(
    "other",
    [
        config("single-numa-node"),
        config("single-numa-node", policy="static"),
        config("single-numa-node", make_room=True, opt_in=True),
        config("single-numa-node", make_room=True, moves_per_hour=0),
    ],
    ids=["not-asked-for", "static", "opt-in", "no-budget"],
)
def test_nobody_moves_where_that_is_not_configured(other: NodeConfig) -> None:
    run = simulate(small_run(ASIDE, other)).run
    assert run.fates.refusals == {"TopologyAffinityError": 1}
    assert run.moves.containers == run.moves.made_room == 0


SPLIT: Final[tuple[PodLine, ...]] = (
    (0, 50, 2),  # CPUs 1-2
    (1, 999, 3),  # CPUs 4-6
    (2, 999, 2),  # CPUs 3 and 7, until there is a better place
    (130, 1, 9),
)


def test_who_is_split_moves_when_the_period_is_over() -> None:
    # The first pod ends after 50 s; the third has one CPU of it at 60 s, and keeps CPU 3.
    found = simulate(small_run(SPLIT, config(rebalance_period="1m")))
    run = found.run
    assert run.moves == CountedMoves(
        made_room=0, rebalances=1, containers=1, cpus=1, memory_bytes=GIB
    )
    claims = {pod: str(CPUSet.from_mask(one.claim)) for pod, one in found.nodes[0].pods.items()}
    assert claims == {1: "4-6", 2: "1,3"}
    # Of 130 s, 58 were split.
    assert run.averages.split_containers == pytest.approx(58 / 130)
    assert simulate(small_run(SPLIT, config())).run.averages.split_containers == pytest.approx(
        128 / 130
    )


def test_who_has_to_wait_for_the_budget_moves_later() -> None:
    lines: tuple[PodLine, ...] = (
        (0, 50, 2),  # CPUs 1-2
        (1, 9_999, 3),  # CPUs 4-6
        (2, 148, 2),  # CPUs 3 and 7, from 60 s on 1 and 3
        (100, 9_999, 2),  # CPUs 2 and 7; there is a better place from 150 s on
        (4_000, 1, 9),
    )
    run = simulate(small_run(lines, config(rebalance_period="1m", moves_per_hour=1))).run
    assert (run.moves.rebalances, run.moves.containers) == (2, 2)
    # One move in an hour: the second one an hour after the first, though nothing else happens.
    assert run.averages.split_containers == pytest.approx((58 + 3_560) / 4_000)
    often = simulate(small_run(lines, config(rebalance_period="1m", moves_per_hour=2))).run
    assert often.averages.split_containers == pytest.approx((58 + 80) / 4_000)


def test_moves_during_the_warm_up_are_not_counted() -> None:
    run = simulate(small_run(SPLIT, config(rebalance_period="1m"), warm_up=61.0)).run
    assert run.moves.containers == 0
    assert run.series["moved"][-1] == 1


class Watching(Observer):
    """Asserts after each event what always holds, and keeps what was moved."""

    def __init__(self) -> None:
        self.moves: list[Moves] = []

    def placed(self, at: float, pod: int, attempt: int, node: FleetNode, answer: Answer) -> None:
        del at, pod, attempt, answer
        assert_sound(node)

    def refused(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        del at, pod, attempt
        if by is not None:
            node, _ = by
            assert_sound(node)
            assert not decide(node.model.node, node.state(), shape.pod).admitted

    def ended(self, at: float, pod: int, node: FleetNode, answer: Answer) -> None:
        del at, pod, answer
        assert_sound(node)

    def moved(self, moves: Moves) -> None:
        assert_sound(moves.node)
        for one in moves.moved:
            assert one.before.claim.bit_count() == one.after.claim.bit_count()
            assert one.before.claim != one.after.claim
            assert moves.node.pods[one.pod] is one.after
        self.moves.append(moves)


def assert_sound(node: FleetNode) -> None:
    """No CPU has two owners, none is lost, and nobody owns a reserved one."""
    every = node.model.empty.ledger.default.mask
    owned = 0
    for answer in node.pods.values():
        assert not owned & answer.claim
        owned |= answer.claim
    assert not owned & node.free
    assert owned | node.free == every
    assert not owned & node.model.config.reserved_system_cpus.mask


options = st.fixed_dictionaries(
    {
        "rebalance_period": st.sampled_from(["never", "30s", "1m"]),
        "make_room": st.booleans(),
        "moves_per_hour": st.integers(0, 12),
        "most_moved": st.integers(1, 4),
    }
)
machines = st.sampled_from(["2s4c1t@16Gi", "2s2c2t@16Gi", "4s2c2t@16Gi", "1s4n4c1t@16Gi"])
managers = st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"])


@settings(max_examples=150, deadline=None)
@given(lines=CROWDS, dynamic=options, machine=machines, topology=managers)
def test_moves_are_sound_and_within_the_budget(
    lines: tuple[PodLine, ...], dynamic: dict[str, Any], machine: str, topology: str
) -> None:
    watching = Watching()
    engine = Engine(small_run(lines, config(topology, **dynamic), machine, 2), (watching,))
    engine.go()
    run = engine.result(complete=True)
    assert run.replayed.different == 0
    fates = run.fates
    assert fates.arrived == fates.running + fates.ended + fates.rejected + fates.waiting
    for node in engine.nodes:
        times = [m.at for m in watching.moves if m.node is node for _ in m.moved]
        over = zip(times, times[dynamic["moves_per_hour"] :], strict=False)
        assert all(later - earlier >= 3600 for earlier, later in over)
    assert all(len(one.moved) <= dynamic["most_moved"] for one in watching.moves)
    assert run.moves.containers == sum(len(one.moved) for one in watching.moves)
    assert all(earlier.at <= later.at for earlier, later in pairwise(watching.moves))
    gauges = engine.gauges
    pods = [answer for node in engine.nodes for answer in node.pods.values()]
    assert gauges.split == sum(one.is_split for one in pods)
    assert gauges.exclusive == sum(one.claim.bit_count() for one in pods)
    assert gauges.free == sum(node.model.free_cpus(node.free) for node in engine.nodes)
    assert gauges.idle_sockets == sum(node.model.idle_sockets(node) for node in engine.nodes)
