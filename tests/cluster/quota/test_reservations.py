"""What is reserved for who is let in: until he is counted, or has gone, or never came."""

from __future__ import annotations

import asyncio

from pinfold.cluster.quota.known import ANNOTATION, known_quota
from pinfold.core.quota.charge import Charged
from pinfold.core.quota.claims import ClaimRules
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import Moment
from pinfold.ports.kubernetes import (
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    Resource,
)
from tests.scenes.manager_harness import run_virtually
from tests.scenes.quota_cluster import Replica, Team, pod, quota, refused


def test_who_never_comes_is_charged_for_a_minute() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        await team.create(replica, "a", 3, comes=False)
        await asyncio.sleep(59)
        assert (team.used, team.held) == (3, {"a": 3})
        assert await team.create(replica, "b", 2) == refused("b", 2, 3, 4)
        await asyncio.sleep(2)
        assert (team.used, team.held) == (0, {})
        assert ANNOTATION not in cluster.read(RESOURCE_QUOTAS, "cpus", "team")["metadata"].get(
            "annotations", {}
        )
        await replica.end()

    run_virtually(scenario())


def test_reservations_outlive_a_leader_and_are_seen_by_all() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        first, second = Replica(cluster, leads=True), Replica(cluster)
        await asyncio.sleep(1)
        await team.create(first, "a", 3, comes=False)
        await first.end()
        assert await team.create(second, "b", 2) == refused("b", 2, 3, 4)
        third = Replica(cluster, leads=True)
        await asyncio.sleep(30)
        assert team.used == 3
        await asyncio.sleep(31)
        assert team.used == 0
        await asyncio.gather(second.end(), third.end())

    run_virtually(scenario())


def gets(replica: Replica) -> list[str]:
    """What the one who keeps the status asks for, one by one, from now on."""
    asked: list[str] = []

    def note(verb: str, resource: Resource) -> Moment:
        if verb == "get":
            asked.append(resource.plural)
        return ""

    replica.watches.fails = note
    return asked


def test_a_resize_of_a_pod_with_a_claim_that_never_comes_is_given_back() -> None:
    """The pod counts for less than its requests, here as at the server."""

    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 8)
        cpus = {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": "2"}}}
        claim = {
            "metadata": {"name": "two", "namespace": "team"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": cpus}]}},
        }
        made = pod("a", 4)
        made["spec"]["resourceClaims"] = [{"name": "two", "resourceClaimName": "two"}]
        made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "two"}]
        cluster.create(RESOURCE_CLAIMS, claim)
        cluster.create(PODS, made)
        replica = Replica(cluster, leads=True, claims=ClaimRules())
        await asyncio.sleep(1)
        assert team.used == 4
        assert isinstance(await team.resize(replica, "a", 6, comes=False), Charged)
        assert team.used == 6
        asked = gets(replica)
        await asyncio.sleep(59)
        assert (team.used, asked) == (6, [])
        await asyncio.sleep(2)
        assert (team.used, team.held, asked) == (4, {}, ["pods"])
        await replica.end()

    run_virtually(scenario())


def test_a_pod_that_is_not_seen_is_asked_about_seldom() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 8)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        replica.watches.watching.clear()
        asked = gets(replica)
        await team.create(replica, "a", 3)
        await asyncio.sleep(660)
        assert (team.used, team.held) == (3, {"a": 3})
        assert 10 < len(asked) < 40
        # What is asked for later has its own minute, whatever became of the first.
        await team.resize(replica, "a", 5, comes=False)
        await asyncio.sleep(59)
        assert (team.used, team.held) == (5, {"a": 5})
        replica.watches.watching.set()
        await asyncio.sleep(31)
        assert (team.used, team.held, replica.problems) == (3, {}, [])
        await replica.end()

    run_virtually(scenario())


def test_reservations_of_another_cluster_mean_nothing() -> None:
    """A quota may be copied with its annotations: by a backup, by hand."""

    async def scenario() -> None:
        cluster = FakeCluster()
        copied = quota(4)
        held = '{"u":{"cpus":3,"more":3,"since":0,"name":"x"}}'
        text = f'{{"held":{held},"seen":{{"pods":99999999}},"quota":"another"}}'
        copied["metadata"]["annotations"] = {ANNOTATION: text, "kept": "yes"}
        cluster.create(RESOURCE_QUOTAS, copied)
        cluster.create(PODS, pod("a", 2))
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        found = cluster.read(RESOURCE_QUOTAS, "cpus", "team")
        assert known_quota(found).used == 2
        assert found["metadata"]["annotations"] == {"kept": "yes"}
        await replica.end()

    run_virtually(scenario())


def test_too_many_at_once_are_told_so_and_the_others_come() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 5000)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        names = [f"{number:0>200}" for number in range(500)]
        creating = (team.create(replica, name, 1, comes=False) for name in names)
        answers = await asyncio.gather(*creating, return_exceptions=True)
        failed = [one for one in answers if not isinstance(one, Charged)]
        assert {str(one) for one in failed} == {
            "quota team/cpus: too many pods are on their way (create fewer at once)"
        }
        assert 0 < len(failed) < 250
        assert team.used == len(answers) - len(failed)
        await replica.end()

    run_virtually(scenario())


def test_who_has_gone_before_anybody_counted_is_given_back_at_once() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        # What the status is written with is slow; the watch is not.
        replica.watches.takes = lambda: 2.0
        await team.create(replica, "a", 1)
        await team.create(replica, "b", 3)
        cluster.delete(PODS, "b", "team")
        await asyncio.sleep(20)
        assert (team.used, team.held) == (1, {})
        await replica.end()

    run_virtually(scenario())
