"""Who leads: never two, whatever clocks and network do; and soon somebody, if all is well."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pinfold.cluster.lease import DURATION, LONGEST_PAUSE, RENEWAL, RETRY, Election
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import LEASES
from tests.scenes.manager_harness import run_virtually


class Replica:
    """A candidate whose clock runs at a rate of its own, and is set at will."""

    def __init__(
        self, cluster: FakeCluster, name: str, leading: list[str], rate: float = 1
    ) -> None:
        self.client = FakeKubernetes(cluster)
        self.problems: list[str] = []
        self.times_led = 0
        self._leading = leading
        loop = asyncio.get_running_loop()
        self.election = Election(
            self.client,
            "kube-system",
            "pinfold-quota",
            name,
            clock=lambda: loop.time() * rate,
            sleep=lambda seconds: asyncio.sleep(seconds / rate),
            report=self.problems.append,
        )
        self.task = asyncio.create_task(self.election.run(self.work))

    async def work(self) -> None:
        self._leading.append(self.election.identity)
        self.times_led += 1
        assert len(self._leading) == 1, self._leading
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._leading.remove(self.election.identity)

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def test_the_first_one_leads_and_the_next_when_it_has_given_up() -> None:
    async def scenario() -> None:
        cluster, leading = FakeCluster(), list[str]()
        first, second = (Replica(cluster, name, leading) for name in "ab")
        await asyncio.sleep(60)
        assert leading == ["a"]
        assert (first.election.leads, second.election.leads) == (True, False)
        assert second.election.leader == "a"
        await first.end()
        lease = cluster.read(LEASES, "pinfold-quota", "kube-system")["spec"]
        assert lease["holderIdentity"] == ""
        await asyncio.sleep(RETRY * 1.2)
        assert leading == ["b"]
        lease = cluster.read(LEASES, "pinfold-quota", "kube-system")["spec"]
        assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("b", 1)
        await second.end()
        assert leading == []

    run_virtually(scenario())


def test_who_cannot_renew_stops_before_another_begins() -> None:
    async def scenario() -> None:
        cluster, leading = FakeCluster(), list[str]()
        first, second = (Replica(cluster, name, leading) for name in "ab")
        await asyncio.sleep(30)
        first.client.fails = lambda _verb, _resource: "before"
        await asyncio.sleep(RENEWAL)
        assert leading == []
        assert "the lease could not be renewed in time" in first.problems
        await asyncio.sleep(DURATION)
        assert leading == ["b"]
        # A request that nobody answers is no better.
        second.client.takes = lambda: 1000.0
        await asyncio.sleep(RENEWAL)
        assert leading == []
        await asyncio.gather(first.end(), second.end())

    run_virtually(scenario())


def test_work_that_fails_is_told_and_begun_again() -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        problems: list[str] = []
        begun = asyncio.Queue[int]()

        async def work() -> None:
            await begun.put(0)
            raise ExceptionGroup("several", [ValueError("broken")])

        client = FakeKubernetes(cluster)
        election = Election(client, "ns", "name", "me", report=problems.append)
        task = asyncio.create_task(election.run(work))
        await begun.get()
        await begun.get()
        # Later each time, and nobody is asked meanwhile.
        await asyncio.sleep(60)
        version = cluster.version
        await asyncio.sleep(LONGEST_PAUSE * 10)
        assert 9 <= begun.qsize() <= 20
        assert cluster.version - version <= 2 * 10 + 2
        assert "the work of the leader has failed: broken" in problems
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtually(scenario())


@given(
    seed=st.integers(0, 2**32),
    rates=st.lists(st.floats(0.85, 1.25), min_size=2, max_size=4),
    trouble=st.floats(0, 0.6),
)
@settings(max_examples=60)
def test_never_two_lead(seed: int, rates: list[float], trouble: float) -> None:
    chance = random.Random(seed)  # noqa: S311 - the test has to be the same each time

    async def scenario() -> None:
        cluster, leading = FakeCluster(), list[str]()
        replicas = [
            Replica(cluster, str(number), leading, rate) for number, rate in enumerate(rates)
        ]

        def fails(_verb: str, _resource: object) -> str:
            return chance.choice(["before", "after"]) if chance.random() < trouble else ""

        def takes() -> float:
            return chance.uniform(0, 20) if chance.random() < trouble / 3 else 0.01

        for replica in replicas:
            replica.client.fails, replica.client.takes = fails, takes  # type: ignore[assignment] # literals
        for number in range(30):
            await asyncio.sleep(chance.uniform(0, 15))
            if chance.random() < 0.2:
                await replicas.pop(0).end()
                rate = chance.choice(rates)
                replicas.append(Replica(cluster, f"new{number}", leading, rate))
            for replica in replicas:
                assert not replica.task.done(), replica.task
        # All is well again: somebody leads, and goes on to.
        for replica in replicas:
            replica.client.fails, replica.client.takes = lambda _v, _r: "", lambda: 0.01
        await asyncio.sleep(2 * DURATION / 0.85 + 60)
        assert len(leading) == 1
        led = sum(replica.times_led for replica in replicas)
        await asyncio.sleep(300)
        assert led == sum(replica.times_led for replica in replicas)
        problems = [one for replica in replicas for one in replica.problems]
        assert not any("has failed" in one for one in problems), problems
        await asyncio.gather(*(replica.end() for replica in replicas))

    run_virtually(scenario())
