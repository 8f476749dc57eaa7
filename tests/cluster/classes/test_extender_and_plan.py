"""A plan of nodes and the scheduler's extender answer the same, pod by pod."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold import CPUSet, NodeConfig, parse_short_form
from pinfold.cluster.classes.extending import Extender
from pinfold.cluster.classes.holdings import Holdings
from pinfold.cluster.classes.known import Known
from pinfold.core.classes.api import class_from_api, compute_resource_from_api
from pinfold.core.classes.bound import KEY_PREFIX
from pinfold.core.classes.names import class_resource
from pinfold.core.pod.api import pod_from_api
from pinfold.core.pod.defaults import apply_defaults
from pinfold.core.pod.pod import Pod
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.planning.nodes.devices import node_devices, node_resources
from pinfold.planning.nodes.planned import Cluster, NodesPlan, PlannedNode
from pinfold.planning.planner import Planner
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, PODS, RESOURCE_CLASSES, Object
from tests.scenes.class_cluster import GPU, compute_resource, resource_class
from tests.scenes.manager_harness import run_virtually

LEVEL = "example.com/licence"
CLASSES = (
    resource_class("gold", "a", priority=10),
    resource_class("any", "a", "b"),
    resource_class("seat", "seat", level="CLUSTERLEVEL"),
)
KINDS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=2)
ASKED = st.tuples(st.sampled_from(["gold", "any", "seat", GPU]), st.integers(1, 2))


def asking(name: str, one: str, count: int) -> Pod:
    resource = one if one == GPU else class_resource(one)
    limits = {"cpu": "1", "memory": "64Mi", resource: str(count)}
    containers = [{"name": "app", "resources": {"limits": limits}}]
    manifest = {"metadata": {"name": name}, "spec": {"containers": containers}}
    return apply_defaults(pod_from_api(manifest))


def planned(resources: list[Object], nodes: list[str], pods: list[Pod]) -> NodesPlan:
    classes = tuple(map(class_from_api, CLASSES))
    described = [compute_resource_from_api(one) for one in resources]
    config = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]))
    plain = Planner(parse_short_form("1s32c1t"), config)
    made = []
    known = [one for one in described if not one.node_name]
    for name in nodes:
        devices = node_devices(name, {}, described, plain.view)
        made.append(PlannedNode(name, Planner(plain.machine, config, devices=devices)))
        known += node_resources(name, devices, classes, described)
    return Cluster(tuple(made), classes, tuple(known)).plan(pods)


def created(cluster: FakeCluster, pod: Pod, node: str | None = None) -> Object:
    """A pod as the webhook has let it in."""
    [container] = pod.containers
    resources = {
        "requests": {name: str(n) for name, n in container.requests.items()},
        "limits": {name: str(n) for name, n in container.limits.items()},
    }
    spec: dict[str, Any] = {"containers": [{"name": "app", "resources": resources}]}
    if node is not None:
        spec["nodeName"] = node
    return cluster.create(
        PODS,
        {
            "metadata": {
                "name": pod.name,
                "namespace": "team",
                "annotations": dict(pod.annotations),
            },
            "spec": spec,
            "status": {"phase": "Pending"},
        },
    )


@settings(max_examples=60, deadline=None)
@given(
    there=st.lists(KINDS, min_size=1, max_size=4),
    seats=st.integers(0, 3),
    asked=st.lists(ASKED, max_size=9),
)
def test_the_plan_is_the_answer_of_the_extender(
    there: list[list[tuple[str, int]]], seats: int, asked: list[tuple[str, int]]
) -> None:
    nodes = [f"n{at}" for at in range(len(there))]
    resources = [
        compute_resource(f"{node}-{at}", node, kind, count)
        for node, parts in zip(nodes, there, strict=True)
        for at, (kind, count) in enumerate(parts)
    ]
    resources.append(compute_resource("seats", "", "seat", seats, LEVEL))
    pods = [asking(f"p{at}", *one) for at, one in enumerate(asked)]
    plan = planned(resources, nodes, pods)

    async def scenario() -> None:
        cluster = FakeCluster()
        for one in CLASSES:
            cluster.create(RESOURCE_CLASSES, one)
        for one in resources:
            cluster.create(COMPUTE_RESOURCES, one)
        client = FakeKubernetes(cluster)
        problems: list[str] = []
        known, holdings = Known(client, problems.append), Holdings(client, problems.append)
        extender = Extender(client, known, holdings, leads=lambda: True)
        tasks = [asyncio.ensure_future(one) for one in (known.follow(), extender.lead())]
        await asyncio.gather(known.synced.wait(), holdings.synced.wait())
        for outcome in plan.outcomes:
            if outcome.reason == "Forbidden":
                continue
            asks = any(class_resource("") in name for name in outcome.pod.containers[0].requests)
            if not asks:
                # A scheduler does not ask about it, and binds it by itself.
                if outcome.node is not None:
                    created(cluster, outcome.pod, outcome.node)
                    await asyncio.sleep(1)
                continue
            one = created(cluster, outcome.pod)
            found = extender.fitting(one, nodes)
            if outcome.node is None:
                assert not found.nodes
                assert set(found.failed.values()) == set(outcome.refused_by)
                continue
            scores = dict(zip(found.nodes, extender.scores(one, found.nodes), strict=True))
            assert scores[outcome.node] == max(scores.values())
            metadata = one["metadata"]
            await extender.bind("team", metadata["name"], metadata["uid"], outcome.node)
            said = cluster.read(PODS, outcome.pod.name, "team")["metadata"]["annotations"]
            counts = {
                key.removeprefix(KEY_PREFIX): text.partition("@")[0] for key, text in said.items()
            }
            wanted = {key: text.partition("@")[0] for key, text in outcome.binding.items()}
            assert counts == wanted
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtually(scenario())
