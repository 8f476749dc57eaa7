"""The rows that a run leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from hypothesis import HealthCheck, assume, given, settings
from msgspec.structs import replace

from pinfold import CPUSet, NodeConfig, parse_short_form
from pinfold.adapters.events.file import EventFile
from pinfold.admission.model import NodeError
from pinfold.core.kubelet.own_policies import DynamicOptions, OwnPolicies
from pinfold.planning.simulation.engine import simulate
from pinfold.planning.simulation.experiment.specification import FleetKind, Retry, RunSpec
from pinfold.planning.simulation.observers.recording import Recording
from pinfold.ports.arrivals import Arrival, PodSize
from pinfold.ports.events import RunEvent
from tests.scenes.fleet_witness import FleetWitness
from tests.scenes.simulated_fleets import GIB, ListedArrivals, run_specs


class Kept:
    """Keeps the rows."""

    def __init__(self) -> None:
        self.rows: list[RunEvent] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def add(self, event: RunEvent) -> None:
        self.rows.append(event)


TINY = RunSpec(
    configuration="tiny",
    config=NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0])),
    kinds=(FleetKind("node", parse_short_form("1s4c1t"), 1),),
    arrivals=ListedArrivals(
        (
            Arrival(5, 2, PodSize(2000, GIB)),
            Arrival(6, 9, PodSize(2000, GIB)),
            Arrival(6.25, 9, PodSize(500, GIB)),
            Arrival(9, 9, PodSize(9000, GIB)),
            Arrival(12, 9, PodSize(0, 0)),
        )
    ),
    retry=Retry(2, 1),
    seed=3,
)


def test_the_file_of_a_tiny_run(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    with EventFile(str(path)) as file:
        with file.parts.part(0) as writer:
            simulate(TINY, [Recording(TINY, writer)])
        file.put_together()
    assert path.read_text() == (
        "configuration,seed,at_seconds,event,pod,attempt,node,cpus,qos,given,reason\n"
        "tiny,3,0.0,placed,0,1,node-0,2.0,Guaranteed,1-2,\n"
        "tiny,3,1.0,refused,1,1,,2.0,Guaranteed,,Unschedulable\n"
        "tiny,3,1.25,placed,2,1,node-0,0.5,Burstable,,\n"
        "tiny,3,2.0,ended,0,,node-0,2.0,Guaranteed,1-2,\n"
        "tiny,3,3.0,placed,1,2,node-0,2.0,Guaranteed,1-2,\n"
        "tiny,3,4.0,refused,3,1,,9.0,Guaranteed,,Unschedulable\n"
        "tiny,3,6.0,refused,3,2,,9.0,Guaranteed,,Unschedulable\n"
        "tiny,3,6.0,rejected,3,,,9.0,Guaranteed,,Unschedulable\n"
        "tiny,3,7.0,placed,4,1,node-0,0.0,BestEffort,,\n"
    )


def test_who_moved_has_a_row_with_the_new_cpus() -> None:
    """Two sockets of 3 CPUs, CPU 0 reserved.

    Pods of one CPU get 1, 2, 3 and 4, of which 1 ends: a pod of two has 1 and 5.  Then CPU 2 is
    free, and after 5 s it moves: to 1 and 2.
    """
    dynamic = DynamicOptions(rebalance_period="5s")
    spec = replace(
        TINY,
        config=replace(TINY.config, cpu_manager_policy="dynamic", own=OwnPolicies(dynamic=dynamic)),
        kinds=(FleetKind("node", parse_short_form("2s3c1t"), 1),),
        arrivals=ListedArrivals(
            (
                Arrival(0, 1, PodSize(1000, GIB)),
                Arrival(0, 4, PodSize(1000, GIB)),
                Arrival(0, 90, PodSize(1000, GIB)),
                Arrival(0, 90, PodSize(1000, GIB)),
                Arrival(2, 90, PodSize(2000, GIB)),
                Arrival(6, 1, PodSize(500, GIB)),
            )
        ),
    )
    kept = Kept()
    run = simulate(spec, [Recording(spec, kept)]).run
    moved = [one for one in kept.rows if one.event == "moved"]
    assert run.moves.containers == len(moved) == 1
    assert moved[0][2:] == (5, "moved", 4, None, "node-0", 2.0, "Guaranteed", "1-2", "rebalance")
    assert next(one for one in kept.rows if one.pod == 4).given == "1,5"


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(run_specs())
def test_every_event_has_its_row(spec: RunSpec) -> None:
    """As the witness has seen them, who watches another run of the same."""
    kept = Kept()
    try:
        witness = FleetWitness(spec)
        simulate(spec, [Recording(spec, kept)])
    except NodeError:
        assume(False)  # noqa: FBT003 - hypothesis' own signature
    witness.engine.go()
    seen = [(one.at_seconds, one.event, one.pod) for one in kept.rows if one.event != "moved"]
    assert seen == [tuple(one[:3]) for one in witness.story if one[1] != "moved"]
    for one in kept.rows:
        assert (one.configuration, one.seed) == (spec.configuration, spec.seed)
        assert (one.reason == "") == (one.event in {"placed", "ended"})
        assert (one.node is None) == (
            one.event == "rejected" or (one.event == "refused" and one.reason == "Unschedulable")
        )
        if one.given and one.event == "placed":
            assert len(CPUSet.parse(one.given)) >= one.cpus
