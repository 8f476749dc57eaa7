"""Watches that fail or stand still, a server that was restored, annotations that are damaged."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from pinfold.cluster.hearing import PATIENCE
from pinfold.cluster.quota.known import ANNOTATION
from pinfold.core.quota.charge import CREATE, Charged, Refused, Request
from pinfold.core.quota.counted_pod import counted_pod_from_api
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import Moment
from pinfold.ports.kubernetes import PODS, RESOURCE_QUOTAS, KubernetesError, Resource
from tests.scenes.manager_harness import run_virtually
from tests.scenes.quota_cluster import Replica, Team, pod, quota, refused


def asked_for(replica: Replica) -> list[str]:
    """The requests of the one that charges, from now on."""
    asked: list[str] = []

    def note(verb: str, _resource: Resource) -> Moment:
        asked.append(verb)
        return ""

    replica.client.fails = note
    return asked


def test_a_quota_of_which_the_watch_does_not_tell_holds_all_the_same() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        replica = Replica(cluster)
        await asyncio.sleep(1)
        asked = asked_for(replica)
        for _ in range(3):
            answer = await replica.charging.charge("other", _request(cluster), dry_run=False)
            assert answer == Charged(())
        assert asked == [], "the watch has just told that there is none"
        replica.client.watching.clear()
        team = Team(cluster, 0)
        none = {EXCLUSIVE_CPUS: "0"}
        found = cluster.read(RESOURCE_QUOTAS, "cpus", "team")
        status = {"hard": none, "used": none}
        cluster.update(RESOURCE_QUOTAS, found | {"status": status}, "status")
        await asyncio.sleep(PATIENCE)
        # However many ask at once, it is looked once; and once more before they are refused.
        for namespace, listed in (("other", 1), ("team", 3), ("other", 3), ("team", 4)):
            answers = await asyncio.gather(
                *(
                    replica.charging.charge(namespace, _request(cluster), dry_run=False)
                    for _ in range(20)
                )
            )
            assert {type(one) for one in answers} == {Refused if namespace == "team" else Charged}
            assert asked.count("list") == listed
        assert team.used == 0
        await replica.end()

    run_virtually(scenario())


def _request(cluster: FakeCluster) -> Request:
    return Request(CREATE, counted_pod_from_api(cluster.prepared(PODS, pod("a", 1))))


def test_where_nobody_can_look_nobody_is_let_by() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        replica = Replica(cluster)
        await asyncio.sleep(PATIENCE + 1)
        replica.client.fails = lambda verb, _: "before" if verb == "list" else ""
        for _ in range(2):
            with pytest.raises(KubernetesError, match="the connection was lost"):
                await replica.charging.charge("other", _request(cluster), dry_run=False)
        await replica.end()

    run_virtually(scenario())


def test_a_watch_that_fails_is_a_problem_until_it_is_over() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        for client, problems, what in (
            (replica.client, replica.charging.problems, "the quotas"),
            (replica.watches, replica.status.problems, "the pods"),
        ):
            client.fails = lambda verb, _: "before" if verb in {"watch", "list"} else ""
            cluster.disconnect()
            await asyncio.sleep(PATIENCE - 1)
            assert not problems(), "a watch may be cut off"
            await asyncio.sleep(2)
            (problem,) = problems()
            assert problem.startswith(f"{what} are not followed for 11 s: list ")
            client.fails = lambda _verb, _resource: ""
            await asyncio.sleep(1)
            assert not problems()
            assert replica.problems[-1] == ""
        await replica.end()
        assert replica.status.problems() == []

    run_virtually(scenario())


def test_a_server_that_was_restored_is_counted_anew() -> None:
    """Its versions go back, and those of what was seen may come once more, for something else."""

    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 6)
        leader, other = Replica(cluster, leads=True), Replica(cluster)
        await asyncio.sleep(1)
        await team.create(leader, "a", 1)
        await asyncio.sleep(1)
        backup = cluster.backup()
        await team.create(leader, "b", 3)
        await asyncio.sleep(1)
        await team.resize(other, "a", 3)
        cluster.delete(PODS, "b", "team")
        await asyncio.sleep(1)
        await team.create(other, "c", 2, comes=False)
        assert (team.used, team.held) == (5, {"c": 2})
        cluster.restore(backup)
        await asyncio.sleep(2)
        assert (team.used, team.pods(), team.held) == (1, {"a": 1}, {})
        for replica in (leader, other):
            assert any("history has gone back" in one for one in replica.problems)
            assert not replica.charging.problems()
        assert isinstance(await team.create(other, "d", 5), Charged)
        assert await team.create(leader, "e", 1) == refused("e", 1, 6, 6)
        await asyncio.sleep(1)
        assert (team.used, team.held) == (6, {})
        await asyncio.gather(leader.end(), other.end())

    run_virtually(scenario())


def test_a_server_that_was_restored_is_charged_before_a_watch_has_noticed() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 6)
        leader, other = Replica(cluster, leads=True), Replica(cluster)
        await asyncio.sleep(1)
        await team.create(leader, "a", 1)
        await asyncio.sleep(1)
        backup = cluster.backup()
        await team.create(leader, "b", 3)
        await asyncio.sleep(1)
        await leader.end()
        cluster.restore(backup)
        # No watch, and no list of all: what is charged is read by itself.
        other.client.fails = lambda verb, _: "before" if verb == "watch" else ""
        assert isinstance(await team.create(other, "c", 5), Charged)
        assert team.used == 6
        await other.end()

    run_virtually(scenario())


def test_an_entry_that_cannot_be_read_costs_no_other() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        await team.create(replica, "a", 2, comes=False)
        found = cluster.read(RESOURCE_QUOTAS, "cpus", "team")
        said = json.loads(found["metadata"]["annotations"][ANNOTATION])
        said["held"][UID] = GOOD | {"name": ""}
        found["metadata"]["annotations"][ANNOTATION] = json.dumps(said)
        cluster.update(RESOURCE_QUOTAS, found)
        await asyncio.sleep(1)
        (problem,) = replica.problems
        assert "has entries that count for nothing" in problem
        assert UID in problem
        assert (team.used, team.held) == (2, {"a": 2})
        assert await team.create(replica, "b", 3) == refused("b", 3, 2, 4)
        await replica.end()

    run_virtually(scenario())


UID = "00000000-0000-4000-8000-000000000000"
GOOD: dict[str, Any] = {"cpus": 3, "since": 0, "name": "x"}
ENOUGH: dict[str, Any] = {"seen": {"pods": 1}}


@pytest.mark.parametrize(
    "damaged",
    [
        "rubbish",
        "[]",
        "null",
        "[" * 10_000,
        {"seen": {"pods": 10**18}},
        {"seen": {"pods": 10**30}},
        {"seen": {"pods": -1}},
        {"seen": {"pods": "1"}},
        {"seen": {"nonsense": 10**9}},
        {"seen": []},
        *(
            {"held": {UID: GOOD | wrong}}
            for wrong in (
                {"cpus": -3},
                {"cpus": 10**30},
                {"cpus": 1.5},
                {"cpus": None},
                {"since": "nan"},
                {"since": 10**400},
                {"name": ""},
                {"name": "x" * 300},
                {"of": "secrets"},
            )
        ),
        {"held": {"": GOOD}},
        {"quota": ""},
        {"quota": "another"},
    ],
)
def test_an_annotation_that_is_damaged_counts_for_nothing_and_is_told(damaged: Any) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        await team.create(replica, "a", 2)
        await asyncio.sleep(1)
        found = cluster.read(RESOURCE_QUOTAS, "cpus", "team")
        if isinstance(damaged, dict):
            damaged_text = json.dumps({"quota": found["metadata"]["uid"]} | damaged)
        else:
            damaged_text = damaged
        found["metadata"]["annotations"] = {ANNOTATION: damaged_text, "kept": "yes"}
        cluster.update(RESOURCE_QUOTAS, found)
        await asyncio.sleep(1)
        assert len(replica.problems) == 1
        assert replica.problems[0].startswith(f"quota team/cpus: annotation {ANNOTATION} ")
        found = cluster.read(RESOURCE_QUOTAS, "cpus", "team")
        assert found["metadata"]["annotations"] == {"kept": "yes"}
        # It is in force as before.
        assert isinstance(await team.create(replica, "b", 2), Charged)
        assert await team.create(replica, "c", 1) == refused("c", 1, 4, 4)
        cluster.delete(PODS, "a", "team")
        await asyncio.sleep(1)
        assert team.used == 2
        await replica.end()

    run_virtually(scenario())


def test_what_is_reserved_far_in_the_future_ends_in_a_minute() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        found = cluster.read(RESOURCE_QUOTAS, "cpus", "team")
        held = {UID: GOOD | {"since": 1e18, "cpus": 1 << 40}}
        text = json.dumps({"held": held, "quota": found["metadata"]["uid"]} | ENOUGH)
        found["metadata"]["annotations"] = {ANNOTATION: text}
        cluster.update(RESOURCE_QUOTAS, found)
        await asyncio.sleep(1)
        assert team.used == 1 << 40
        await asyncio.sleep(60)
        assert (team.used, team.held) == (0, {})
        await replica.end()

    run_virtually(scenario())


def test_a_deletion_that_is_told_late_is_of_the_quota_before() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        replica = Replica(cluster)
        await asyncio.sleep(1)
        replica.client.watching.clear()
        cluster.delete(RESOURCE_QUOTAS, "cpus", "team")
        made = cluster.create(RESOURCE_QUOTAS, quota(4))
        await replica.quotas.read_again("team")
        replica.client.watching.set()
        for _ in range(20):
            await asyncio.sleep(0)
            (known,) = replica.quotas.of("team")
            assert known.object["metadata"]["uid"] == made["metadata"]["uid"]
        assert EXCLUSIVE_CPUS in known.quota.hard
        assert team.used is None
        await replica.end()

    run_virtually(scenario())
