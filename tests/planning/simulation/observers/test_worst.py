"""The worst decisions of a run: which they are, and that their reasons are explain's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.documents.simulation.results import WorstDecision
from pinfold.planning.simulation.engine import Engine, simulate
from pinfold.planning.simulation.experiment.specification import RunSpec
from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.nodes import FleetNode, RefusedBy
from pinfold.planning.simulation.fleet.shapes import PodShape
from pinfold.planning.simulation.observers.observer import Observer
from pinfold.planning.simulation.observers.worst import WorstDecisions
from tests.scenes.pod_lines import CROWDS, PodLine, small_config, small_run

STRICT: Final = "single-numa-node"
WHY: Final = """\
policy single-numa-node needs one NUMA node for 3 CPUs, and the best affinity left is any; in the \
way: cpu manager (cpu); cpu: 1 free at NUMA node 0, 2 at 1
what would admit it: ask for 2 CPUs instead of 3 in container main (requests and limits cpu: 2)
what would admit it: topologyManagerPolicy: best-effort
what would admit it: 1 other container on other CPUs, 2 of them new to them
nobody makes these moves as it is configured; with cpuManagerPolicy: dynamic and makeRoom: true an \
agent does
"""


def run_of(lines: Sequence[PodLine], topology: str, **other: Any) -> RunSpec:
    """One node of 2 NUMA nodes with 4 CPUs each."""
    return small_run(lines, small_config(topology), **other)


def test_a_refusal_though_enough_was_free() -> None:
    # CPUs 1-2 and 4-5 are taken, 3 and 6-7 are free.
    (one,) = simulate(run_of(((0, 9, 2), (1, 9, 2), (2, 9, 3), (4, 1, 1)), STRICT)).run.worst
    assert one == WorstDecision(
        at=2.0,
        node="node-0",
        pod="pod-2",
        cpus=3,
        admitted=False,
        reason="TopologyAffinityError",
        free_cpus=3,
        why_here="refused although 3 CPUs were free",
        explanation=WHY.splitlines(),
    )


def test_of_one_size_the_worst_is_kept_and_of_equals_the_first() -> None:
    lines = (
        (0, 100, 2),  # CPUs 1-2
        (1, 999, 2),  # CPUs 4-5
        (2, 1, 3),  # 3 and 6-7 are free
        (101, 999, 1),  # CPU 1
        (102, 1, 3),  # 2-3 and 6-7 are free
        (103, 1, 3),  # as before
        (104, 999, 1),  # CPU 2
        (105, 1, 3),  # 3 and 6-7 are free
    )
    (one,) = simulate(run_of(lines, STRICT)).run.worst
    assert (one.at, one.pod, one.free_cpus) == (102.0, "pod-4", 4)


def test_one_that_was_let_in_on_more_than_it_needs() -> None:
    (one,) = simulate(run_of(((0, 9, 2), (1, 9, 3), (2, 9, 2), (4, 1, 1)), "best-effort")).run.worst
    assert (one.pod, one.admitted, one.free_cpus, one.cpus) == ("pod-2", True, 2, 2)
    assert one.why_here == "on 1 more NUMA node than 2 CPUs need"
    assert one.explanation[1:] == ["cpu: 1 free at NUMA node 0, 1 at 1", "CPUs 3,7"]


def test_what_was_decided_during_the_warm_up_is_passed_over() -> None:
    lines = ((0.0, 9.0, 2), (1.0, 9.0, 3), (2.0, 9.0, 2), (4.0, 1.0, 1))
    assert simulate(run_of(lines, "best-effort", warm_up=3.0)).run.worst == ()


def test_nobody_looks_for_them_where_none_are_wanted() -> None:
    lines = ((0.0, 9.0, 2), (1.0, 9.0, 3), (2.0, 9.0, 2), (4.0, 1.0, 1))
    assert simulate(run_of(lines, "best-effort"), worst=0).run.worst == ()


class Every(Observer):
    """Keeps all decisions of a run that could be among the worst, by themselves."""

    def __init__(self) -> None:
        self.refused_with: dict[int, int] = {}
        self.beyond: dict[tuple[int, int], int] = {}

    def placed(self, at: float, pod: int, attempt: int, node: FleetNode, answer: Answer) -> None:
        """Keep by how much it is spread most."""
        del at, pod, attempt, node
        for level, more in enumerate(answer.beyond):
            if more:
                key = level, answer.shape.cpus
                self.beyond[key] = max(more, self.beyond.get(key, 0))
                break

    def refused(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        """Keep how much was free."""
        del at, pod, attempt
        if by is not None:
            cpus, free = shape.cpus, by[0].model.free_cpus(by[0].free)
            self.refused_with[cpus] = max(free, self.refused_with.get(cpus, 0))


@settings(max_examples=100, deadline=None)
@given(
    lines=CROWDS,
    topology=st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    most=st.integers(1, 6),
)
def test_they_are_the_worst_of_all(lines: tuple[PodLine, ...], topology: str, most: int) -> None:
    every, kept = Every(), WorstDecisions()
    engine = Engine(run_of(lines, topology), (every, kept))
    engine.go()
    found = kept.found(100)
    assert {one.cpus: one.free_cpus for one in found if not one.admitted} == every.refused_with
    told = sorted(one.why_here for one in found if one.admitted)
    groups = ("NUMA node", "socket", "cache", "core")
    wanted = sorted(
        f"on {more} more {groups[level]}{'s' * (more > 1)} than "
        f"{cpus} CPU{'s need' if cpus > 1 else ' needs'}"
        for (level, cpus), more in every.beyond.items()
    )
    assert told == wanted
    few = kept.found(most)
    assert len(few) == min(most, len(found))
    assert all(one in found for one in few)
    # Refusals and those let in have their turn alike.
    if most > 1 and len({one.admitted for one in found}) > 1:
        assert len({one.admitted for one in few}) > 1
