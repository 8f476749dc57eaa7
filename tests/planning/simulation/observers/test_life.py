"""The life of a node: what happened to it, how it was at each moment, and which moments."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.simulation.engine import simulate
from pinfold.planning.simulation.experiment.specification import FleetKind
from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.moving import Moves
from pinfold.planning.simulation.fleet.nodes import FleetNode, RefusedBy
from pinfold.planning.simulation.fleet.shapes import PodShape
from pinfold.planning.simulation.observers.life import (
    Between,
    Life,
    NoMomentError,
    UnknownNodeError,
    life_of,
    node_number,
)
from pinfold.planning.simulation.observers.observer import Observer
from tests.scenes.pod_lines import CROWDS, PodLine, small_config, small_run

DYNAMIC: Final = small_config(
    "single-numa-node",
    cpu_manager_policy="dynamic",
    own=OwnPolicies(dynamic=DynamicOptions(make_room=True, rebalance_period="30s")),
)
LINES: Final[tuple[PodLine, ...]] = (
    (0, 20, 2),  # CPUs 1-2
    (1, 999, 2),  # CPUs 4-5
    (2, 999, 1),  # CPU 3
    (25, 1, 7),  # 4 are free: it finds no node
    (30, 999, 4),  # refused, or the second one moves to CPUs 1-2
    (60, 1, 4),
)


def owned(life: Life, place: int) -> dict[int, str]:
    """The CPUs of each pod in a picture."""
    pods = life.pictures[place].pods
    return {pod: str(CPUSet.from_mask(answer.claim)) for pod, answer in pods.items()}


def test_the_chosen_moments() -> None:
    life = life_of(small_run(LINES, small_config("single-numa-node")), "node-0")
    told = [(one.at, one.why) for one in life.pictures]
    assert told == [
        (2.0, ("the fullest",)),
        (30.0, ("the first refusal",)),
        (60.0, ("the end of the run",)),
    ]
    assert [owned(life, place) for place in range(3)] == [
        {0: "1-2", 1: "4-5", 2: "3"},
        {1: "4-5", 2: "3"},
        {1: "4-5", 2: "3"},
    ]
    first, second, last = (one.before for one in life.pictures)
    assert (first.came, first.came_cpus, first.ended, first.refused) == (3, 5, 0, {})
    assert (second.came, second.ended) == (0, 1)
    assert second.refused == {"TopologyAffinityError": 1}
    # Of the last pod it was asked, too.
    assert last.refused == {"TopologyAffinityError": 1}


def test_moves_are_among_them() -> None:
    life = life_of(small_run(LINES, DYNAMIC), "node-0")
    told = [(one.at, one.why) for one in life.pictures]
    assert told == [
        (30.0, ("the first moves",)),
        (30.0, ("the fullest",)),
        (60.0, ("the end of the run",)),
    ]
    assert owned(life, 0) == {1: "1-2", 2: "3"}
    assert owned(life, 1) == {1: "1-2", 2: "3", 4: "4-7"}
    last = life.pictures[0].before.last
    assert last is not None
    assert (last.what, last.pod, last.why) == ("moved", 1, "makeRoom")


def test_who_is_spread_most_is_among_them() -> None:
    lines = ((0, 50, 2), (1, 999, 3), (2, 999, 2), (130, 1, 9))
    life = life_of(small_run(lines, small_config("best-effort")), "node-0")
    assert life.pictures[0].why == ("the fullest", "the most spread")
    assert life.pictures[0].at == 2.0


def test_moments_that_are_asked_for() -> None:
    life = life_of(small_run(LINES, DYNAMIC), "node-0", (29.5, 1.0, 30.0, 1.0))
    assert [(one.at, one.why) for one in life.pictures] == [(1.0, ()), (29.5, ()), (30.0, ())]
    assert [owned(life, place) for place in range(3)] == [
        {0: "1-2", 1: "4-5"},
        {1: "4-5", 2: "3"},
        {1: "1-2", 2: "3", 4: "4-7"},
    ]


def test_a_node_to_which_nothing_happens() -> None:
    run = small_run(((0, 1, 1), (5, 1, 1)), small_config(), nodes=3)
    lives = [life_of(run, f"node-{place}") for place in range(3)]
    quiet = [life for life in lives if not life.events]
    assert quiet
    (only,) = quiet[0].pictures
    assert (only.why, only.before, only.pods) == (("the end of the run",), Between(), {})


def test_a_moment_after_the_end_is_refused() -> None:
    with pytest.raises(NoMomentError, match=r"over after 60 seconds .* not for 60\.5"):
        life_of(small_run(LINES, DYNAMIC), "node-0", (3.0, 60.5))


def test_the_names_of_nodes() -> None:
    machine = parse_short_form("1s2c2t")
    kinds = (FleetKind("a-1", machine, 3), FleetKind("a", machine, 2), FleetKind("b", machine, 1))
    names = {"a-1-0": 0, "a-1-2": 2, "a-0": 3, "a-1": 4, "b-0": 5}
    assert {name: node_number(kinds, name) for name in names} == names


@pytest.mark.parametrize(
    "name",
    [
        "",
        "b",
        "b-",
        "b-1",
        "b--0",
        "b-00",
        "b-+0",
        "b-\N{ARABIC-INDIC DIGIT ZERO}",
        "a-3",
        "-0",
        "c-0",
        "b-" + "9" * 5000,
    ],
)
def test_a_node_that_is_not_there(name: str) -> None:
    machine = parse_short_form("1s2c2t")
    kinds = (FleetKind("a", machine, 3), FleetKind("b", machine, 1))
    with pytest.raises(UnknownNodeError, match=r"there are a-0 to a-2, b-0$") as refused:
        node_number(kinds, name)
    assert len(str(refused.value)) < 200


class Snapshots(Observer):
    """Keeps how the nodes were after each event."""

    def __init__(self) -> None:
        self.seen: dict[float, dict[str, dict[int, int]]] = {}

    def _see(self, at: float, node: FleetNode | None) -> None:
        if node is not None:
            claims = {pod: answer.claim for pod, answer in node.pods.items()}
            self.seen.setdefault(at, {})[node.name] = claims

    def placed(self, at: float, pod: int, attempt: int, node: FleetNode, answer: Answer) -> None:
        del pod, attempt, answer
        self._see(at, node)

    def refused(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        del pod, attempt, shape
        self._see(at, by and by[0])

    def ended(self, at: float, pod: int, node: FleetNode, answer: Answer) -> None:
        del pod, answer
        self._see(at, node)

    def moved(self, moves: Moves) -> None:
        self._see(moves.at, moves.node)


@settings(max_examples=50, deadline=None)
@given(lines=CROWDS, dynamic=st.booleans(), place=st.integers(0, 1))
def test_pictures_are_as_the_node_was(
    lines: tuple[PodLine, ...], dynamic: bool, place: int
) -> None:
    config = DYNAMIC if dynamic else small_config("best-effort")
    run, seen = small_run(lines, config, nodes=2), Snapshots()
    simulate(run, (seen,))
    name = f"node-{place}"
    moments = sorted(at for at, nodes in seen.seen.items() if name in nodes)
    life = life_of(run, name, moments)
    if not moments:
        assert not life.events
        return
    assert [one.at for one in life.pictures] == moments
    for picture in life.pictures:
        claims = {pod: answer.claim for pod, answer in picture.pods.items()}
        assert claims == seen.seen[picture.at][name]
    every = [one.before for one in life.pictures]
    ended, came = sum(one.ended for one in every), sum(one.came for one in every)
    assert came - ended == len(life.node.pods)
