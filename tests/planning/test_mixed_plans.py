"""Plans with mixed containers: what of them is told, and that nothing else is."""

from __future__ import annotations

from msgspec.structs import replace

from pinfold.admission.node_status import node_resource_topology, node_status
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import OwnPolicies
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.resize_wish import ResizeWish
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.quantity import Quantity
from pinfold.planning.compare import changed_pods
from pinfold.planning.explaining.decision import explain_pod
from pinfold.planning.plan_document import plan_document
from pinfold.planning.planner import Plan, Planner
from pinfold.views.plan import PlannedOn, plan_view

MACHINE = parse_short_form("1s4c2t")
KUBELETS = NodeConfig(
    cpu_manager_policy="static",
    reserved_system_cpus=CPUSet([0]),
    topology_manager_policy="best-effort",
)
OURS = replace(KUBELETS, own=OwnPolicies())


def pod(name: str, milli: int, said: str = "true") -> Pod:
    amounts = {"cpu": Quantity(milli, -3), "memory": Quantity(1 << 30)}
    annotations = {"mixed-cpus.pinfold.dev/pod": said}
    main = Container("main", amounts, amounts)
    return Pod(f"uid-{name}", name, containers=(main,), annotations=annotations)


def planned(config: NodeConfig, *pods: Pod) -> Plan:
    return Planner(MACHINE, config).plan(pods)


def test_what_a_plan_tells_of_one() -> None:
    plan = planned(OURS, pod("lane", 2500), pod("db", 2000, "false"))
    lane, db = (one.containers[0] for one in plan_document(plan).pods)
    assert (lane.cpus, lane.exclusive, lane.shared) == ("2-3", True, "0-1,6-7")
    assert (db.cpus, db.exclusive) == ("4-5", True)
    assert not db.shared
    view = plan_view(plan_document(plan), PlannedOn(MACHINE, plan.planner.view, {}))
    (row, other) = (one.containers[0] for one in view.pods)
    assert row.extras == ("and the shared pool 0-1,6-7, no CPU quota",)
    assert other.extras == ()
    assert [owner.label for owner in view.node_map.owners.values()] == [
        "default/lane main and the shared pool",
        "default/db main",
    ]


def test_without_one_every_word_is_as_before() -> None:
    """With the section and without it: the same documents but for the section."""
    pods = (pod("a", 2000, "false"), pod("b", 2500, "false"), pod("c", 3000, "false"))
    ours, kubelets = (plan_document(planned(config, *pods)) for config in (OURS, KUBELETS))
    assert replace(ours, config=kubelets.config) == kubelets


def test_a_kubelets_plan_knows_none() -> None:
    (one,) = plan_document(planned(KUBELETS, pod("lane", 2500))).pods
    assert (one.admitted, one.containers[0].exclusive) == (True, False)
    assert not one.containers[0].shared


def test_a_comparison_tells_who_becomes_mixed() -> None:
    """Also where its own CPUs are the same."""
    pods = (pod("lane", 2000), pod("db", 2000, "false"))
    pairs = changed_pods(planned(KUBELETS, *pods), planned(OURS, *pods))
    assert [old.pod.name for old, _ in pairs] == ["lane"]


def test_the_exclusive_part_is_what_a_scheduler_is_told() -> None:
    plan = planned(OURS, pod("lane", 2500))
    planner = plan.planner
    status = node_status(MACHINE, planner.view, OURS, planner.node, plan.state)
    (zone,) = node_resource_topology(status, "n")["zones"]
    (cpus,) = (one for one in zone["resources"] if one["name"] == "cpu")
    assert (cpus["capacity"], cpus["allocatable"], cpus["available"]) == ("8", "7", "5")
    assert status.requested["cpu"] == Quantity(2500, -3)


def test_an_explanation_says_what_is_exclusive_and_why() -> None:
    found = explain_pod(Planner(MACHINE, OURS), (pod("lane", 2500),), "default/lane")
    (one,) = found.containers
    assert one.constraint.startswith("2 exclusive CPUs and the shared pool: a mixed container")


def test_moves_name_those_whose_cpusets_follow_the_pool() -> None:
    plan = planned(OURS, pod("lane", 2500), pod("db", 2000, "false"))
    planner = plan.planner
    lane = {Owner("uid-lane", "main")}
    options = planner.who_may_move(plan.state, [one.pod for one in plan.admitted])
    assert options.moves.mixed == lane
    (answered,) = planner.resize(plan, ResizeWish("db", "main", 3)).resizes
    assert answered.moves is not None
    assert answered.moves.mixed == lane
