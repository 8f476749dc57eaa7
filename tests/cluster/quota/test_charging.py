"""Quotas of exclusive CPUs in a cluster: never more than hard, and nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.core.quota.charge import CREATE, Charged, Refused, Request
from pinfold.core.quota.claims import ClaimRules
from pinfold.core.quota.counted_pod import counted_pod_from_api
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes, Moment
from pinfold.ports.kubernetes import (
    PODS,
    RESOURCE_QUOTAS,
    KubernetesError,
)
from tests.scenes.built_in_quota import built_in_quota
from tests.scenes.manager_harness import run_virtually
from tests.scenes.quota_cluster import EPOCH, Replica, Team, pod, quota, refused


def test_a_quota_is_charged_kept_and_given_back() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        assert team.used == 0
        assert isinstance(await team.create(replica, "a", 3), Charged)
        assert team.used == 3
        await asyncio.sleep(1)
        assert (team.used, team.held) == (3, {})
        assert await team.create(replica, "b", 2) == refused("b", 2, 3, 4)
        assert isinstance(await team.resize(replica, "a", 4), Charged)
        assert team.used == 4
        await asyncio.sleep(1)
        assert (team.used, team.held) == (4, {})
        assert isinstance(await team.resize(replica, "a", 1), Charged)
        await asyncio.sleep(1)
        assert team.used == 1
        cluster.delete(PODS, "a", "team")
        await asyncio.sleep(1)
        assert (team.used, replica.problems) == (0, [])
        await replica.end()

    run_virtually(scenario())


def test_a_resize_counts_until_somebody_has_counted_anew() -> None:
    """A second one may be asked for before: what the first asked for is in the pod by then."""

    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 6)
        leader = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        await team.create(leader, "a", 2)
        await asyncio.sleep(1)
        await leader.end()
        replica = Replica(cluster)
        for cpus in (4, 6):
            assert isinstance(await team.resize(replica, "a", cpus), Charged)
            assert (team.used, team.held) == (cpus, {"a": cpus})
        assert await team.create(replica, "b", 1) == refused("b", 1, 6, 6)
        # What somebody else refuses is in no pod, and is not counted twice.
        assert isinstance(await team.resize(replica, "a", 1), Charged)
        assert isinstance(await team.resize(replica, "a", 6), Charged)
        assert team.used == 6
        await replica.end()

    run_virtually(scenario())


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 6), st.booleans()),
        min_size=1,
        max_size=12,
    )
)
def test_what_was_let_in_is_in_use_however_long_nobody_counts(
    asked: list[tuple[str, int, bool]],
) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 10)
        leader = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        await leader.end()
        replica = Replica(cluster)
        for name, cpus, comes in asked:
            if name in team.pods():
                await team.resize(replica, name, cpus, comes=comes)
            else:
                await team.create(replica, name, cpus, comes=comes)
            used, pods = team.used, team.pods()
            assert used is not None
            assert sum(pods.values()) <= used <= 10
        await replica.end()

    run_virtually(scenario())


def test_a_quota_that_nobody_has_counted_yet_lets_nobody_in() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        cluster.update(
            RESOURCE_QUOTAS,
            cluster.read(RESOURCE_QUOTAS, "cpus", "team")
            | {"status": {"hard": {EXCLUSIVE_CPUS: "4", "pods": "1k"}, "used": {"pods": "0"}}},
            "status",
        )
        replica = Replica(cluster)
        answer = await team.create(replica, "a", 1)
        assert isinstance(answer, Refused)
        assert f"status unknown for quota: cpus, resources: {EXCLUSIVE_CPUS}" in answer.message
        await replica.end()

    run_virtually(scenario())


def test_a_dry_run_and_a_second_question_are_charged_nothing() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        request = Request(CREATE, counted_pod_from_api(cluster.prepared(PODS, pod("a", 3))))
        for dry_run, used in ((True, 0), (False, 3), (False, 3), (True, 3)):
            answer = await replica.charging.charge("team", request, dry_run=dry_run)
            assert isinstance(answer, Charged)
            assert {name: str(one[EXCLUSIVE_CPUS]) for name, one in answer.charged.items()} == {
                "cpus": "3"
            }
            assert team.used == used
        await replica.end()

    run_virtually(scenario())


def test_all_quotas_of_a_namespace_are_charged_or_none() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 8)
        cluster.create(RESOURCE_QUOTAS, quota(4, "small"))
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        answer = await team.create(replica, "a", 5)
        assert isinstance(answer, Refused)
        assert answer.quota == "small"
        assert team.used == 0
        assert isinstance(await team.create(replica, "b", 4), Charged)
        assert team.used == 4
        await replica.end()

    run_virtually(scenario())


def test_an_api_server_that_is_away_is_an_error() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 8)
        replica = Replica(cluster, leads=True)
        assert replica.charging.problems() == ("the quotas are not known yet",)
        await asyncio.sleep(1)
        assert replica.charging.problems() == ()
        replica.client.fails = lambda verb, _: "before" if verb in {"update", "list"} else ""
        with pytest.raises(KubernetesError, match="the connection was lost"):
            await team.create(replica, "a", 1)
        replica.client.fails = lambda verb, _: "before" if verb == "update" else ""
        with pytest.raises(KubernetesError, match="could not be charged within 4 s"):
            await team.create(replica, "b", 1)
        assert (team.used, team.held) == (0, {})
        # Where nobody knows whether it was written, it is looked for.
        replica.client.fails = lambda verb, _: "after" if verb == "update" else ""
        assert isinstance(await team.create(replica, "c", 1, comes=False), Charged)
        assert (team.used, team.held) == (1, {"c": 1})
        replica.client.fails = lambda _verb, _resource: ""
        await asyncio.sleep(70)
        assert (team.used, team.held) == (0, {})
        await replica.end()

    run_virtually(scenario())


def test_a_pod_that_cannot_be_counted_fails_alone() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 8)
        replica = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        made = [counted_pod_from_api(cluster.prepared(PODS, pod(name, 2))) for name in "ab"]
        requests = [
            Request(CREATE, made[0]),
            Request(CREATE, replace(made[1], deleted_at=0.0, deletion_grace=10**400)),
        ]
        charging = replica.charging
        answers = await asyncio.gather(
            *(charging.charge("team", one, dry_run=False) for one in requests),
            return_exceptions=True,
        )
        assert isinstance(answers[0], Charged)
        assert isinstance(answers[1], OverflowError)
        assert team.used == 2
        await replica.end()

    run_virtually(scenario())


def test_no_write_while_nothing_changes() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 8)
        replica = Replica(cluster, leads=True)
        other = asyncio.create_task(built_in_quota(FakeKubernetes(cluster)))
        await asyncio.sleep(1)
        await team.create(replica, "a", 1)
        await asyncio.sleep(5)
        status = cluster.read(RESOURCE_QUOTAS, "cpus", "team")["status"]
        assert status["used"] == {EXCLUSIVE_CPUS: "1", "pods": "1"}
        assert status["hard"] == {EXCLUSIVE_CPUS: "8", "pods": "1k"}
        version = cluster.version
        asked: list[str] = []
        replica.client.fails = lambda verb, _: asked.append(verb) or ""  # type: ignore[func-returns-value] # it only notes
        await asyncio.sleep(3600)
        assert (cluster.version, asked) == (version, [])
        other.cancel()
        await replica.end()

    run_virtually(scenario())


def test_who_counts_from_an_old_watch_writes_nothing() -> None:
    """A leader that was too slow to notice has a view of pods in which one is not there yet."""

    async def scenario() -> None:
        cluster = FakeCluster()
        team = Team(cluster, 4)
        old = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        stalled = old.status
        await old.end()
        half = Replica(cluster)
        # Only pods are not told any more; the quota is.
        half.watches.watching.clear()
        half.tasks.append(asyncio.ensure_future(half.status.run()))
        await asyncio.sleep(1)
        await team.create(half, "a", 3)
        new = Replica(cluster, leads=True)
        await asyncio.sleep(1)
        assert (team.used, team.held) == (3, {})
        await asyncio.sleep(120)
        assert team.used == 3, "the old one counts without the pod, and must not write that"
        assert await team.create(new, "b", 2) == refused("b", 2, 3, 4)
        assert stalled.written == 1
        half.watches.watching.set()
        await asyncio.sleep(1)
        assert team.used == 3
        await asyncio.gather(half.end(), new.end())

    run_virtually(scenario())


class Life:
    """What may happen to a team and its replicas, by chance."""

    def __init__(self, seed: int, hard: int, leaders: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - the same each time
        self.trouble = 0.0
        self.leaders = leaders
        loop = asyncio.get_running_loop()
        self.cluster = FakeCluster(lambda: EPOCH + loop.time())
        self.team = Team(self.cluster, hard, high=max(1, hard // 2))
        self.let_in: list[str] = []
        self.claims: list[str] = []
        self.replicas = [self.replica(number) for number in range(3)]

    def replica(self, number: int) -> Replica:
        replica = Replica(self.cluster, leads=number < self.leaders, claims=ClaimRules())
        for client in (replica.client, replica.watches):
            client.fails = self.fails
            client.takes = lambda: self.chance.uniform(0, 0.05)
        return replica

    def fails(self, _verb: str, _resource: object) -> Moment:
        if self.chance.random() >= self.trouble:
            return ""
        return "before" if self.chance.random() < 0.5 else "after"

    async def act(self, name: str) -> None:
        """Somebody creates, resizes or deletes a pod, or creates a claim that pods may share."""
        chance, team, replica = self.chance, self.team, self.chance.choice(self.replicas)
        what = chance.random()
        comes, late = chance.random() < 0.8, chance.uniform(0, 3)
        cpus = chance.randint(1, 4)
        # Two that change one pod, or a server that is away: nobody is let in then.
        with contextlib.suppress(KubernetesError):
            if what < 0.1:
                answer = await team.claim(replica, name, cpus, comes=comes, late=late)
                if isinstance(answer, Charged) and comes:
                    self.claims.append(name)
            elif what < 0.45 or not self.let_in:
                fields = {"priority": chance.choice(["", "high"])}
                if self.claims and chance.random() < 0.5:
                    fields["claim"] = chance.choice(self.claims)
                answer = await team.create(replica, name, cpus, comes=comes, late=late, **fields)
                if isinstance(answer, Charged) and comes:
                    self.let_in.append(name)
                    if chance.random() < 0.5:
                        # Before anybody has counted it.
                        other, comes = chance.choice(self.replicas), chance.random() < 0.8
                        await team.resize(other, name, cpus + 1, comes=comes, late=late)
            elif what < 0.75:
                name = chance.choice(self.let_in)
                await team.resize(replica, name, chance.randint(1, 5), late=late)
            else:
                gone = self.let_in.pop(chance.randrange(len(self.let_in)))
                self.cluster.delete(PODS, gone, "team")

    async def suffer(self) -> None:
        """A process is killed, a watch is cut off or stands still, the server forgets."""
        if self.chance.random() < self.trouble:
            where = self.chance.randrange(3)
            await self.replicas[where].end()
            self.replicas[where] = self.replica(where)
        if self.chance.random() < self.trouble:
            cluster = self.cluster
            self.chance.choice([cluster.disconnect, cluster.compact, cluster.bookmark])()
        if self.chance.random() < self.trouble:
            replica = self.chance.choice(self.replicas)
            # Who keeps the status is held back, or who charges hears nothing.
            watching = self.chance.choice([replica.client, replica.watches]).watching
            (watching.clear if watching.is_set() else watching.set)()

    def recover(self) -> None:
        """All is well again."""
        self.trouble = 0.0
        for replica in self.replicas:
            replica.client.watching.set()
            replica.watches.watching.set()
            replica.check()


@given(
    seed=st.integers(0, 2**32),
    hard=st.integers(1, 12),
    trouble=st.sampled_from([0.0, 0.05, 0.3]),
    leaders=st.integers(1, 2),
)
@settings(max_examples=60)
def test_never_more_than_hard(seed: int, hard: int, trouble: float, leaders: int) -> None:
    """Replicas that die anywhere, lost connections, old watches, two leaders, a built-in one.

    Two quotas, one of them with a scope; claims that pods share; resizes of what nobody has
    counted yet.
    """

    async def scenario() -> None:
        life = Life(seed, hard, leaders)
        other = asyncio.create_task(built_in_quota(FakeKubernetes(life.cluster)))
        await asyncio.sleep(1)
        assert (life.team.used, life.team.used_of("high")) == (0, 0)
        life.trouble = trouble
        acting = []
        for number in range(60):
            acting.append(asyncio.create_task(life.act(f"p{number}")))
            await asyncio.sleep(life.chance.choice([0, 0, 0.01, 0.5, 20]))
            await life.suffer()
        life.recover()
        await asyncio.gather(*acting)
        await asyncio.sleep(65)
        team = life.team
        assert (team.used, team.used_of("high")) == team.counted()
        assert team.held == {}
        status = life.cluster.read(RESOURCE_QUOTAS, "cpus", "team")["status"]
        assert status["used"]["pods"] == str(len(team.pods()))
        other.cancel()
        await asyncio.gather(*(replica.end() for replica in life.replicas))

    run_virtually(scenario())
