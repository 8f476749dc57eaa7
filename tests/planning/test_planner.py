"""Whole plans: the specification's examples, the kubelet's order, the document."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold import CPUSet, NodeConfig, Planner, Quantity, parse_short_form
from pinfold.admission.model import NodeError
from pinfold.core.kubelet.node_config import NodeConfig as Config
from pinfold.core.kubelet.own_policies import OWN_POLICIES, LoadDrivenOptions, OwnPolicies
from pinfold.core.pod.named import UnknownPodError
from pinfold.core.pod.pod import Container, Pod
from pinfold.planning.explaining.decision import explain_pod
from pinfold.planning.planner import Plan
from tests.scenes.published_schemas import plan_document


def guaranteed(name: str, *cpus: str, created: str | None = None) -> Pod:
    containers = []
    for index, cpu in enumerate(cpus):
        both = {"cpu": Quantity.parse(cpu), "memory": Quantity.parse("64Mi")}
        containers.append(Container(f"c{index}", both, both))
    return Pod(
        uid=f"uid-{name}", name=name, containers=tuple(containers), creation_timestamp=created
    )


def burstable(name: str, cpu: str) -> Pod:
    requests = {"cpu": Quantity.parse(cpu)}
    return Pod(uid=f"uid-{name}", name=name, containers=(Container("c0", requests),))


def static(**more: Any) -> NodeConfig:
    return Config(**{"cpu_manager_policy": "static", "reserved_system_cpus": CPUSet([0]), **more})


def place(config: NodeConfig, *pods: Pod, machine: str = "2s4c2t") -> Plan:
    return Planner(parse_short_form(machine), config).plan(pods)


def cpus(plan: Plan, pod: str) -> list[str]:
    placement = next(p for p in plan.pods if p.pod.name == pod)
    return [str(container.cpus) for container in placement.containers]


def test_two_cpus_are_the_threads_of_one_core() -> None:
    plan = place(static(), guaranteed("a", "2"))
    assert cpus(plan, "a") == ["2-3"]
    assert str(plan.shared) == "0-1,4-15"
    assert (str(plan.reserved), str(plan.allocatable)) == ("0", "1-15")


def test_only_whole_numbers_in_guaranteed_pods_are_exclusive() -> None:
    plan = place(
        static(), guaranteed("a", "1", "500m"), guaranteed("b", "1500m"), burstable("c", "2")
    )
    exclusive = {p.pod.name: [c.exclusive for c in p.containers] for p in plan.pods}
    assert exclusive == {"a": [True, False], "b": [False], "c": [False]}
    assert cpus(plan, "c") == [str(plan.shared)]


def test_policy_none_leaves_everything_shared() -> None:
    plan = place(Config(reserved_system_cpus=CPUSet([0])), guaranteed("a", "2"))
    assert cpus(plan, "a") == ["0-15"]
    assert (str(plan.shared), str(plan.reserved), str(plan.allocatable)) == ("0-15", "0", "")


def test_the_oldest_pod_is_admitted_first() -> None:
    young = guaranteed("young", "2", created="2026-01-02T00:00:00Z")
    old = guaranteed("old", "2", created="2026-01-01T00:00:00Z")
    plan = place(static(), young, old)
    assert [p.pod.name for p in plan.pods] == ["old", "young"]
    assert cpus(plan, "old") == ["2-3"]


def test_a_rejected_pod_holds_nothing() -> None:
    options = {"full-pcpus-only": "true"}
    plan = place(
        static(cpu_manager_policy_options=options),
        guaranteed("two-steps", "2", "1"),
        guaranteed("next", "2"),
    )
    first, second = plan.pods
    assert (first.admitted, first.decision.reason) == (False, "SMTAlignmentError")
    assert cpus(plan, "two-steps") == ["", ""]
    assert second.admitted
    assert cpus(plan, "next") == ["2-3"]


def test_capacity_is_checked_after_the_cpus() -> None:
    plan = place(static(), burstable("fill", "14"), guaranteed("late", "2"))
    decision = plan.pods[1].decision
    assert decision.reason == "OutOfcpu"
    assert decision.message == (
        "Node didn't have enough resource: cpu, requested: 2000, used: 14000, capacity: 15000"
    )
    assert str(plan.shared) == "0-15"


def test_an_unaligned_pod_is_rejected_with_the_kubelets_words() -> None:
    config = static(topology_manager_policy="single-numa-node")
    plan = place(config, guaranteed("wide", "9"))
    assert plan.pods[0].decision.reason == "TopologyAffinityError"
    assert plan.pods[0].decision.message == "Resources cannot be allocated with Topology locality"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (Config(cpu_manager_policy="static"), "unable to determine reserved CPU resources"),
        (
            Config(cpu_manager_policy="static", kube_reserved={"cpu": Quantity.parse("0")}),
            "requires systemreserved.cpu + kubereserved.cpu to be greater than zero",
        ),
        (static(reserved_system_cpus=CPUSet([99])), "unknown CPU ID: 99"),
        (Config(cpu_manager_policy="dynamic"), 'unknown policy: "dynamic"'),
        (static(cpu_manager_policy_options={"fast": "true"}), "unknown CPU Manager Policy option"),
        (static(topology_manager_policy="odd"), 'unknown policy: "odd"'),
        (
            static(system_reserved={"memory": Quantity.parse("1Pi")}),
            'Resource "memory" has a reservation of',
        ),
    ],
)
def test_what_would_stop_a_kubelet_is_refused_in_its_words(config: NodeConfig, words: str) -> None:
    with pytest.raises(NodeError) as caught:
        place(config)
    assert words in str(caught.value)


def test_more_numa_nodes_than_hints_can_be_made_for_are_refused() -> None:
    options = {"max-allowable-numa-nodes": "64"}
    config = static(topology_manager_policy="best-effort", topology_manager_policy_options=options)
    with pytest.raises(NodeError, match=r"24 NUMA nodes .* topologyManagerPolicy: none"):
        Planner(parse_short_form("1s24n24c1t"), config)
    Planner(parse_short_form("1s20n20c1t"), config)


def test_half_a_reserved_cpu_counts_whole() -> None:
    half = {"cpu": Quantity.parse("500m")}
    plan = place(Config(cpu_manager_policy="static", kube_reserved=half, system_reserved=half))
    assert str(plan.reserved) == "0"
    more = place(Config(cpu_manager_policy="static", kube_reserved={"cpu": Quantity.parse("1.1")}))
    assert str(more.reserved) == "0-1"


def test_the_document_is_json_with_the_promised_fields() -> None:
    plan = place(static(), guaranteed("a", "2"), guaranteed("b", "99"))
    document = json.loads(json.dumps(plan_document(plan)))
    assert document["version"] == 1
    assert {"pods", "shared", "reserved", "allocatable"} <= document.keys()
    first, second = document["pods"]
    assert (first["admitted"], first["reason"], first["message"]) == (True, None, None)
    assert first["containers"] == [
        {
            "name": "c0",
            "kind": "container",
            "cpus": "2-3",
            "exclusive": True,
            "numa_nodes": [],
            "memory": [],
            "devices": {},
        }
    ]
    assert second["reason"] == "UnexpectedAdmissionError"
    assert second["containers"][0]["cpus"] == ""


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["1", "2", "3", "4", "500m", "1500m", "9"]), max_size=8),
    st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    st.booleans(),
)
def test_exclusive_sets_are_disjoint_free_of_reserved_and_as_large_as_asked(
    sizes: list[str], policy: str, whole_cores: bool
) -> None:
    options = {"full-pcpus-only": "true"} if whole_cores else {}
    config = static(topology_manager_policy=policy, cpu_manager_policy_options=options)
    plan = place(config, *(guaranteed(f"p{i}", size) for i, size in enumerate(sizes)))
    taken = CPUSet()
    for placement in plan.admitted:
        for container, request in zip(placement.containers, placement.pod.containers, strict=True):
            if container.exclusive:
                assert container.cpus.isdisjoint(taken | plan.reserved)
                assert len(container.cpus) == request.requests["cpu"].value()
                taken |= container.cpus
    assert plan.shared == CPUSet(range(16)) - taken


def test_a_remedy_works_when_it_is_followed() -> None:
    config = static(cpu_manager_policy_options={"full-pcpus-only": "true"})
    planner = Planner(parse_short_form("2s4c2t"), config)
    pods = [guaranteed("odd", "3")]
    explanation = explain_pod(planner, pods, "odd")
    assert not explanation.decision.admitted
    assert explanation.remedies[0].startswith("ask for 4 CPUs instead of 3")
    assert planner.plan([guaranteed("odd", "4")]).pods[0].admitted


def test_a_pod_in_the_way_is_named() -> None:
    config = static(topology_manager_policy="single-numa-node")
    planner = Planner(parse_short_form("2s4c2t"), config)
    pods = [guaranteed("first", "4"), guaranteed("second", "4"), guaranteed("late", "6")]
    remedies = explain_pod(planner, pods, "default/late").remedies
    assert any(text.startswith("remove pod default/") for text in remedies)
    assert any(text.startswith("ask for 4 CPUs instead of 6") for text in remedies)


@pytest.mark.parametrize(
    ("taken", "left"), [("50", 14), ("51", 13), ("44", 20), ("63", 1), ("33", 31)]
)
def test_the_most_cpus_that_would_be_admitted_are_found(taken: str, left: int) -> None:
    config = static(topology_manager_policy="single-numa-node")
    planner = Planner(parse_short_form("2s32c2t"), config)
    pods = [guaranteed("one", taken), guaranteed("two", taken), guaranteed("late", "60")]
    remedies = explain_pod(planner, pods, "late").remedies
    assert f"ask for {left} CPU{'s' * (left > 1)} instead of 60" in " ".join(remedies)


def test_every_container_of_an_admitted_pod_has_its_reason() -> None:
    planner = Planner(parse_short_form("2s4c2t"), static(topology_manager_policy="restricted"))
    explanation = explain_pod(planner, [guaranteed("a", "2", "500m")], "a")
    exclusive, shared = explanation.containers
    assert "exclusive CPUs" in exclusive.constraint
    assert exclusive.steps
    assert shared.constraint.startswith("shared pool: cpu 500m")
    assert explanation.remedies == ()


def test_the_documents_say_the_policy_and_its_options() -> None:
    own = plan_document(place(static(cpu_manager_policy="dynamic", own=OwnPolicies())))
    assert own["config"]["cpuManagerPolicy"] == "dynamic"
    assert "dynamic" in own["config"]["pinfold"]
    assert "pinfold" not in plan_document(place(static()))["config"]


OPTIONS = [
    {},
    {"full-pcpus-only": "true"},
    {"strict-cpu-reservation": "true", "distribute-cpus-across-numa": "true"},
    {"prefer-align-cpus-by-uncorecache": "true"},
]


@settings(max_examples=60)
@given(
    st.sampled_from(["1s4c2t", "2s4c2t@half", "2s2n4c2t", "2s5c1t", "1s3c4t"]),
    st.sampled_from(OWN_POLICIES),
    st.sampled_from(OPTIONS),
    st.sampled_from(["none", "best-effort", "restricted", "single-numa-node"]),
    st.sampled_from(["container", "pod"]),
    st.lists(st.lists(st.sampled_from(["1", "2", "3", "4", "500m"]), min_size=1, max_size=2)),
)
def test_own_policies_place_as_static_does(  # noqa: PLR0917 - one for each dimension
    machine: str,
    policy: str,
    options: dict[str, str],
    alignment: str,
    scope: str,
    wanted: list[list[str]],
) -> None:
    pods = [guaranteed(f"p{at}", *cpus) for at, cpus in enumerate(wanted)]
    plain = static(
        cpu_manager_policy_options=options,
        topology_manager_policy=alignment,
        topology_manager_scope=scope,
    )
    own = replace(plain, cpu_manager_policy=policy, own=OwnPolicies())
    before, after = (plan_document(place(one, *pods, machine=machine)) for one in (plain, own))
    assert after.pop("config") != before.pop("config")
    assert after == before


def test_an_unknown_pod_is_named() -> None:
    planner = Planner(parse_short_form("2s4c2t"), static())
    with pytest.raises(UnknownPodError, match="no pod 'b' in the manifests; there are a"):
        explain_pod(planner, [guaranteed("a", "2")], "b")


def test_of_two_pods_of_one_name_none_is_explained() -> None:
    planner = Planner(parse_short_form("2s4c2t"), static())
    one = guaranteed("a", "2")
    two = replace(one, uid="other", namespace="zz")
    with pytest.raises(UnknownPodError, match=r"several pods 'a'; say which one: default/a, zz/a"):
        explain_pod(planner, [one, two], "a")
    assert explain_pod(planner, [one, two], "zz/a").decision.pod is two


def test_cpus_by_load_are_charged_and_not_held() -> None:
    own = OwnPolicies(load_driven=LoadDrivenOptions(use=True))
    reserved = CPUSet([0])
    config = NodeConfig(cpu_manager_policy="dynamic", reserved_system_cpus=reserved, own=own)
    planner = Planner(parse_short_form("1s4c2t"), config)
    feed = replace(guaranteed("feed", "4"), annotations={"load-driven.pinfold.dev/pod": "true"})
    pods = [feed, guaranteed("model", "4")]
    (told,) = explain_pod(planner, pods, "feed").containers
    assert told.cpus is None
    assert told.constraint.startswith("shared pool, 4 CPUs charged and not held: nobody else")
    assert "best fit" not in told.constraint
    (told,) = explain_pod(planner, pods, "model").containers
    assert told.constraint.endswith(
        "cpu: 3 free at NUMA node 0; 4 more are charged by load, not held"
    )
