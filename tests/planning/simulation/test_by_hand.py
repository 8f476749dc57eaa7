"""Small traces of which the answer was worked out on paper."""

from __future__ import annotations

from math import inf

import pytest
from msgspec.structs import replace

from pinfold import CPUSet, NodeConfig, parse_short_form
from pinfold.documents.simulation.results import Averages, Fates, Replayed, Run, Spread
from pinfold.planning.simulation.engine import Engine, simulate
from pinfold.planning.simulation.experiment.specification import (
    FleetKind,
    Retry,
    RunSpec,
    Scheduling,
)
from pinfold.ports.arrivals import Arrival, PodSize
from tests.scenes.fleet_witness import FleetWitness
from tests.scenes.simulated_fleets import GIB, ListedArrivals


def pod(at: float, milli: int, lifetime: float) -> Arrival:
    return Arrival(at, lifetime, PodSize(milli, GIB))


STRICT = RunSpec(
    configuration="strict",
    config=NodeConfig(
        cpu_manager_policy="static",
        cpu_manager_policy_options={"full-pcpus-only": "true"},
        topology_manager_policy="single-numa-node",
        reserved_system_cpus=CPUSet([0]),
    ),
    kinds=(FleetKind("node", parse_short_form("2s2c2t"), 1),),
    arrivals=ListedArrivals(
        (
            pod(1000, 2000, 30),
            pod(1014, 3000, 50),
            pod(1020, 4000, 40),
            pod(1025, 2000, 10),
            pod(1035, 2000, 50),
            pod(1045, 1500, 60),
            pod(1062, 500, 8),
            pod(1064, 2000, 56),
            pod(1095, 4000, 10),
            pod(1118, 4000, inf),
            pod(1126, 2000, 1),
            pod(1130, 4000, 5),
        )
    ),
    retry=Retry(backoff=5, limit=1),
    warm_up=12,
    replay_every=1,
)


def test_a_node_that_gives_whole_cores_of_one_numa_node() -> None:
    """Two sockets, each one NUMA node: CPUs 0-3 and 4-7; the cores are 0-1, 2-3, 4-5 and 6-7.

    CPU 0 is reserved, so seven may be owned, of which CPU 1 is stranded: no core of its own is
    free.  The scheduler may place 7000m.  The first pod comes at 0; a refused one comes once more
    after 5 s.  Pods by number:

    ====  ===  =====  ====  ==========================================================
    time  pod  CPUs   ends
    ====  ===  =====  ====  ==========================================================
       0    0      2    30  2-3: of NUMA node 0, which has three free, one core
      14    1      3        2+3 <= 7, and no multiple of two threads: SMTAlignmentError
      19    1      3        the same: rejected
      20    2      4    60  4-7: NUMA node 0 has one free CPU
      25    3      2        2+4+2 > 7: Unschedulable
      30    0               ends before pod 3 comes again
      30    3      2    40  2-3, at its second attempt
      35    4      2        4+2+2 > 7: Unschedulable
      40    3               ends
      40    4      2    90  2-3, at its second attempt
      45    5    1.5        4+2+1.5 > 7: Unschedulable
      50    5    1.5        the same: rejected
      60    2               ends
      62    6    0.5    70  shares
      64    7      2   120  4-5: NUMA node 0 has only CPU 1
      70    6               ends
      90    4               ends: free are 1-3 and 6-7
      95    8      4        2+4 <= 7, and no NUMA node has four: TopologyAffinityError
     100    8      4        the same: rejected
     118    9      4        the same
     120    7               ends
     123    9      4        4-7, at its second attempt; stays
     126   10      2   127  2-3
     127   10               ends
     130   11      4        4+4 > 7: Unschedulable; the run is over
    ====  ===  =====  ====  ==========================================================

    Counted is from 12 on, 118 s; so pod 0 is no arrival, but its CPUs count.  CPU seconds of whole
    CPUs: pod 0 2*18, pod 2 4*40, pod 3 2*10, pod 4 2*50, pod 7 2*56, pod 9 4*7, pod 10 2*1: 458;
    with those of pod 6, 0.5*8, 462 are requested.  Free are 7*118-458 = 368, stranded 118.

    Idle sockets: one while only pod 0 runs (12 to 20), one from 60 to 62 (pod 4), none while pod 6
    shares, one from 90 to 120 (pod 7), two until 123, one until 126 and from 127 to 130: in socket
    seconds 8+2+30+6+3+3 = 52.  The node is busy from 12 to 120 and from 123 to 130.
    """
    run = simulate(STRICT).run
    assert (run.complete, run.until, run.counted_from, run.nodes) == (True, 130, 12, {"node": 1})
    assert run.fates == Fates(
        arrived=11,
        running=1,
        ended=6,
        rejected=3,
        waiting=1,
        placed_at={"1": 4, "2": 3},
        rejected_by={"SMTAlignmentError": 1, "TopologyAffinityError": 1, "Unschedulable": 1},
        refusals={"SMTAlignmentError": 2, "TopologyAffinityError": 3, "Unschedulable": 5},
    )
    assert _rounded(run.averages) == _rounded(
        Averages(
            allocatable_cpus=7,
            requested_cpus=462 / 118,
            exclusive_cpus=458 / 118,
            free_cpus=368 / 118,
            stranded_cpus=1,
            idle_sockets=52 / 118,
            busy_nodes=115 / 118,
            split_containers=0,
        )
    )
    assert run.spread == Spread(
        numa_nodes={"1": 6},
        sockets={"1": 6},
        caches={"1": 6},
        beyond={"numaNodes": 0, "sockets": 0, "caches": 0, "cores": 0},
    )
    assert run.replayed == Replayed(decisions=13, different=0)


def _rounded(averages: Averages) -> dict[str, float]:
    return {name: round(getattr(averages, name), 9) for name in averages.__struct_fields__}


def test_every_step_of_it() -> None:
    """The CPUs of each pod, as in the table above: a bit for each CPU, number 0 on the right."""
    witness = FleetWitness(STRICT)
    witness.engine.go()
    told = [(one[0], one[1], one[2], one[5]) for one in witness.story if one[1] == "placed"]
    assert told == [
        (0, "placed", 0, 0b1100),
        (20, "placed", 2, 0b11110000),
        (30, "placed", 3, 0b1100),
        (40, "placed", 4, 0b1100),
        (62, "placed", 6, 0),
        (64, "placed", 7, 0b110000),
        (123, "placed", 9, 0b11110000),
        (126, "placed", 10, 0b1100),
    ]
    rejected = [(one[0], one[2], one[4]) for one in witness.story if one[1] == "rejected"]
    assert rejected == [
        (19, 1, "SMTAlignmentError"),
        (50, 5, "Unschedulable"),
        (100, 8, "TopologyAffinityError"),
    ]


def test_the_series_of_it_tells_what_was_at_each_moment() -> None:
    """240 moments within 130 s: the twelfth is at 6.5 s, the 120th at 65, the last at the end."""
    series = simulate(STRICT).run.series
    assert {len(column) for column in series.values()} == {240}
    names = ("time", "runningPods", "requestedCPUs", "exclusiveCPUs", "freeCPUs", "idleSockets")
    totals = ("arrived", "placed", "refused", "rejected", "ended")

    def row(place: int) -> list[float]:
        return [series[name][place] for name in (*names, *totals)]

    assert row(11) == [6.5, 1, 2, 2, 5, 1, 1, 1, 0, 0, 0]
    # Pods 4, 6 and 7 run; 0, 2 and 3 have ended; 1 and 5 were rejected after two attempts each.
    assert row(119) == [65, 3, 4.5, 4, 3, 0, 8, 6, 6, 2, 3]
    # What happens at the last moment is in it.
    assert row(239) == [130, 1, 4, 4, 3, 1, 12, 8, 10, 3, 7]


def fragmented(scorer: str, *arrivals: Arrival) -> Run:
    return simulate(
        RunSpec(
            configuration="plain",
            config=NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0])),
            kinds=(FleetKind("node", parse_short_form("2s2c1t"), 2),),
            arrivals=ListedArrivals(arrivals),
            scheduling=Scheduling("MostAllocated" if scorer == "most" else "LeastAllocated"),
            replay_every=1,
        )
    ).run


def test_two_nodes_that_are_filled_one_after_the_other_or_alike() -> None:
    """Two nodes of two sockets, CPUs 0-1 and 2-3, no SMT; CPU 0 is reserved, 3000m to place.

    MostAllocated puts the pods of one CPU each on one node: CPU 1 (the socket with less free comes
    first), then CPU 2.  The first ends at 20.  The pod of two CPUs at 30 goes to the same node,
    which has 1 of 3 CPUs in use and gets full: CPUs 1 and 3, on both sockets, though one has two.
    From 0 to 10 one of the four sockets is in use, till 30 two then one, then two: idle
    3*10 + 2*10 + 3*10 + 2*10 = 100 of 40 s.

    LeastAllocated puts the second pod on the other node, on CPU 1 as well.  So at 30 the first node
    is empty, and the pod of two gets CPUs 2-3 of it; the other node keeps CPU 1.  One socket of
    four is in use till 10, then one on either node till 20, then one till 30, then two: 100, too;
    but busy are two nodes from 10 to 20 and from 30 on, 10 + 2*10 + 10 + 2*10 = 60 node seconds.
    """
    story = (pod(0, 1000, 20), pod(10, 1000, inf), pod(30, 2000, inf), pod(40, 0, 1))
    packed, apart = fragmented("most", *story), fragmented("least", *story)
    assert packed.averages.busy_nodes == 1
    assert packed.averages.split_containers == pytest.approx(10 / 40)
    assert packed.averages.idle_sockets == pytest.approx(100 / 40)
    assert packed.spread.numa_nodes == packed.spread.sockets == {"1": 2, "2": 1}
    assert packed.spread.beyond == {"numaNodes": 1, "sockets": 1, "caches": 1, "cores": 0}
    assert apart.averages.busy_nodes == pytest.approx(60 / 40)
    assert apart.averages.idle_sockets == pytest.approx(100 / 40)
    assert apart.spread.numa_nodes == apart.spread.sockets == {"1": 3}
    assert apart.spread.beyond == {"numaNodes": 0, "sockets": 0, "caches": 0, "cores": 0}


def test_a_run_that_is_stopped_ends_when_it_is_told_to() -> None:
    """Stopped after 100 s, with pods at 0, 50 and 150: it lasts 100 s, of which 60 have the first.

    Stopped after two arrivals it lasts until the second comes.
    """
    arrivals = ListedArrivals((pod(0, 1000, 60), pod(50, 2000, inf), pod(150, 1000, 1)))
    spec = RunSpec(
        configuration="cut",
        config=NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0])),
        kinds=(FleetKind("node", parse_short_form("1s4c1t"), 1),),
        arrivals=arrivals,
        stop_after=100,
    )
    run = simulate(spec).run
    assert (run.until, run.fates.arrived, run.fates.ended) == (100, 2, 1)
    assert run.averages.exclusive_cpus == pytest.approx((60 + 2 * 50) / 100)
    engine = Engine(replace(spec, stop_after=inf, stop_arrivals=2))
    engine.go()
    assert engine.result(complete=True).until == 50


def test_nothing_that_comes_is_a_run_too() -> None:
    """No arrival: no time passes, and all is free."""
    run = fragmented("least")
    assert (run.until, run.fates.arrived) == (0, 0)
    assert (run.averages.free_cpus, run.averages.idle_sockets) == (6, 4)
