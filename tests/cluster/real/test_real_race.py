"""Many at once for the CPUs of one quota, while those who count them are killed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count, islice
from typing import Any

from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.ports.kubernetes import PODS, KubernetesError, Object
from tests.scenes.real_quota import RealQuota, Team, counted
from tests.scenes.replica_process import ReplicaProcess
from tests.scenes.waiting import PATIENCE, until

HARD = 40
CREATIONS = 200
CLIENTS = 4
KILLS = 10


class Observer:
    """Lists the pods over and over, and counts their CPUs."""

    def __init__(self, client: KubeObjects, team: Team) -> None:
        self._client, self._team = client, team
        self.most = self.looks = 0

    async def run(self) -> None:
        while True:
            found = await self._client.list(PODS, self._team.name)
            self.most = max(self.most, sum(map(counted, found)))
            self.looks += 1
            await asyncio.sleep(0.02)


async def create(client: KubeObjects, team: Team, number: int, outcomes: Counter[str]) -> None:
    """As a client that tries again while nobody can decide."""
    made = team.pod(f"p{number}", 1 + number % 3)
    for _ in range(12):
        outcome = await _outcome(client, made)
        outcomes[outcome] += 1
        if outcome in {"created", "refused"}:
            return
        await asyncio.sleep(0.1)


async def _outcome(client: KubeObjects, made: Object) -> str:
    try:
        await client.create(PODS, made)
    except KubernetesError as error:
        if error.status == 403 and "exceeded quota: cpus" in str(error):
            return "refused"
        if "failed calling webhook" in str(error):
            return "not decided"
        return f"{error.status}: {error}"
    return "created"


class Killed:
    """Two replicas, one of which is killed and followed by another now and then."""

    def __init__(self, deployed: RealQuota, chance: random.Random) -> None:
        self._deployed, self._chance = deployed, chance
        self.kills = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            replicas = [await stack.enter_async_context(self._deployed.replica()) for _ in "ab"]
            self._deployed.lead_to(replicas)
            await until(self._deployed.is_asked, 60)
            killing = asyncio.create_task(self._kill(stack, replicas))
            try:
                yield
            finally:
                killing.cancel()
                await asyncio.gather(killing, return_exceptions=True)
                self._deployed.lead_to(())

    async def _kill(self, stack: AsyncExitStack, replicas: list[ReplicaProcess]) -> None:
        while True:
            await asyncio.sleep(self._chance.uniform(0.05, 0.8))
            which = self._chance.randrange(2)
            replicas[which].process.kill()
            self.kills += 1
            replicas[which] = await stack.enter_async_context(self._deployed.replica())
            await asyncio.to_thread(self._deployed.lead_to, list(replicas))


def test_never_more_than_hard_whoever_is_killed(deployed: RealQuota) -> None:
    async def scenario() -> None:
        chance = random.Random(7)  # noqa: S311 - no secret
        async with deployed.replicas(1):
            team = await asyncio.to_thread(deployed.team, HARD, pods="1000")
        killed, outcomes = Killed(deployed, chance), Counter[str]()
        async with AsyncExitStack() as stack:
            clients = [deployed.control.client() for _ in range(CLIENTS + 1)]
            for client in clients:
                stack.push_async_callback(client.close)
            observer = Observer(clients.pop(), team)
            observing = asyncio.create_task(observer.run())
            stack.callback(observing.cancel)
            await scramble(killed, clients, team, outcomes)
            await settled(deployed, team)
        assert 0 < observer.most <= HARD
        assert outcomes["created"] > 10, outcomes
        assert outcomes["refused"] > 10, outcomes
        assert outcomes.keys() <= {"created", "refused", "not decided"}, outcomes

    asyncio.run(scenario())


async def scramble(
    killed: Killed, clients: Sequence[KubeObjects], team: Team, outcomes: Counter[str]
) -> None:
    """All of them create at once; then some go, and others come, until enough have been killed."""
    numbers = count()

    def created(number: int) -> list[Coroutine[Any, Any, None]]:
        return [
            create(clients[number % CLIENTS], team, number, outcomes)
            for number in islice(numbers, number)
        ]

    async with killed.running():
        async with asyncio.timeout(120 * PATIENCE):
            await asyncio.gather(*created(CREATIONS))
            while killed.kills < KILLS:
                there = [one["metadata"]["name"] for one in await clients[0].list(PODS, team.name)]
                await asyncio.gather(
                    *(clients[0].delete(PODS, name, team.name) for name in there[::2]),
                    *created(30),
                )


async def settled(deployed: RealQuota, team: Team) -> None:
    """What was charged for pods that never came is given back, and exactly what is left is left."""
    async with deployed.replicas(1):

        def real() -> int:
            return sum(map(counted, team.pods))

        await until(lambda: team.used == real() and not team.is_reserved, 100)
        free = HARD - real()
        if free:
            await asyncio.to_thread(team.create, "last", free)
        assert "exceeded quota" in await asyncio.to_thread(
            lambda: team.create("one-too-many", 1, status=1)
        )
        assert team.used == real() == HARD
