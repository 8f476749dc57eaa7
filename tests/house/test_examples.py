"""The examples in ``examples/`` do what they and the specification say."""

from __future__ import annotations

from pinfold.adapters.kubernetes.manifests import read_manifests
from pinfold.config.kubelet import load_kubelet_config
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.machine.short_form import parse_short_form
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.planner import Plan, Planner
from tests.roots import ROOT

EXAMPLES = ROOT / "examples"
MACHINE = "2s8c2t"


def plan(config_file: str) -> Plan:
    loaded = load_kubelet_config(str(EXAMPLES / config_file))
    assert loaded.notes == ()
    read = read_manifests([str(EXAMPLES / "pods")])
    assert read.notes == ()
    return Planner(parse_short_form(MACHINE), loaded.config).plan(read.pods)


def exclusive(planned: Plan) -> dict[str, CPUSet]:
    return {
        f"{placed.pod.name}/{container.name}": container.cpus
        for placed in planned.pods
        for container in placed.containers
        if container.exclusive
    }


def reasons(planned: Plan) -> dict[str, str | None]:
    return {placed.pod.name: placed.decision.reason for placed in planned.rejected}


def test_the_example_node() -> None:
    planned = plan("kubelet.yaml")
    given = exclusive(planned)
    assert {name: len(cpus) for name, cpus in given.items()} == {
        "feed-handler/feed": 4,
        "order-db-0/restore": 2,
        "order-db-0/postgres": 8,
        "risk-model/model": 10,
    }
    for cpus in given.values():
        assert len({cpu // 16 for cpu in cpus}) == 1, "single-numa-node"
        assert all({2 * (cpu // 2), 2 * (cpu // 2) + 1} <= set(cpus) for cpu in cpus), "whole cores"
    assert reasons(planned) == {
        "matching-engine": "SMTAlignmentError",
        "backtest": "TopologyAffinityError",
    }
    classes = {placed.pod.qos for placed in planned.admitted}
    assert classes == set(QOSClass)


def test_the_example_comparison_changes_placements() -> None:
    before, after = plan("kubelet.yaml"), plan("kubelet-new.yaml")
    assert reasons(before) != reasons(after)
    assert exclusive(before) != exclusive(after)
    assert len(after.admitted) > len(before.admitted)


def test_the_specification_s_interpretation_of_its_example_pods() -> None:
    pods = read_manifests([str(EXAMPLES / "spec-pods")]).pods
    config = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
    with_threads = Planner(parse_short_form("2s8c2t"), config).plan(pods)
    without = Planner(parse_short_form("2s8c1t"), config).plan(pods)
    for planned in (with_threads, without):
        assert reasons(planned) == {}
        given = exclusive(planned)
        assert {name: len(cpus) for name, cpus in given.items()} == {
            "guaranteed-two/a": 2,
            "guaranteed-one-and-half/a": 1,
        }
        taken = CPUSet(cpu for cpus in given.values() for cpu in cpus)
        everything = planned.planner.view.topology.cpus
        assert planned.shared == everything - taken, "the shared set makes room"
        for placed in planned.admitted:
            for container in placed.containers:
                if not container.exclusive:
                    assert container.cpus == planned.shared
    # Two sibling threads of one core; without hyper-threading two cores of one socket.
    siblings = exclusive(with_threads)["guaranteed-two/a"]
    assert len({cpu // 2 for cpu in siblings}) == 1
    cores = exclusive(without)["guaranteed-two/a"]
    assert len({cpu // 8 for cpu in cores}) == 1
    assert {placed.pod.name: placed.pod.qos for placed in without.pods} == {
        "guaranteed-half": QOSClass.GUARANTEED,
        "guaranteed-two": QOSClass.GUARANTEED,
        "guaranteed-one-and-half": QOSClass.GUARANTEED,
        "guaranteed-fractions": QOSClass.GUARANTEED,
        "burstable": QOSClass.BURSTABLE,
        "best-effort": QOSClass.BEST_EFFORT,
    }
