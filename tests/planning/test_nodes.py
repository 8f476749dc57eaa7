"""Pods on several nodes: where a scheduler would bind each, and what its node decides then."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold import CPUSet, NodeConfig, parse_short_form
from pinfold.adapters.kubernetes.manifests import Manifests, read_manifests
from pinfold.core.classes.bound import bound_key
from pinfold.core.classes.compute_resource import ComputeResource
from pinfold.core.classes.placing import misfit, pools_of, wants_of
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import Pod
from pinfold.core.pod.scheduling import Scheduling, Taint, Toleration
from pinfold.planning.nodes.devices import node_devices, node_resources
from pinfold.planning.nodes.planned import UNSCHEDULABLE, Cluster, NodesPlan, PlannedNode
from pinfold.planning.planner import Planner
from pinfold.planning.quotas import PlannedQuotas

GPU = "nvidia.com/gpu"
GOLD = "class.pinfold.dev/gold"


def planner(machine: str = "1s4c2t", **config: Any) -> Planner:
    usual: dict[str, Any] = {"cpu_manager_policy": "static", "reserved_system_cpus": CPUSet([0])}
    return Planner(parse_short_form(machine), NodeConfig(**usual | config))


def pod(name: str, cpu: object = 1, **limits: object) -> Pod:
    asked = {"cpu": str(cpu), "memory": "64Mi"} | {key: str(n) for key, n in limits.items()}
    one = {"name": "c", "resources": {"limits": asked}}
    return apply_defaults(pod_from_api({"metadata": {"name": name}, "spec": {"containers": [one]}}))


def where(plan: NodesPlan) -> dict[str, str | None]:
    return {one.pod.name: one.node for one in plan.outcomes if one.admitted}


def of(*names: str, **config: Any) -> tuple[PlannedNode, ...]:
    made = planner(**config)
    return tuple(PlannedNode(name, made) for name in names)


def test_pods_are_spread_by_what_is_free_and_each_node_decides() -> None:
    plan = Cluster(of("a", "b")).plan(pod(f"p{n}", 2) for n in range(7))
    assert where(plan) == {f"p{n}": "ab"[n % 2] for n in range(6)}
    [last] = [one for one in plan.outcomes if not one.admitted]
    assert (last.reason, last.node) == (UNSCHEDULABLE, None)
    assert last.message == "0/2 nodes are available: 2 Insufficient cpu"
    assert last.refused_by == {"Insufficient cpu": ("a", "b")}
    assert [str(p.shared) for p in plan.plans.values()] == ["0-1"] * 2


def test_pods_that_request_nothing_are_spread_too() -> None:
    spec = {"containers": [{"name": "c"}]}
    asked = [pod_from_api({"metadata": {"name": f"p{n}"}, "spec": spec}) for n in range(4)]
    plan = Cluster(of("a", "b")).plan(asked)
    assert where(plan) == {"p0": "a", "p1": "b", "p2": "a", "p3": "b"}


def test_what_its_node_rejects_stays_bound_there() -> None:
    nodes = of("a", machine="1s2n8c1t", topology_manager_policy="single-numa-node")
    plan = Cluster(nodes).plan([pod("one", 1), pod("wide", 5)])
    assert [(o.node, o.admitted, o.reason) for o in plan.outcomes] == [
        ("a", True, None),
        ("a", False, "TopologyAffinityError"),
    ]


def test_the_node_that_a_pod_names_is_asked_alone() -> None:
    asked = [replace(pod(f"p{n}", 6), node_name=name) for n, name in enumerate("bbx")]
    plan = Cluster(of("a", "b")).plan(asked)
    assert [(o.node, o.reason) for o in plan.outcomes[:2]] == [
        ("b", None),
        ("b", "UnexpectedAdmissionError"),
    ]
    assert plan.outcomes[2].message == "spec.nodeName: node x is not among the nodes"


def test_labels_and_taints_are_heeded() -> None:
    made = planner()
    taint = Taint("gpu", "yes", "NoSchedule")
    soft = Taint("soft", "", "PreferNoSchedule")
    nodes = (
        PlannedNode("a", made, {"zone": "1"}, (taint,)),
        PlannedNode("b", made, {"zone": "2"}, (soft,)),
    )
    asked = {
        "default/tolerant": Scheduling(
            node_selector={"zone": "1"}, tolerations=(Toleration("gpu", "Exists"),)
        ),
        "default/picky": Scheduling(node_selector={"zone": "3"}),
    }
    plan = Cluster(nodes, scheduling=asked).plan(map(pod, ("tolerant", "plain", "picky")))
    assert where(plan) == {"tolerant": "a", "plain": "b"}
    assert plan.outcomes[2].message == (
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {gpu: yes}"
    )


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        (Toleration(operator="Exists"), True),
        (Toleration("k", "Equal", "v"), True),
        (Toleration("k", "", "v", "NoSchedule"), True),
        (Toleration("k", "", "w"), False),
        (Toleration("k", "Exists", "", "NoExecute"), False),
        (Toleration("other", "Exists"), False),
        (Toleration("", "Equal", "v"), False),
    ],
)
def test_what_is_tolerated(toleration: Toleration, *, tolerates: bool) -> None:
    assert toleration.tolerates(Taint("k", "v", "NoSchedule")) is tolerates


# One node


@settings(max_examples=60, deadline=None)
@given(
    asked=st.lists(st.sampled_from(["1", "2", "3", "500m", "1500m", "9"]), max_size=8),
    policy=st.sampled_from(["none", "restricted", "single-numa-node"]),
)
def test_one_node_is_the_plan_of_that_node(asked: list[str], policy: str) -> None:
    made = planner("1s2n4c1t", topology_manager_policy=policy)
    pods = [pod(f"p{n}", cpus) for n, cpus in enumerate(asked)]
    plain = made.plan(pods)
    plan = Cluster((PlannedNode("n", made),)).plan(pods)
    assert list(where(plan)) == [one.pod.name for one in plain.admitted]
    told = {one.pod.name: one for one in plain.pods}
    for one in plan.plans["n"].pods:
        assert one.containers == told[one.pod.name].containers


# Classes


def gpu_class(name: str, memory: str, priority: int = 0) -> dict[str, Any]:
    needs = [
        {"key": "resourceName", "operator": "In", "values": [GPU]},
        {"key": "memory", "operator": "GtEq", "values": [memory]},
    ]
    spec = {"priority": priority, "labelSelector": [{"matchExpressions": needs}]}
    return {"kind": "ResourceClass", "metadata": {"name": name}, "spec": spec}


def gpus(node: str, memory: str, count: int, name: str = "") -> dict[str, Any]:
    return {
        "kind": "ComputeResource",
        "metadata": {"name": name or f"{node}-gpu"},
        "spec": {"nodeName": node, "resourceName": GPU, "properties": {"memory": memory}},
        "status": {"capacity": str(count)},
    }


def wanting(name: str, **limits: int) -> dict[str, Any]:
    asked = {"cpu": 1, "memory": "64Mi", **limits}
    containers = [{"name": "c", "resources": {"limits": asked}}]
    return {"kind": "Pod", "metadata": {"name": name}, "spec": {"containers": containers}}


Read = Callable[[Iterable[Mapping[str, Any]]], Manifests]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(objects: Iterable[Mapping[str, Any]]) -> Manifests:
        file = tmp_path / "all.json"
        file.write_text(json.dumps({"kind": "List", "items": list(objects)}))
        return read_manifests([str(file)])

    return read


def cluster_of(read: Manifests, nodes: Iterable[str], machine: str = "1s4c2t") -> Cluster:
    plain, made = planner(machine), []
    resources: list[ComputeResource] = []
    for name in nodes:
        devices = node_devices(name, {}, read.compute_resources, plain.view)
        one = Planner(plain.machine, plain.config, devices=devices)
        made.append(PlannedNode(name, one))
        resources += node_resources(name, one.devices, read.classes, read.compute_resources)
    resources += [one for one in read.compute_resources if not one.node_name]
    quotas = PlannedQuotas.of(read.quotas, read.counted, {}, {}, "")
    return Cluster(tuple(made), read.classes, tuple(resources), quotas, read.scheduling)


CLASSES = (gpu_class("gold", "12G", 10), gpu_class("silver", "1G"))


def test_a_class_is_given_where_its_devices_are(read: Read) -> None:
    there = (*CLASSES, gpus("a", "8G", 2), gpus("b", "16G", 2))
    pods = [
        wanting("x", gold=1),
        wanting("y", silver=1),
        wanting("z", gold=2),
        wanting("w", gold=1),
    ]
    manifests = read((*there, *pods))
    plan = cluster_of(manifests, "abc").plan(manifests.pods)
    assert where(plan) == {"x": "b", "y": "a", "w": "b"}
    assert plan.outcomes[2].refused_by == {
        "no devices of class gold": ("a", "c"),
        "too few free devices of class gold": ("b",),
    }
    first, *_ = plan.outcomes
    [given] = plan.plans["b"].pods[0].containers
    assert given.devices == {GPU: ("b-gpu-0",)}
    assert first.binding["c"].startswith(f"gold={GPU}:1@b-")


def test_a_node_with_devices_of_several_classes_does_not_fit(read: Read) -> None:
    mixed = (gpus("a", "8G", 2, "a-small"), gpus("a", "16G", 2, "a-large"), gpus("b", "16G", 1))
    manifests = read((*CLASSES, *mixed, wanting("x", gold=1), wanting("y", gold=1)))
    plan = cluster_of(manifests, "ab").plan(manifests.pods)
    assert where(plan) == {"x": "b"}
    assert f"{GPU} of class gold and of others, mixed" in (plan.outcomes[1].message or "")


def test_what_the_webhook_refuses_is_never_created(read: Read) -> None:
    manifests = read((*CLASSES, gpus("a", "8G", 2), wanting("x", **{"class.pinfold.dev/glod": 1})))
    [one] = cluster_of(manifests, "a").plan(manifests.pods).outcomes
    assert (one.node, one.reason) == (None, "Forbidden")
    assert "there is no class glod" in (one.message or "")


def test_a_class_of_the_cluster_level_is_counted_over_all(read: Read) -> None:
    licence = gpu_class("licence", "1")
    licence["spec"]["provisionConfig"] = {"resourceType": "CLUSTERLEVEL"}
    licence["spec"]["labelSelector"] = [
        {"matchExpressions": [{"key": "Kind", "operator": "In", "values": ["licence"]}]}
    ]
    pool = gpus("", "1", 2, "licences")
    pool["spec"] = {"resourceName": "example.com/licence", "properties": {"Kind": "licence"}}
    pods = [wanting(name, licence=1) for name in "xyz"]
    manifests = read((licence, pool, *pods))
    plan = cluster_of(manifests, "ab").plan(manifests.pods)
    assert sorted(where(plan)) == ["x", "y"]
    assert "too few free resources of class licence" in (plan.outcomes[2].message or "")


def test_a_quota_counts_who_waits_and_the_raw_name_beside_the_class(read: Read) -> None:
    hard = {f"requests.{GOLD}": "3", f"requests.{GPU}": "9"}
    quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    pods = [wanting(name, gold=1) for name in "wxyz"]
    manifests = read((*CLASSES, gpus("a", "16G", 2), quota, *pods))
    plan = cluster_of(manifests, "a").plan(manifests.pods)
    assert [one.reason for one in plan.outcomes] == [None, None, UNSCHEDULABLE, "Forbidden"]
    [used] = plan.quotas.quotas
    assert {name: str(n) for name, n in used.used.items()} == {
        f"requests.{GOLD}": "3",
        f"requests.{GPU}": "3",
    }


def test_the_migration_of_a_namespace_over_a_hundred_nodes(read: Read) -> None:
    """The document's example: of 100 devices by the raw name, then 90 and 10, at last none."""
    there = [gpus(f"n{n}", "16G" if n < 4 else "8G", 4 if n < 4 else 1) for n in range(100)]
    for raw, silver, gold in ((100, 0, 0), (90, 6, 4), (0, 60, 40)):
        hard = {
            f"requests.{GPU}": str(raw + silver + gold),
            "gold": str(gold),
            "silver": str(silver),
        }
        quota = {"kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
        pods = [
            *(wanting(f"gold-{n}", gold=1) for n in range(gold + 1)),
            *(wanting(f"silver-{n}", silver=1) for n in range(silver + 1)),
            *(wanting(f"raw-{n}", **{GPU: 1}) for n in range(raw)),
        ]
        manifests = read((*CLASSES, *there, quota, *pods))
        plan = cluster_of(manifests, (f"n{n}" for n in range(100)), "1s8c2t").plan(manifests.pods)
        placed = where(plan)
        of_gold = [node for name, node in placed.items() if name.startswith("gold")]
        of_silver = [node for name, node in placed.items() if name.startswith("silver")]
        assert len(of_gold) == min(gold, 16)
        assert {int((node or "n99")[1:]) < 4 for node in of_gold} <= {True}
        assert len(of_silver) == silver
        assert all(int((node or "n0")[1:]) >= 4 for node in of_silver)
        refused = [one for one in plan.outcomes if one.reason == "Forbidden"]
        assert len(refused) == 2, "the one beyond each limit"
        for name, node in plan.plans.items():
            given = [id_ for p in node.pods for c in p.containers for id_ in c.devices.get(GPU, ())]
            assert len(given) == len(set(given)) <= (4 if int(name[1:]) < 4 else 1)


@settings(max_examples=80, deadline=None)
@given(
    nodes=st.lists(
        st.lists(st.tuples(st.sampled_from(["8G", "16G"]), st.integers(0, 3)), max_size=2),
        min_size=1,
        max_size=4,
    ),
    asked=st.lists(
        st.tuples(st.sampled_from(["gold", "silver", GPU]), st.integers(1, 2)), max_size=8
    ),
)
def test_never_more_than_there_is_and_nobody_waits_for_what_is_free(
    tmp_path_factory: pytest.TempPathFactory,
    nodes: list[list[tuple[str, int]]],
    asked: list[tuple[str, int]],
) -> None:
    there = [
        gpus(f"n{n}", memory, count, f"n{n}-{at}")
        for n, parts in enumerate(nodes)
        for at, (memory, count) in enumerate(parts)
    ]
    pods = [wanting(f"p{n}", **{name: count}) for n, (name, count) in enumerate(asked)]
    file = tmp_path_factory.mktemp("p") / "all.json"
    file.write_text(json.dumps({"kind": "List", "items": [*CLASSES, *there, *pods]}))
    manifests = read_manifests([str(file)])
    cluster = cluster_of(manifests, (f"n{n}" for n in range(len(nodes))), "1s16c2t")
    plan = cluster.plan(manifests.pods)
    pools = pools_of(cluster.classes, cluster.resources)
    taken: dict[tuple[str, str], int] = {}
    for one in plan.outcomes:
        if one.reason == "Forbidden":
            continue
        asks = wants_of(one.pod)
        for node in cluster.nodes:
            fits = all(
                misfit(pools.get((node.name, w.resource)), taken.get((node.name, w.resource), 0), w)
                is None
                for w in asks.of_node
            )
            if asks.of_node and one.node == node.name:
                assert fits
            if asks.of_node and one.node is None:
                assert not fits
        if one.node is not None:
            amount = one.pod.containers[0].limits.get(GPU)
            key = (one.node, GPU)
            taken[key] = taken.get(key, 0) + (amount.value() if amount else 0)
    for (name, resource), count in taken.items():
        assert count <= len(cluster.nodes[int(name[1:])].planner.devices[resource].devices)


def test_a_bound_pod_asks_for_both_names(read: Read) -> None:
    manifests = read((*CLASSES, gpus("a", "16G", 2), wanting("x", gold=1)))
    [one] = cluster_of(manifests, "a").plan(manifests.pods).outcomes
    [container] = one.pod.containers
    assert {GOLD, GPU} <= container.requests.keys()
    assert one.pod.annotations[bound_key("c")] == f"gold={GPU}:1"
