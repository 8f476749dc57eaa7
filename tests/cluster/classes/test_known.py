"""What is known of a cluster's classes, and of who has what of them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.cluster.classes.holdings import Holdings
from pinfold.cluster.classes.known import Known
from pinfold.core.classes.api import class_from_api, compute_resource_from_api
from pinfold.core.classes.placing import cluster_pools, pools_of
from pinfold.core.classes.raw_names import RawName, Unbindable
from pinfold.core.pod.api import PodError
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes, Moment
from pinfold.ports.kubernetes import (
    COMPUTE_RESOURCES,
    PODS,
    RESOURCE_CLASSES,
    Kubernetes,
    KubernetesError,
    Object,
    Resource,
)
from tests.scenes.class_cluster import GPU, compute_resource, install, pod, resource_class
from tests.scenes.kubernetes_worlds import WORLDS, in_background, world
from tests.scenes.manager_harness import run_virtually
from tests.scenes.waiting import PATIENCE

T = TypeVar("T")


@pytest.mark.parametrize("kind", WORLDS)
def test_classes_are_followed(kind: str) -> None:
    async def scenario(cluster: FakeCluster, client: Kubernetes) -> None:
        install(cluster)
        await client.create(RESOURCE_CLASSES, resource_class("gold", "a"))
        await client.create(COMPUTE_RESOURCES, compute_resource("r1", "n1", "a", 2))
        news = asyncio.Event()
        known, holdings = Known(client), Holdings(client)
        known.listeners.append(news.set)
        holdings.listeners.append(lambda _uid: news.set())

        async def seen(taken: dict[str, int], **pools: tuple[int, list[str]]) -> None:
            async with asyncio.timeout(20 * PATIENCE):
                while taken != holdings.taken(GPU) or pools != {
                    node: (one.capacity, sorted(one.all_of))
                    for node, one in known.pools(GPU).items()
                }:
                    news.clear()
                    await news.wait()

        async with in_background(known.follow(), holdings.follow()):
            await asyncio.wait_for(known.synced.wait(), 20 * PATIENCE)
            await seen({}, n1=(2, ["gold"]))
            made = await client.get(COMPUTE_RESOURCES, "r1")
            await client.update(COMPUTE_RESOURCES, made | {"status": {"capacity": 1}}, "status")
            await seen({}, n1=(1, ["gold"]))
            await client.create(RESOURCE_CLASSES, resource_class("any", priority=1))
            await seen({}, n1=(1, ["any"]))
            await client.delete(RESOURCE_CLASSES, "any")
            await client.create(PODS, pod("p", namespace="default", gold=1))
            binding = {
                "metadata": {"name": "p", "namespace": "default", "annotations": {"a": "b"}},
                "target": {"kind": "Node", "name": "n1"},
            }
            await client.create(PODS, binding, "binding")
            await seen({"n1": 1}, n1=(1, ["gold"]))
            await client.delete(PODS, "p", "default")
            await client.delete(COMPUTE_RESOURCES, "r1")
            await seen({})

    async def run() -> None:
        async with world(kind) as (cluster, client):
            await scenario(cluster, client)

    asyncio.run(run())


def test_what_cannot_be_read_is_told_and_stops_nothing() -> None:
    async def scenario() -> None:
        cluster, problems = FakeCluster(), list[str]()
        cluster.create(RESOURCE_CLASSES, {"metadata": {"name": "memory"}, "spec": {}})
        cluster.create(RESOURCE_CLASSES, resource_class("gold"))
        cluster.create(COMPUTE_RESOURCES, {"metadata": {"name": "r0"}, "spec": {"devices": 1}})
        cluster.create(COMPUTE_RESOURCES, compute_resource("r1", "n1", "a", 2))
        broken = pod("broken", node="n1", gold=1)
        broken["spec"]["containers"][0]["resources"]["requests"][GPU] = "many"
        cluster.create(PODS, broken)
        client = FakeKubernetes(cluster)
        known, holdings = Known(client, problems.append), Holdings(client, problems.append)
        async with in_background(known.follow(), holdings.follow()):
            await asyncio.gather(known.synced.wait(), holdings.synced.wait())
            assert known.pools(GPU)["n1"].all_of == {"gold"}
            assert known.classes.keys() == {"gold"}
            assert known.objects.keys() == {"gold", "memory"}
            assert not holdings.taken(GPU)
            # One that can be read no more counts no more.
            one = cluster.read(COMPUTE_RESOURCES, "r1")
            cluster.update(COMPUTE_RESOURCES, one | {"spec": {"devices": ["a"]}})
            await asyncio.sleep(1)
            assert not known.pools(GPU)
        told = sorted(one.partition(":")[0] for one in problems)
        assert told == [
            "ComputeResource r0 is left out",
            "ComputeResource r1 is left out",
            "ResourceClass memory is left out",
            "pod team/broken counts for nothing",
        ]

    run_virtually(scenario())


def test_who_listens_is_told_of_what_became_another_one() -> None:
    async def scenario() -> None:
        cluster, told, seen = FakeCluster(), list[str](), list[str]()
        cluster.create(RESOURCE_CLASSES, resource_class("gold", "a"))
        cluster.create(COMPUTE_RESOURCES, compute_resource("r1", "n1", "a", 2))
        known = Known(FakeKubernetes(cluster))
        known.listeners.append(lambda: told.append(",".join(known.classes)))
        known.class_listeners.append(seen.append)

        async def tells(resource: Resource, name: str, **changed: Any) -> int:
            told.clear()
            found = cluster.read(resource, name)
            sub = "status" if "status" in changed else ""
            cluster.update(resource, found | changed, sub)
            await asyncio.sleep(1)
            return len(told)

        async with in_background(known.follow()):
            await known.synced.wait()
            await asyncio.sleep(1)
            assert told[-1] == "gold"
            pools = known.pools(GPU)["n1"]
            seen.clear()
            # A leader counts.
            assert not await tells(RESOURCE_CLASSES, "gold", status={"requested": "5"})
            assert seen == ["gold"]
            assert known.objects["gold"]["status"] == {"requested": "5"}
            # What pods are given is known, and nodes have what they had.
            assert await tells(RESOURCE_CLASSES, "gold", status={"resourceName": GPU}) == 1
            assert known.classes["gold"].last_raw_name == GPU
            assert known.pools(GPU)["n1"] is pools
            r1 = cluster.read(COMPUTE_RESOURCES, "r1")
            assert not await tells(
                COMPUTE_RESOURCES, "r1", metadata=r1["metadata"] | {"labels": {"a": "b"}}
            )
            assert await tells(COMPUTE_RESOURCES, "r1", status={"capacity": 1}) == 1
            # A list that says the same is no news.
            told.clear()
            cluster.disconnect()
            cluster.compact()
            await asyncio.sleep(60)
            assert not told
            cluster.delete(RESOURCE_CLASSES, "gold")
            await asyncio.sleep(1)
            assert told == [""]

    run_virtually(scenario())


def test_a_class_that_can_be_read_no_more_keeps_its_devices_and_is_given_to_nobody() -> None:
    async def scenario() -> None:
        cluster, problems = FakeCluster(), list[str]()
        cluster.create(RESOURCE_CLASSES, resource_class("gold", "a", priority=1))
        cluster.create(RESOURCE_CLASSES, resource_class("silver"))
        cluster.create(RESOURCE_CLASSES, {"metadata": {"name": "memory"}, "spec": {}})
        cluster.create(COMPUTE_RESOURCES, compute_resource("r1", "n1", "a", 2))
        known = Known(FakeKubernetes(cluster), problems.append)
        async with in_background(known.follow()):
            await known.synced.wait()
            assert known.raw_names["gold"] == RawName(GPU, 1)
            found = cluster.read(RESOURCE_CLASSES, "gold")
            good = found["spec"]
            found = cluster.update(
                RESOURCE_CLASSES, {**found, "spec": {**good, "priority": "high"}}
            )
            await asyncio.sleep(1)
            assert known.pools(GPU)["n1"].all_of == {"gold"}
            said = known.raw_names["gold"]
            assert isinstance(said, Unbindable)
            assert str(said).startswith("class gold cannot be used: spec.priority: ")
            assert str(known.raw_names["memory"]).startswith("class memory cannot be used: ")
            # What is no other problem is told once.
            found = cluster.update(RESOURCE_CLASSES, {**found, "status": {"a": "b"}}, "status")
            await asyncio.sleep(1)
            assert [one.partition(" is ")[0] for one in problems] == [
                "ResourceClass memory",
                "ResourceClass gold",
            ]
            cluster.update(RESOURCE_CLASSES, {**found, "spec": good})
            cluster.delete(RESOURCE_CLASSES, "memory")
            await asyncio.sleep(1)
            assert known.raw_names["gold"] == RawName(GPU, 1)
            assert known.raw_names.keys() == {"gold", "silver"}
            assert known.broken == {}

    run_virtually(scenario())


def test_a_class_that_goes_to_the_other_level_has_no_pool_of_the_first() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        made = cluster.create(RESOURCE_CLASSES, resource_class("wan", level="CLUSTERLEVEL"))
        cluster.create(COMPUTE_RESOURCES, compute_resource("r1", "", "a", 2))
        known = Known(FakeKubernetes(cluster))
        async with in_background(known.follow()):
            await known.synced.wait()
            assert known.cluster_pools["wan"].capacity == 2
            cluster.update(RESOURCE_CLASSES, {**made, "spec": resource_class("wan")["spec"]})
            await asyncio.sleep(1)
            assert known.cluster_pools == {}

    run_virtually(scenario())


def test_a_watch_that_has_stopped_is_told_until_it_goes_on() -> None:
    async def scenario() -> None:
        cluster, gone = FakeCluster(), False
        cluster.create(RESOURCE_CLASSES, resource_class("gold"))
        client = FakeKubernetes(cluster)

        def fails(verb: str, resource: Resource) -> Moment:
            if gone and (verb, resource) in (
                ("list", COMPUTE_RESOURCES),
                ("watch", COMPUTE_RESOURCES),
            ):
                raise KubernetesError("no route")
            return ""

        client.fails = fails
        known = Known(client)
        assert known.problems() == ("the classes and compute resources are not listed yet",)
        async with in_background(known.follow()):
            await known.synced.wait()
            await asyncio.sleep(3600)
            assert known.problems() == ()
            gone = True
            cluster.disconnect()
            await asyncio.sleep(5)
            assert known.problems() == ()
            await asyncio.sleep(60)
            (problem,) = known.problems()
            assert problem.startswith("the compute resources are not followed for ")
            assert "no route" in problem
            gone = False
            await asyncio.sleep(120)
            assert known.problems() == ()

    run_virtually(scenario())


def test_who_has_ended_holds_nothing_and_who_waits_asks() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        for name, node, phase in (("a", "n1", "Running"), ("b", "n1", "Failed"), ("c", "", "")):
            made = cluster.create(PODS, pod(name, node=node, gold=2))
            cluster.update(PODS, made | {"status": {"phase": phase}}, "status")
        cluster.create(PODS, pod("plain", node="n1"))
        holdings = Holdings(FakeKubernetes(cluster))
        async with in_background(holdings.follow()):
            await holdings.synced.wait()
            assert holdings.taken(GPU) == {"n1": 2}
            assert (holdings.asked("gold"), holdings.taken_of_cluster("gold")) == (4, 2)
            kept = list(holdings)
            assert sorted(one.node for one in kept) == ["", "n1"]
            assert kept[0].amounts is kept[1].amounts
            uid = cluster.read(PODS, "a", "team")["metadata"]["uid"]
            held = holdings.get(uid)
            assert held is not None
            assert held.node == "n1"
        assert not holdings.synced.is_set()
        assert (holdings.taken(GPU), holdings.asked("gold")) == ({}, 0)

    run_virtually(scenario())


def _change(cluster: FakeCluster, chance: random.Random) -> None:
    """Anything that may happen to an object."""
    name, kinds = chance.choice("xyz"), chance.sample("ab", chance.randrange(3))
    resource, made = chance.choice(
        [
            (
                RESOURCE_CLASSES,
                resource_class(
                    name,
                    *kinds,
                    priority=chance.randrange(2),
                    level=chance.choice(["NODELEVEL", "CLUSTERLEVEL"]),
                ),
            ),
            (
                COMPUTE_RESOURCES,
                compute_resource(name, chance.choice(["", "n1"]), chance.choice("ab"), 2),
            ),
            (COMPUTE_RESOURCES, {"metadata": {"name": name}, "spec": {"devices": "none"}}),
            (PODS, pod(name, node=chance.choice(["", "n1", "n2"]), x=chance.randrange(3))),
        ]
    )
    namespace = made["metadata"].get("namespace", "")
    there = {one["metadata"]["name"] for one in cluster.chunk(resource).objects}
    if name not in there:
        cluster.create(resource, made)
    elif chance.random() < 0.4:
        cluster.delete(resource, name, namespace)
    else:
        cluster.update(resource, cluster.read(resource, name, namespace) | {"spec": made["spec"]})


def _read(cluster: FakeCluster, resource: Resource, of: Callable[[Object], T]) -> list[T]:
    found = []
    for one in cluster.chunk(resource).objects:
        with contextlib.suppress(PodError):
            found.append(of(one))
    return found


@given(st.integers(0, 2**32), st.integers(0, 40))
def test_what_is_known_is_what_there_is_whatever_came_when(seed: int, steps: int) -> None:
    async def scenario() -> None:
        chance, cluster = random.Random(seed), FakeCluster()  # noqa: S311 - no secret
        client = FakeKubernetes(cluster, chunk=2)
        known, holdings = Known(client), Holdings(client)
        async with in_background(known.follow(), holdings.follow()):
            for _ in range(steps):
                _change(cluster, chance)
                match chance.randrange(6):
                    case 0:
                        cluster.disconnect()
                        cluster.compact()
                    case 1:
                        cluster.disconnect()
                    case 2:
                        await asyncio.sleep(chance.choice([0, 0.001, 1]))
                    case 3:
                        known.pools(GPU)  # what is asked in between changes nothing
            await asyncio.sleep(5)
            classes = _read(cluster, RESOURCE_CLASSES, class_from_api)
            resources = _read(cluster, COMPUTE_RESOURCES, compute_resource_from_api)
            expected = pools_of(classes, resources)
            assert expected == {(node, GPU): one for node, one in known.pools(GPU).items()}
            assert known.cluster_pools == cluster_pools(classes, resources)
            taken, asked = Counter[str](), 0
            for one in cluster.chunk(PODS).objects:
                requests = one["spec"]["containers"][0]["resources"]["requests"]
                count = int(requests.get(GPU, 0))
                asked += count
                if count and one["spec"].get("nodeName"):
                    taken[one["spec"]["nodeName"]] += count
            assert holdings.taken(GPU) == taken
            assert holdings.asked("x") == asked
            assert holdings.taken_of_cluster("x") == taken.total()

    run_virtually(scenario())
