"""What holds at every event of every run, told by a witness that keeps books of its own."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold import NodeConfig, open_machine, parse_short_form
from pinfold.admission.model import NodeError
from pinfold.documents.simulation.results import Run
from pinfold.planning.simulation.engine import Engine, simulate
from pinfold.planning.simulation.experiment.specification import (
    FleetKind,
    Retry,
    RunSpec,
    Scheduling,
)
from tests.roots import SHARED
from tests.scenes.fleet_witness import FleetWitness
from tests.scenes.simulated_fleets import ListedArrivals, run_specs

_ODD = (
    "20em64t-hybrid-1p6c2t+2ca4co1t",
    "16em64t-4s2c2t-offlines",
    "16amd64-8n2c",
    "20s390-2g6s4c",
)
"""Machines with uneven cores, CPUs that are offline, eight NUMA nodes, and books."""


def witnessed(spec: RunSpec) -> FleetWitness:
    try:
        witness = FleetWitness(spec)
    except NodeError:
        assume(False)  # noqa: FBT003 - hypothesis' own signature
        raise
    assert witness.engine.go()
    return witness


def check_whole(witness: FleetWitness) -> Run:
    run = witness.engine.result(complete=True)
    assert run.replayed.different == 0
    assert run.replayed.decisions >= witness.decisions
    times = [one[0] for one in witness.story]
    assert all(before <= after for before, after in pairwise(times))
    assert {len(column) for column in run.series.values()} == {240}
    last = {name: column[-1] for name, column in run.series.items()}
    kinds = [one[1] for one in witness.story]
    for name in ("placed", "refused", "rejected", "ended"):
        assert last[name] == kinds.count(name)
    assert (last["time"], last["runningPods"]) == (run.until, len(witness.running))
    for node in witness.engine.nodes:
        assert node.state().ledger == witness.states[node.number].ledger
    witness.check_scheduler()
    return run


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(run_specs())
def test_every_decision_is_the_planners_and_no_pod_and_no_cpu_is_lost_or_had_twice(
    spec: RunSpec,
) -> None:
    check_whole(witnessed(spec))


@pytest.mark.parametrize("name", _ODD)
@pytest.mark.skipif(not (SHARED / "machines").is_dir(), reason="no captured machines here")
def test_so_it_is_on_machines_that_are_not_even(name: str) -> None:
    machine = open_machine(str(SHARED / "machines" / f"{name}.tar.xz"))

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(run_specs(machine))
    def hold(spec: RunSpec) -> None:
        check_whole(witnessed(spec))

    hold()


def _seen(spec: RunSpec) -> tuple[list[Any], Run]:
    witness = witnessed(spec)
    return witness.story, witness.engine.result(complete=True)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(run_specs(), st.sampled_from([0.0, 1.0, 5.0, 6.25, 20.0]))
def test_a_run_that_is_cut_is_the_beginning_of_the_whole_one(spec: RunSpec, cut: float) -> None:
    whole = replace(spec, stop_after=inf, stop_arrivals=None)
    story, run = _seen(whole)
    shorter, part = _seen(replace(whole, stop_after=cut))
    assert shorter == [one for one in story if one[0] <= cut]
    assert part.until == min(cut, run.until)


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(run_specs(), st.integers(0, 12))
def test_a_warm_up_changes_what_is_counted_and_nothing_that_happens(
    spec: RunSpec, warm_up: int
) -> None:
    all_of_it, run = _seen(replace(spec, warm_up=0))
    story, counted = _seen(replace(spec, warm_up=warm_up))
    assert story == all_of_it
    assert counted.series == run.series
    assert counted.fates.arrived <= run.fates.arrived


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(run_specs())
def test_whoever_watches_changes_nothing(spec: RunSpec) -> None:
    _, run = _seen(spec)
    alone = simulate(replace(spec, replay_every=10_000), worst=0).run
    assert replace(alone, replayed=run.replayed) == run


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(run_specs())
def test_what_one_part_draws_changes_no_draws_of_another(spec: RunSpec) -> None:
    """Other schedulers, other retries: the same pods come, and the same ones are Guaranteed."""
    other = replace(
        spec, scheduling=Scheduling("MostAllocated"), retry=Retry(1.0, 0), configuration="other"
    )
    one, two = (witnessed(each).engine.arrivals for each in (spec, other))
    assert (one.at, one.lifetime, one.shape) == (two.at, two.lifetime, two.shape)
    assert [each.size for each in one.shapes] == [each.size for each in two.shapes]
    assert [each.guaranteed for each in one.shapes] == [each.guaranteed for each in two.shapes]
    assert spec.arrivals == other.arrivals


def test_a_fleet_of_one_kind_in_two_places_is_watched_by_its_names() -> None:
    """Nodes are numbered kind after kind, and named within their kind."""
    kinds = tuple(FleetKind(name, parse_short_form("1s2c1t"), 2) for name in ("left", "right"))
    spec = RunSpec("names", NodeConfig(), kinds, ListedArrivals(()))
    names = [node.name for node in Engine(spec).nodes]
    assert names == ["left-0", "left-1", "right-0", "right-1"]
