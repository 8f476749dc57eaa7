"""How much of what is free pods of the usual sizes could use."""

from __future__ import annotations

from math import inf

from hypothesis import HealthCheck, assume, given, settings
from msgspec.structs import replace

from pinfold import CPUSet, NodeConfig, parse_short_form
from pinfold.admission.admission import NodeState, decide
from pinfold.admission.capacity import shortage
from pinfold.admission.model import NodeError
from pinfold.admission.settling import settle
from pinfold.documents.simulation.results import Fit
from pinfold.planning.simulation.engine import Engine, simulate
from pinfold.planning.simulation.experiment.specification import FleetKind, RunSpec
from pinfold.planning.simulation.fleet.nodes import FleetNode
from pinfold.planning.simulation.fleet.shapes import PodShape
from pinfold.planning.simulation.observers.fitting import ANSWERS, Fitting, Period, how_many
from pinfold.ports.arrivals import Arrival, PodSize
from tests.scenes.simulated_fleets import GIB, ListedArrivals, run_specs

STATIC = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))


def of(config: NodeConfig, machine: str, *arrivals: Arrival, count: int = 1) -> RunSpec:
    kinds = (FleetKind("node", parse_short_form(machine), count),)
    return RunSpec("fits", config, kinds, ListedArrivals(arrivals))


def pod(at: float, cpus: int, lifetime: float = inf) -> Arrival:
    return Arrival(at, lifetime, PodSize(1000 * cpus, GIB))


def test_what_is_free_at_24_moments() -> None:
    """Three CPUs, 24 s; a pod of one runs for 12 s, and at the very end one of two comes.

    Looked is at 1, 2, and so on, at what is so after that second.  Free are two at 11 moments,
    three at 12, then one: 22 + 36 + 1 = 59.  One at a time all are usable; two at a time, two at
    each of 23 moments: 46.
    """
    run = simulate(of(STATIC, "1s4c1t", pod(0, 1, 12), pod(24, 2))).run
    assert run.fits == (
        Fit(cpus=1, free_cpus=59, usable_cpus=59),
        Fit(cpus=2, free_cpus=59, usable_cpus=46),
    )


def test_what_a_policy_leaves_unused() -> None:
    """Two NUMA nodes with CPUs 1-3 and 4-7 to own, of which two pods get 1-2 and 4-5.

    A third of 3 CPUs fits on 3 and 6-7, but for a policy that wants them on one NUMA node.
    """
    strict = replace(STATIC, topology_manager_policy="single-numa-node")
    story = (pod(0, 2), pod(0, 2), pod(1, 3))
    for config, empty, then in ((strict, 2, 0), (STATIC, 2, 1)):
        engine = Engine(of(config, "2s4c1t", *story))
        third = engine.arrivals.shapes[1]
        assert how_many(engine.nodes[0], third) == empty
        engine.until = 0
        engine.go()
        assert len(engine.nodes[0].pods) == 2
        assert how_many(engine.nodes[0], third) == then


def test_of_many_sizes_the_five_most_frequent_are_looked_at() -> None:
    story = [pod(second, cpus, 1) for second in range(40) for cpus in (1, 2, 3, 4, 5)]
    story += [pod(40, cpus, 1) for cpus in (6, 7, 8)]
    assert [one.cpus for one in simulate(of(STATIC, "1s16c1t", *story)).run.fits] == [1, 2, 3, 4, 5]


def test_nobody_owns_cpus_under_policy_none() -> None:
    assert simulate(of(NodeConfig(), "1s4c1t", pod(0, 1), pod(5, 1))).run.fits == ()


def test_no_more_answers_are_worked_out_than_is_said() -> None:
    """Eighty nodes of which no two are alike; the last one that is begun is finished."""
    story = [pod(at / 1000, 1 + at % 3, 20 + at * 7 % 90) for at in range(3000)]
    engine = Engine(of(STATIC, "2s32c1t", *story, pod(60, 1), count=80))
    engine.go()
    [model] = engine.models
    # Others than those that were asked for when the run ended.
    shapes = [
        PodShape.of(9 + cpus, PodSize(1000 * cpus, 1 << 20), guaranteed=True) for cpus in (1, 2, 3)
    ]
    fitting = Fitting(engine.nodes, shapes, Period(0, 24), 1)
    before = model.decided
    fitting.look_before(1.5)
    of_one_node = sum(64 // shape.cpus + 1 for shape in shapes)
    assert ANSWERS <= model.decided - before <= ANSWERS + of_one_node


@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(run_specs())
def test_so_many_fit_as_the_planner_lets_in_one_after_the_other(spec: RunSpec) -> None:
    try:
        engine = Engine(spec)
    except NodeError:
        assume(False)  # noqa: FBT003 - hypothesis' own signature
        raise
    engine.go()
    for node in engine.nodes:
        before = node.state(), node.free, node.rest
        for shape in engine.arrivals.shapes:
            assert how_many(node, shape) == _by_the_planner(node, shape)
        assert (node.state(), node.free, node.rest) == before
    for fit in engine.result(complete=True).fits:
        assert 0 <= fit.usable_cpus <= fit.free_cpus


def _by_the_planner(node: FleetNode, shape: PodShape) -> int:
    planner, state = node.model.planner, node.state()
    count = 0
    while _has_room(node, state, shape):
        newcomer = replace(shape.pod, uid=f"another-{count}")
        decision = decide(planner.node, state, newcomer)
        if not decision.admitted:
            break
        state, count = settle(state, decision), count + 1
    return count


def _has_room(node: FleetNode, state: NodeState, shape: PodShape) -> bool:
    """By the sums alone, which the kubelet's own check counts as well."""
    has = node.model.allocatable()
    asks = {"pods": 1, "cpu": shape.size.cpu_milli, "memory": shape.size.memory}
    asks |= dict(shape.size.extended)
    used = {"pods": state.pods, **state.requested}
    return shortage(asks, has, used, critical=False, devices_managed=True) is None
