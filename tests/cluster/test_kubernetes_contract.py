"""What every client of an API server does, in memory and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec import Struct

from pinfold.planning.fake_cluster import FakeCluster
from pinfold.ports.kubernetes import (
    PODS,
    RESOURCE_QUOTAS,
    AlreadyExistsError,
    Changed,
    ConflictError,
    Kubernetes,
    Listed,
    Metadata,
    NotFoundError,
    Progress,
)
from tests.scenes.kubernetes_worlds import WORLDS, following, has_listed, world

Scenario = Callable[[FakeCluster, Kubernetes], Awaitable[None]]
Play = Callable[[Scenario], None]


@pytest.fixture(params=WORLDS)
def play(request: pytest.FixtureRequest) -> Play:
    """Plays a scenario in a world of its own."""

    def played(scenario: Scenario) -> None:
        async def run() -> None:
            async with world(request.param) as (cluster, client):
                await scenario(cluster, client)

        asyncio.run(run())

    return played


def pod(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {"containers": []},
    }


def quota(**hard: str) -> dict[str, Any]:
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}


def test_objects_are_created_once(play: Play) -> None:
    async def scenario(_cluster: FakeCluster, client: Kubernetes) -> None:
        made = await client.create(PODS, pod("a"))
        assert made["metadata"]["uid"]
        assert made == await client.get(PODS, "a", "default")
        with pytest.raises(AlreadyExistsError, match='pods "a" already exists'):
            await client.create(PODS, pod("a"))
        assert [one["metadata"]["name"] for one in await client.list(PODS)] == ["a"]
        await client.delete(PODS, "a", "default")
        for call in (
            client.get(PODS, "a", "default"),
            client.delete(PODS, "a", "default"),
            client.update(PODS, made),
            client.patch(PODS, "a", {}, "default"),
        ):
            with pytest.raises(NotFoundError, match='"a" not found'):
                await call

    play(scenario)


def test_an_update_of_what_has_changed_is_a_conflict(play: Play) -> None:
    async def scenario(_cluster: FakeCluster, client: Kubernetes) -> None:
        made = await client.create(PODS, pod("a"))
        await client.patch(PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "default")
        with pytest.raises(ConflictError, match="has been modified") as refused:
            await client.update(PODS, made)
        assert refused.value.status == 409
        assert (await client.get(PODS, "a", "default"))["metadata"]["labels"] == {"x": "y"}

    play(scenario)


def test_a_pod_is_bound_once_with_annotations(play: Play) -> None:
    async def scenario(cluster: FakeCluster, client: Kubernetes) -> None:
        made = await client.create(PODS, pod("a", annotations={"a": "1", "b": "2"}))
        metadata = {"name": "a", "namespace": "default", "annotations": {"b": "3"}}
        binding = {"metadata": metadata, "target": {"kind": "Node", "name": "n1"}}
        with pytest.raises(ConflictError, match="UID"):
            await client.create(PODS, binding | {"metadata": metadata | {"uid": "x"}}, "binding")
        uid = made["metadata"]["uid"]
        await client.create(PODS, binding | {"metadata": metadata | {"uid": uid}}, "binding")
        bound = cluster.read(PODS, "a", "default")
        assert bound["spec"]["nodeName"] == "n1"
        assert bound["metadata"]["annotations"] == {"a": "1", "b": "3"}
        assert bound["status"]["conditions"] == [{"type": "PodScheduled", "status": "True"}]
        with pytest.raises(ConflictError, match='already assigned to node "n1"'):
            await client.create(PODS, binding, "binding")
        metadata["name"] = "none"
        with pytest.raises(NotFoundError, match='"none" not found'):
            await client.create(PODS, binding, "binding")

    play(scenario)


def test_a_quotas_status_is_swapped_with_its_annotations(play: Play) -> None:
    async def scenario(_cluster: FakeCluster, client: Kubernetes) -> None:
        made = await client.create(RESOURCE_QUOTAS, quota(pods="1"))
        changed = {**made, "spec": {"hard": {}}, "status": {"used": {"pods": "1"}}}
        changed["metadata"] = {**made["metadata"], "annotations": {"a": "b"}}
        after = await client.update(RESOURCE_QUOTAS, changed, "status")
        assert after["spec"] == {"hard": {"pods": "1"}}
        assert after["status"] == {"used": {"pods": "1"}}
        assert after["metadata"]["annotations"] == {"a": "b"}
        # The other way round an update leaves the status alone.
        again = await client.update(RESOURCE_QUOTAS, {**after, "status": {}})
        assert again == after, "what changes nothing is no new version"

    play(scenario)


def test_a_watch_begins_with_a_list_in_parts(play: Play) -> None:
    async def scenario(_cluster: FakeCluster, client: Kubernetes) -> None:
        for name in "abc":
            await client.create(PODS, pod(name))
        async with following(client, PODS) as follower:
            await follower.until(lambda: has_listed(follower))
            parts = [one for one in follower.seen if isinstance(one, Listed)]
            assert parts[0].is_first
            assert not any(one.is_first for one in parts[1:])
            listed = [each["metadata"]["name"] for one in parts for each in one.objects]
            assert listed == ["a", "b", "c"]
            await client.create(PODS, pod("d"))
            await client.patch(PODS, "d", {"metadata": {"labels": {"x": "y"}}}, "default")
            await client.delete(PODS, "a", "default")
            await follower.until(lambda: "DELETED a" in follower.names())
            assert follower.names()[len(parts) :] == ["ADDED d", "MODIFIED d", "DELETED a"]

    play(scenario)


def test_a_watch_of_some_shows_who_joins_and_who_leaves(play: Play) -> None:
    async def scenario(cluster: FakeCluster, client: Kubernetes) -> None:
        mine = {"labels": {"of": "me", "x": "y"}}
        for name, metadata in {"a": mine, "b": {}, "c": {"labels": {"of": "you"}}}.items():
            await client.create(PODS, pod(name, **metadata))
        async with following(client, PODS, labels={"of": "me", "x": "y"}) as follower:
            await follower.until(lambda: has_listed(follower))
            listed = len(follower.seen)
            assert [n for n in follower.names() if n != "listed "] == ["listed a"]
            for name, of in {"c": "me", "b": "you", "a": "you"}.items():
                labels = {"labels": {"of": of, "x": "y"}}
                await client.patch(PODS, name, {"metadata": labels}, "default")
            await client.delete(PODS, "c", "default")
            await client.create(PODS, pod("d", **mine))
            cluster.disconnect()
            await client.patch(PODS, "d", {"metadata": {"labels": {"z": "z"}}}, "default")
            await client.delete(PODS, "d", "default")
            await follower.until(lambda: "DELETED d" in follower.names())
            told = [one for one in follower.names()[listed:] if one != "progress"]
            assert told == [
                "ADDED c",
                "DELETED a",
                "DELETED c",
                "ADDED d",
                "MODIFIED d",
                "DELETED d",
            ]
            gone = [one for one in follower.seen if isinstance(one, Changed)]
            assert gone[1].object["metadata"]["labels"]["of"] == "me", "as it was"
            assert gone[1].object["metadata"]["resourceVersion"] == gone[1].version

    play(scenario)


def test_nothing_is_missed_or_told_twice_by_a_disconnect(play: Play) -> None:
    async def scenario(cluster: FakeCluster, client: Kubernetes) -> None:
        async with following(client, PODS) as follower:
            await follower.until(lambda: follower.seen)
            for number in range(5):
                cluster.disconnect()
                await client.create(PODS, pod(f"p{number}"))
            await follower.until(lambda: "ADDED p4" in follower.names())
        assert follower.names() == ["listed ", *(f"ADDED p{number}" for number in range(5))]

    play(scenario)


def test_what_the_server_has_forgotten_is_listed_anew(play: Play) -> None:
    async def scenario(cluster: FakeCluster, client: Kubernetes) -> None:
        async with following(client, PODS) as follower:
            await follower.until(lambda: follower.seen)
            cluster.disconnect()
            cluster.create(PODS, pod("a"))
            cluster.compact()
            await follower.until(lambda: "listed a" in follower.names())
            await client.create(PODS, pod("b"))
            await follower.until(lambda: "ADDED b" in follower.names())
        assert follower.names() == ["listed ", "listed a", "ADDED b"]

    play(scenario)


def test_a_bookmark_is_progress(play: Play) -> None:
    async def scenario(cluster: FakeCluster, client: Kubernetes) -> None:
        async with following(client, PODS) as follower:
            await follower.until(lambda: follower.seen)
            await client.create(RESOURCE_QUOTAS, quota(pods="1"))
            cluster.bookmark()
            await follower.until(lambda: "progress" in follower.names())
            assert isinstance(follower.seen[-1], Progress)
            # It is worth something: what happened before is not needed any more.
            cluster.disconnect()
            await client.create(PODS, pod("a"))
            await follower.until(lambda: "ADDED a" in follower.names())
        assert follower.names() == ["listed ", "progress", "ADDED a"]

    play(scenario)


class Slim(Struct):
    metadata: Metadata


def test_objects_are_decoded_to_what_counts(play: Play) -> None:
    async def scenario(_cluster: FakeCluster, client: Kubernetes) -> None:
        await client.create(PODS, pod("a"))
        async with following(client, PODS, Slim) as follower:
            await follower.until(lambda: follower.seen)
            await client.delete(PODS, "a", "default")
            await follower.until(lambda: len(follower.seen) > 1)
        listed, deleted = follower.seen
        assert isinstance(listed, Listed)
        assert isinstance(deleted, Changed)
        assert listed.objects[0].metadata.name == deleted.object.metadata.name == "a"
        assert listed.objects[0].metadata.resourceVersion

    play(scenario)
