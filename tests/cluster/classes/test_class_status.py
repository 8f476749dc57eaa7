"""The status of classes: what there is and what is asked for, and no write without a change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.cluster.classes.holdings import Holdings
from pinfold.cluster.classes.known import Known
from pinfold.cluster.classes.status import ClassStatus
from pinfold.core.classes.api import class_from_api, compute_resource_from_api
from pinfold.core.classes.resource_class import classes_of
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes, Moment
from pinfold.ports.kubernetes import (
    COMPUTE_RESOURCES,
    PODS,
    RESOURCE_CLASSES,
    KubernetesError,
    Resource,
    refusal,
)
from tests.scenes.class_cluster import GPU, compute_resource, pod, resource_class
from tests.scenes.manager_harness import run_virtually


class Leader:
    """One replica that leads."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.client = FakeKubernetes(cluster)
        self.client.fails = self._fails
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.failing: dict[int, Moment] = {}
        self.error: KubernetesError | None = None
        known = Known(self.client, self.problems.append)
        holdings = Holdings(self.client, self.problems.append)
        self.status = ClassStatus(self.client, known, holdings, report=self.problems.append)
        works: list[Awaitable[None]] = [known.follow(), holdings.follow(), self.status.run()]
        self.tasks = [asyncio.ensure_future(work) for work in works]

    async def end(self) -> None:
        for task in self.tasks:
            assert not task.done(), task
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _fails(self, verb: str, _resource: Resource) -> Moment:
        if verb in ("update", "get"):
            self.requests.append(verb)
            if self.error is not None:
                raise self.error
        return self.failing.pop(len(self.requests), "")


def play(scenario: Callable[[FakeCluster, Leader], Awaitable[None]]) -> None:
    async def run() -> None:
        cluster = FakeCluster()
        cluster.create(RESOURCE_CLASSES, resource_class("gold", "p100", priority=1))
        cluster.create(RESOURCE_CLASSES, resource_class("any"))
        cluster.create(RESOURCE_CLASSES, resource_class("wan", "wan", level="CLUSTERLEVEL"))
        leader = Leader(cluster)
        try:
            await scenario(cluster, leader)
        finally:
            await leader.end()

    run_virtually(run())


def status(cluster: FakeCluster, name: str) -> dict[str, Any]:
    found = cluster.read(RESOURCE_CLASSES, name).get("status", {})
    assert isinstance(found, dict)
    return found


def counts(cluster: FakeCluster) -> dict[str, tuple[str, str, str]]:
    """Allocatable, requested and Bindable of each class."""
    return {
        one["metadata"]["name"]: (
            one["status"]["allocatable"],
            one["status"]["requested"],
            one["status"]["conditions"][-1]["status"],
        )
        for one in cluster.chunk(RESOURCE_CLASSES).objects
    }


def test_what_there_is_and_what_is_asked_for() -> None:
    async def scenario(cluster: FakeCluster, leader: Leader) -> None:
        for one in (
            compute_resource("a", "n1", "p100", 2),
            compute_resource("b", "n1", "k80", 3),
            compute_resource("c", "n2", "k80", 4),
            compute_resource("d", "", "wan", 7, "example.com/wan"),
        ):
            cluster.create(COMPUTE_RESOURCES, one)
        cluster.create(PODS, pod("waits", gold=2))
        cluster.create(PODS, pod("runs", node="n2", any=1, gold=1))
        cluster.create(PODS, {**pod("done", any=8), "status": {"phase": "Succeeded"}})
        await asyncio.sleep(1)
        assert counts(cluster) == {
            # On n1, which alone has some, GPUs are of other classes, too.
            "gold": ("2", "3", "False"),
            "any": ("7", "1", "True"),
            "wan": ("7", "0", "True"),
        }
        (condition,) = status(cluster, "gold")["conditions"]
        assert condition["reason"] == "NotBindable"
        assert "nvidia.com/gpu is of other classes, too" in condition["message"]
        (condition,) = status(cluster, "any")["conditions"]
        assert condition["message"] == "pods that ask for it are given nvidia.com/gpu"
        assert leader.problems == []

    play(scenario)


def test_a_raw_name_is_kept_while_no_node_tells_of_it_and_when_others_do() -> None:
    async def scenario(cluster: FakeCluster, _leader: Leader) -> None:
        def said() -> tuple[str, str]:
            found = status(cluster, "gold")
            return found["resourceName"], found["conditions"][-1]["message"]

        given = "pods that ask for it are given nvidia.com/gpu"
        await asyncio.sleep(1)
        assert "resourceName" not in status(cluster, "gold")
        cluster.create(COMPUTE_RESOURCES, compute_resource("a", "n1", "p100", 2))
        await asyncio.sleep(2)
        assert said() == (GPU, given)
        cluster.delete(COMPUTE_RESOURCES, "a")
        await asyncio.sleep(2)
        assert said() == (GPU, f"{given}, which no node has of it now")
        cluster.create(COMPUTE_RESOURCES, compute_resource("a", "n1", "p100", 2))
        cluster.create(COMPUTE_RESOURCES, compute_resource("b", "n2", "p100", 2, "x.y/gpu"))
        await asyncio.sleep(2)
        assert said() == (GPU, f"{given}; they are placed nowhere where it goes by x.y/gpu")
        # Nobody is given any while the only node has others, too; it is known what they were.
        cluster.delete(COMPUTE_RESOURCES, "b")
        cluster.create(COMPUTE_RESOURCES, compute_resource("c", "n1", "k80", 2))
        await asyncio.sleep(2)
        assert said()[0] == GPU
        assert counts(cluster)["gold"][2] == "False"
        cluster.delete(COMPUTE_RESOURCES, "a")
        cluster.delete(COMPUTE_RESOURCES, "c")
        await asyncio.sleep(2)
        second = Leader(cluster)
        await asyncio.sleep(2)
        assert second.requests == []
        assert said() == (GPU, f"{given}, which no node has of it now")
        await second.end()
        found = cluster.read(RESOURCE_CLASSES, "gold")
        found["spec"]["provisionConfig"]["resourceType"] = "CLUSTERLEVEL"
        cluster.update(RESOURCE_CLASSES, found)
        await asyncio.sleep(2)
        assert "resourceName" not in status(cluster, "gold")

    play(scenario)


def test_a_class_that_cannot_be_read_says_so() -> None:
    async def scenario(cluster: FakeCluster, leader: Leader) -> None:
        await asyncio.sleep(1)
        cluster.create(RESOURCE_CLASSES, {"metadata": {"name": "memory"}, "spec": {}})
        await asyncio.sleep(2)
        (condition,) = status(cluster, "memory")["conditions"]
        assert (condition["status"], condition["reason"]) == ("False", "Invalid")
        assert "class memory cannot be used: metadata.name" in condition["message"]
        await asyncio.sleep(600)
        assert leader.status.written == 4

    play(scenario)


def test_nothing_is_written_without_a_change_and_a_burst_once() -> None:
    async def scenario(cluster: FakeCluster, leader: Leader) -> None:
        await asyncio.sleep(1)
        assert leader.status.written == 3
        await asyncio.sleep(36000)
        assert leader.requests == ["update"] * 3
        since = status(cluster, "gold")["conditions"]
        for number in range(200):
            cluster.create(PODS, pod(f"p{number}", gold=1))
            cluster.create(COMPUTE_RESOURCES, compute_resource(f"c{number}", "n", "p100", 1))
        await asyncio.sleep(2)
        assert counts(cluster)["gold"] == ("200", "200", "True")
        assert leader.status.written <= 5
        # What others write beside stays, and what they write over is put back.
        found = cluster.read(RESOURCE_CLASSES, "gold")
        mine = found["status"]["conditions"]
        assert mine != since
        theirs = {"type": "Approved", "status": "True"}
        found["status"] |= {"requested": "5", "conditions": [theirs, *mine]}
        cluster.update(RESOURCE_CLASSES, found, "status")
        await asyncio.sleep(2)
        assert status(cluster, "gold")["requested"] == "200"
        assert status(cluster, "gold")["conditions"] == [theirs, *mine]

    play(scenario)


def test_a_leader_that_comes_later_writes_nothing_that_is_there() -> None:
    async def scenario(cluster: FakeCluster, _leader: Leader) -> None:
        await asyncio.sleep(1)
        second = Leader(cluster)
        await asyncio.sleep(5)
        assert second.requests == []
        await second.end()

    play(scenario)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_each_request_may_fail(moment: Moment) -> None:
    for number in range(1, 8):

        async def scenario(cluster: FakeCluster, leader: Leader, at: int = number) -> None:
            leader.failing = {at: moment}
            await asyncio.sleep(5)
            cluster.create(COMPUTE_RESOURCES, compute_resource("a", "n1", "p100", 2))
            found = cluster.read(RESOURCE_CLASSES, "any")
            cluster.update(RESOURCE_CLASSES, {**found, "status": {}}, "status")
            await asyncio.sleep(60)
            assert counts(cluster)["gold"] == ("2", "0", "True")
            assert counts(cluster)["any"] == ("0", "0", "False")

        play(scenario)


def test_one_that_is_refused_holds_up_no_other() -> None:
    async def scenario(cluster: FakeCluster, leader: Leader) -> None:
        leader.error = refusal(403, "Forbidden", "no right")
        await asyncio.sleep(600)
        assert leader.problems == ["the status of classes is not written: no right"]
        assert len(leader.requests) < 120, "later each time"
        leader.error = None
        await asyncio.sleep(60)
        assert len(counts(cluster)) == 3

    play(scenario)


def test_a_watch_that_is_behind_and_a_class_that_goes() -> None:
    async def scenario(cluster: FakeCluster, leader: Leader) -> None:
        await asyncio.sleep(1)
        leader.client.watching.clear()
        found = cluster.read(RESOURCE_CLASSES, "gold")
        found["metadata"]["labels"] = {"x": "y"}
        cluster.update(RESOURCE_CLASSES, found)
        cluster.delete(RESOURCE_CLASSES, "wan")
        cluster.create(PODS, pod("p", gold=1, wan=1))
        leader.client.watching.set()
        await asyncio.sleep(5)
        assert set(counts(cluster)) == {"gold", "any"}
        assert counts(cluster)["gold"] == ("0", "1", "False")
        assert leader.problems == []

    play(scenario)


PLACES = st.tuples(
    st.sampled_from(["n1", "n2", ""]), st.sampled_from(["p100", "k80", "wan"]), st.integers(0, 3)
)


@settings(max_examples=40)
@given(st.lists(PLACES, max_size=8))
def test_allocatable_is_what_classes_of_says(places: list[tuple[str, str, int]]) -> None:
    async def scenario(cluster: FakeCluster, _leader: Leader) -> None:
        for number, (node, kind, count) in enumerate(places):
            cluster.create(COMPUTE_RESOURCES, compute_resource(f"c{number}", node, kind, count))
        await asyncio.sleep(2)
        every = [class_from_api(one) for one in cluster.chunk(RESOURCE_CLASSES).objects]
        expected = dict.fromkeys((one.name for one in every), 0)
        for found in cluster.chunk(COMPUTE_RESOURCES).objects:
            one = compute_resource_from_api(found)
            level = [each for each in every if each.is_cluster_level == (not one.node_name)]
            for winner in classes_of(level, one.all_properties):
                expected[winner.name] += len(one.devices)
        assert {name: int(row[0]) for name, row in counts(cluster).items()} == expected

    play(scenario)
