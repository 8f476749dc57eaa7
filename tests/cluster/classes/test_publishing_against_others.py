"""A publisher beside others who write the same, and without all of its rights."""

from __future__ import annotations

import asyncio
from typing import Any

from pinfold.cluster.classes.publishing import Publisher
from pinfold.core.classes.placing import count_of
from pinfold.core.classes.published import node_labels
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import COMPUTE_RESOURCES, Object, refusal
from tests.scenes.manager_harness import run_virtually
from tests.scenes.published_node import NODE, PublishedNode, wanted


def test_two_agents_of_one_node_name_give_way_to_each_other() -> None:
    async def scenario() -> None:
        cluster, told, publishers, tasks = FakeCluster(), (list[str](), list[str]()), [], []
        for kinds, tell in zip(({"a": "1", "b": "1"}, {"a": "1", "c": "2"}), told, strict=True):
            one = Publisher(FakeKubernetes(cluster), NODE, node_labels(NODE), report=tell.append)
            one.want(wanted(kinds))
            publishers.append(one)
            tasks.append(asyncio.create_task(one.run()))
        await asyncio.sleep(1200)
        assert all(one.written < 300 for one in publishers)
        for problems in told:
            assert "somebody else publishes for node n1" in problems[0]
        assert any(one.problem for one in publishers)
        # When one has gone, the other has its way.
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        await asyncio.sleep(300)
        there = [one["spec"]["devices"] for one in cluster.chunk(COMPUTE_RESOURCES).objects]
        assert sorted(there) == [["a"], ["c"]]
        assert not publishers[1].problem
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtually(scenario())


def test_who_may_not_write_a_capacity_says_which_devices_there_are() -> None:
    async def scenario() -> None:
        node = PublishedNode(FakeCluster())
        node.become({"gpu-0": "K80", "gpu-1": "K80"})
        node.start()
        await node.rest()
        update = node.cluster.update

        def refused(resource: Any, changed: Any, subresource: str = "") -> Object:
            if subresource:
                raise refusal(403, "Forbidden", "no status for you")
            return update(resource, changed, subresource)

        node.cluster.update = refused  # type: ignore[method-assign] # rights of somebody's
        node.become({"gpu-0": "K80"})
        await node.rest()
        (found,) = node.there().values()
        assert found.devices == ("gpu-0",)
        assert count_of(found) == 1
        assert node.problems == ["compute resources are not published: no status for you"]
        node.cluster.update = update  # type: ignore[method-assign] # as it was
        await node.rest()
        assert node.is_settled()
        await node.kill()
        assert node.lost == set()

    run_virtually(scenario())
