"""A scheduler's questions about classes, and races for the last device."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pinfold.cluster.classes.extending import Extender, ExtenderError
from pinfold.cluster.lease import RENEWAL
from pinfold.core.classes.bound import bound_key
from pinfold.core.classes.placing import Preference
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import Moment
from pinfold.ports.kubernetes import (
    COMPUTE_RESOURCES,
    PODS,
    RESOURCE_CLASSES,
    ConflictError,
    KubernetesError,
    Object,
    Resource,
)
from tests.scenes.class_cluster import GPU, compute_resource, pod, resource_class
from tests.scenes.class_replicas import NODES, Replica, Watched, cluster_of
from tests.scenes.manager_harness import run_virtually


def create(cluster: FakeCluster, name: str, **amounts: Any) -> Object:
    return cluster.create(PODS, pod(name, **amounts))


async def bind(extender: Extender, one: Object, node: str) -> str:
    """What a scheduler is told; "" where the pod is bound."""
    metadata = one["metadata"]
    try:
        await extender.bind(metadata["namespace"], metadata["name"], metadata["uid"], node)
    except ExtenderError as error:
        return str(error)
    return ""


def play(scenario: Callable[[], Any]) -> None:
    run_virtually(scenario())


def test_a_pod_is_filtered_and_bound() -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1, n2=2)
        cluster.create(COMPUTE_RESOURCES, compute_resource("r-n3", "n3", "b", 4))
        replica = Replica(cluster)
        extender = await replica.ready()
        two = create(cluster, "two", gold=2)
        found = extender.fitting(two, NODES)
        assert found.nodes == ["n2"]
        assert found.failed == {
            "n1": "fewer than 2 devices of class gold",
            "n3": "no devices of class gold",
        }
        assert extender.scores(two, ["n2"]) == [10]
        assert await bind(extender, two, "n1") == (
            "node n1 does not fit any more: fewer than 2 devices of class gold"
        )
        assert await bind(extender, two, "n2") == ""
        bound = cluster.read(PODS, "two", "team")
        assert bound["spec"]["nodeName"] == "n2"
        assert bound["metadata"]["annotations"] == {
            bound_key("app"): f"gold={GPU}:2@r-n2",
        }
        assert await bind(extender, two, "n2") == "", "who asks twice is told the same"
        assert await bind(extender, two, "n1") == "pod team/two is on node n2 already"
        one = create(cluster, "one", gold=1)
        found = extender.fitting(one, NODES)
        assert found.nodes == ["n1"]
        assert found.failed["n2"] == "too few free devices of class gold"
        cluster.delete(PODS, "two", "team")
        await asyncio.sleep(1)
        assert extender.fitting(one, NODES).nodes == ["n1", "n2"]
        assert extender.scores(one, ["n1", "n2"]) == [10, 7]
        assert extender.assumed == 0
        await replica.end()

    play(scenario)


def test_nodes_are_spread_where_that_is_wished() -> None:
    async def scenario() -> None:
        replica = Replica(cluster_of(n1=1, n2=4), preference=Preference.SPREAD)
        extender = await replica.ready()
        assert extender.scores(pod("x", gold=1), ["n1", "n2"]) == [5, 9]
        await replica.end()

    play(scenario)


@pytest.mark.parametrize(
    ("asks", "reason"),
    [
        (pod("x", glod=1), "there is no class glod; there is gold"),
        (
            pod("x", bound=False, gold=1),
            "container app asks for class gold and was not bound to a raw resource: create",
        ),
        ({"metadata": {"name": "x"}, "spec": {"containers": [{}]}}, "spec.containers[0].name"),
    ],
)
def test_a_pod_that_can_run_nowhere_is_told_why(asks: Object, reason: str) -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1)
        replica = Replica(cluster)
        extender = await replica.ready()
        found = extender.fitting(asks, NODES)
        assert not found.nodes
        assert set(found.failed) == set(NODES)
        assert set(found.failed.values()) == {found.failed["n1"]}
        assert found.failed["n1"].startswith(reason)
        assert extender.scores(asks, NODES) == [0, 0, 0]
        await replica.end()

    play(scenario)


def test_a_class_of_the_cluster_is_counted_over_all_nodes() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.create(RESOURCE_CLASSES, resource_class("licence", level="CLUSTERLEVEL"))
        cluster.create(COMPUTE_RESOURCES, compute_resource("floating", "", "a", 2, "x.y/licence"))
        replica = Replica(cluster)
        extender = await replica.ready()
        pods = [cluster.create(PODS, pod(name, bound=False, licence=1)) for name in "abc"]
        assert extender.fitting(pods[0], NODES).nodes == NODES
        assert await bind(extender, pods[0], "n1") == ""
        assert await bind(extender, pods[1], "anywhere") == ""
        few = "too few free resources of class licence"
        assert extender.fitting(pods[2], NODES).failed == dict.fromkeys(NODES, few)
        assert await bind(extender, pods[2], "n1") == f"node n1 does not fit any more: {few}"
        await replica.end()

    play(scenario)


def test_only_who_leads_and_has_listed_all_is_asked() -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1)
        one = create(cluster, "x", gold=1)
        first = Replica(cluster, "first", always=False)
        assert first.extender.problems() == [
            "this replica does not lead",
            "the classes and compute resources are not listed yet",
        ]
        await first.ready()
        second = Replica(cluster, "second", always=False)
        await asyncio.sleep(60)
        told = "this replica does not lead"
        assert second.extender.problems() == [told]
        assert await bind(second.extender, one, "n1") == told
        with pytest.raises(ExtenderError, match=told):
            second.extender.fitting(one, NODES)
        with pytest.raises(ExtenderError, match=told):
            second.extender.scores(one, NODES)
        second.client.fails = lambda verb, resource: (
            "before" if (verb, resource) == ("list", PODS) else ""
        )
        await first.end()
        await asyncio.sleep(10)
        assert second.extender.problems() == ["the pods have not been listed yet"]
        second.client.fails = lambda _verb, _resource: ""
        assert await bind(await second.ready(), one, "n1") == ""
        await second.end()

    play(scenario)


@pytest.mark.parametrize("resource", [RESOURCE_CLASSES, COMPUTE_RESOURCES, PODS])
def test_while_a_watch_fails_for_longer_nobody_is_placed(resource: Resource) -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1)
        replica = Replica(cluster)
        extender = await replica.ready()
        one = create(cluster, "a", gold=1)
        replica.client.fails = lambda verb, of: (
            "before" if of == resource and verb in {"list", "watch"} else ""
        )
        cluster.disconnect()
        await asyncio.sleep(1)
        assert extender.problems() == [], "it goes over by itself, as a rule"
        await asyncio.sleep(30)
        (problem,) = extender.problems()
        assert "are not followed for" in problem
        assert "are not followed for" in await bind(extender, one, "n1")
        assert "nodeName" not in cluster.read(PODS, "a", "team")["spec"]
        replica.client.fails = lambda _verb, _resource: ""
        assert await bind(await replica.ready(), one, "n1") == ""
        await replica.end()

    play(scenario)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_what_is_not_known_is_looked_up_before_it_is_given_again(moment: Moment) -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1)
        replica = Replica(cluster)
        extender = await replica.ready()
        replica.client.watching.clear()
        first, second = (create(cluster, name, gold=1) for name in "ab")
        replica.client.fails = lambda verb, _resource: moment if verb == "bind" else ""
        assert "the connection was lost" in await bind(extender, first, "n1")
        replica.client.fails = lambda _verb, _resource: ""
        assert "too few free" in await bind(extender, second, "n1")
        await asyncio.sleep(30)
        assert "too few free" in await bind(extender, second, "n1")
        assert extender.fitting(first, NODES).nodes == ["n1"], "it is his"
        await asyncio.sleep(60)
        told = await bind(extender, second, "n1")
        assert (told == "") is (moment == "before")
        replica.client.watching.set()
        await asyncio.sleep(10)
        assert extender.assumed == 0
        await replica.end()

    play(scenario)


@pytest.mark.parametrize("status", [403, 409, 422, 429])
def test_who_is_refused_for_certain_has_nothing(status: int) -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1)
        replica = Replica(cluster)
        extender = await replica.ready()

        def refuse(verb: str, _resource: Resource) -> Moment:
            if verb == "bind":
                kind = ConflictError if status == 409 else KubernetesError
                raise kind("no", status=status)
            return ""

        replica.client.fails = refuse
        assert await bind(extender, create(cluster, "a", gold=1), "n1") == "no"
        await asyncio.sleep(0 if status != 409 else 2)
        assert extender.assumed == 0
        await replica.end()

    play(scenario)


def test_a_pod_that_wants_nothing_is_bound_if_it_names_a_class() -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1)
        replica = Replica(cluster)
        extender = await replica.ready()
        assert await bind(extender, create(cluster, "a", gold=0), "n1") == ""
        assert extender.assumed == 0
        assert await bind(extender, create(cluster, "b", gpu=1), "n1") == (
            "pod team/b asks for no class"
        )
        assert "nodeName" not in cluster.read(PODS, "b", "team")["spec"]
        await replica.end()

    play(scenario)


def test_who_is_on_a_node_is_on_no_other_whatever_was_asked() -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1, n2=1)
        replica = Replica(cluster)
        extender = await replica.ready()
        replica.client.watching.clear()
        first, second = (create(cluster, name, gold=1) for name in "ab")
        replica.client.fails = lambda verb, _resource: "before" if verb == "bind" else ""
        assert "the connection was lost" in await bind(extender, first, "n1")
        replica.client.fails = lambda _verb, _resource: ""
        assert await bind(extender, first, "n2") == ""
        assert "too few free" in await bind(extender, second, "n1")
        # No watch tells of it, and the request is still young.
        await asyncio.sleep(10)
        assert "too few free" in await bind(extender, second, "n2")
        assert await bind(extender, second, "n1") == ""
        await replica.end()

    play(scenario)


def test_who_is_held_up_binds_no_more_when_his_time_is_over() -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1)
        replica = Replica(cluster, always=False)
        extender = await replica.ready()
        one = create(cluster, "a", gold=1)
        # The process stops, and goes on: a scheduler asks before anything else of it has run.
        replica.held_up = RENEWAL
        assert await bind(extender, one, "n1") == "this replica does not lead"
        assert "nodeName" not in cluster.read(PODS, "a", "team")["spec"]
        await replica.end()

    play(scenario)


def test_a_pod_of_the_same_name_is_another_one() -> None:
    async def scenario() -> None:
        cluster = cluster_of(n1=1)
        replica = Replica(cluster)
        extender = await replica.ready()
        first = create(cluster, "a", gold=1)
        cluster.delete(PODS, "a", "team")
        assert await bind(extender, first, "n1") == "pod team/a is there no more"
        second = create(cluster, "a", gold=1)
        assert await bind(extender, first, "n1") == "pod team/a is another one now"
        metadata = second["metadata"] | {"finalizers": ["x.y/z"]}
        cluster.update(PODS, second | {"metadata": metadata})
        cluster.delete(PODS, "a", "team")
        assert await bind(extender, second, "n1") == "pod team/a is being deleted"
        await replica.end()

    play(scenario)


def test_a_leader_that_stops_waits_for_what_is_on_its_way() -> None:
    async def scenario() -> None:
        cluster = Watched()
        cluster.create(RESOURCE_CLASSES, resource_class("gold", "a"))
        cluster.create(COMPUTE_RESOURCES, compute_resource("r-n1", "n1", "a", 1))
        first = Replica(cluster, "first", always=False)
        extender = await first.ready()
        second = Replica(cluster, "second", always=False)
        first.client.delay = 3
        asked = asyncio.ensure_future(bind(extender, create(cluster, "a", gold=1), "n1"))
        await asyncio.sleep(0.1)
        asked.cancel()  # the scheduler waits no more
        await first.end()
        told = await bind(await second.ready(), create(cluster, "b", gold=1), "n1")
        assert told == "node n1 does not fit any more: too few free devices of class gold"
        assert cluster.read(PODS, "a", "team")["spec"]["nodeName"] == "n1"
        assert cluster.broken == []
        await second.end()

    play(scenario)


class Chaos:
    """Two replicas, a scheduler that asks for many at once, and everything that may fail."""

    def __init__(self, cluster: Watched, chance: random.Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.calm = False
        self.replicas: list[Replica] = []

    def start(self) -> None:
        chance = self.chance
        replica = Replica(self.cluster, f"{chance.random()}", always=False)
        replica.client.fails = self._fails
        replica.client.takes = lambda: 0.01 if self.calm else chance.choice([0, 0, 0.01, 0.2, 3])
        self.replicas.append(replica)

    def _fails(self, verb: str, _resource: Resource) -> Moment:
        if self.calm or self.chance.random() > 0.1:
            return ""
        if verb == "bind" and self.chance.random() < 0.3:
            raise KubernetesError("too many", status=429)
        return self.chance.choice(["before", "after"])

    async def trouble(self) -> None:
        """Until it is calm, one thing after the other."""
        while not self.calm:
            await asyncio.sleep(self.chance.choice([0.5, 5, 20]))
            replica = self.chance.choice(self.replicas)
            match self.chance.randrange(5):
                case 0:
                    self.replicas.remove(replica)
                    await replica.end(at_once=self.chance.random() < 0.7)
                    self.start()
                case 1:
                    replica.client.watching.clear()
                case 2:
                    replica.client.watching.set()
                case 3:
                    self.cluster.disconnect()
                case _:
                    self.cluster.disconnect()
                    self.cluster.compact()
        for one in self.replicas:
            one.client.watching.set()

    async def schedule(self, name: str, **amounts: Any) -> None:
        """What a scheduler does for one pod until it is bound; now and then twice at once."""
        chance = self.chance
        one = self.cluster.create(PODS, pod(name, bound="gold" in amounts, **amounts))
        for _ in range(60):
            await asyncio.sleep(chance.choice([0, 0.1, 2, 10]))
            extender = chance.choice(self.replicas).extender
            nodes: Sequence[str] = ()
            with contextlib.suppress(ExtenderError):
                nodes = extender.fitting(one, NODES).nodes
            if not nodes:
                continue
            asked = [
                asyncio.ensure_future(bind(extender, one, chance.choice(nodes)))
                for _ in range(chance.choice([1, 1, 2]))
            ]
            await asyncio.wait(asked, timeout=5)
            if self.cluster.read(PODS, name, "team")["spec"].get("nodeName"):
                break
        if chance.random() < 0.4:
            self.cluster.delete(PODS, name, "team")


@settings(deadline=None)
@example(55)
@example(28491)
@example(567650)
@given(st.integers(0, 2**32))
def test_no_device_is_ever_given_twice(seed: int) -> None:
    async def scenario() -> None:
        cluster, chance = Watched(), random.Random(seed)  # noqa: S311 - no secret
        cluster.create(RESOURCE_CLASSES, resource_class("gold", "a"))
        cluster.create(RESOURCE_CLASSES, resource_class("licence", "l", level="CLUSTERLEVEL"))
        for node, count in cluster.capacity.items():
            cluster.create(COMPUTE_RESOURCES, compute_resource(f"r-{node}", node, "a", count))
        cluster.create(COMPUTE_RESOURCES, compute_resource("l", "", "l", 3, "x.y/l"))
        chaos = Chaos(cluster, chance)
        chaos.start()
        chaos.start()
        troubles = asyncio.ensure_future(chaos.trouble())
        works = [chaos.schedule(f"p{at}", gold=chance.choice([1, 1, 2])) for at in range(6)]
        works += [chaos.schedule(f"l{at}", licence=chance.choice([1, 2])) for at in range(3)]
        async with asyncio.timeout(3000):
            await asyncio.gather(*works)
        chaos.calm = True
        async with asyncio.timeout(1000):
            await troubles
        assert cluster.broken == []
        # Nothing leaks: what is free in truth can be given.
        await asyncio.sleep(200)
        (leader,) = [one for one in chaos.replicas if not one.extender.problems()]
        assert leader.extender.assumed == 0
        for node, count in cluster.capacity.items():
            free = count - leader.holdings.taken(GPU).get(node, 0)
            if free:
                last = create(cluster, f"last-{node}", gold=free)
                assert await bind(leader.extender, last, node) == ""
        await asyncio.gather(*(one.end() for one in chaos.replicas))

    play(scenario)
