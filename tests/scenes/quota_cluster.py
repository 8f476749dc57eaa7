"""A cluster in memory with a quota of CPUs, and replicas that charge it and keep its status."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable
from typing import Any

from pinfold.cluster.quota.charging import Charging
from pinfold.cluster.quota.known import Quotas, known_quota
from pinfold.cluster.quota.status import QuotaStatus
from pinfold.core.quota.charge import CREATE, UPDATE, Charged, Refused, Request
from pinfold.core.quota.claims import ClaimRules
from pinfold.core.quota.counted_pod import counted_pod_from_api
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import PODS, RESOURCE_QUOTAS, NotFoundError, Object

EPOCH = 1_790_000_000.0


def pod(name: str, cpus: int, **metadata: Any) -> Object:
    """A Guaranteed pod of one container."""
    resources = {"cpu": str(cpus), "memory": "1Gi"}
    return {
        "metadata": {"name": name, "namespace": "team", **metadata},
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": resources, "limits": resources}}]
        },
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


def quota(hard: int, name: str = "cpus") -> Object:
    """A quota of so many CPUs, and of 1000 pods, which is not ours."""
    limits = {EXCLUSIVE_CPUS: str(hard), "pods": "1k"}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": {"hard": limits}}


def refused(name: str, asked: int, used: int, hard: int) -> Refused:
    """What who asks for more than there is is told."""
    return Refused(
        f'pods "{name}" is forbidden: exceeded quota: cpus, requested: {EXCLUSIVE_CPUS}={asked}, '
        f"used: {EXCLUSIVE_CPUS}={used}, limited: {EXCLUSIVE_CPUS}={hard}",
        "cpus",
    )


class Replica:
    """One process: it knows the quotas, charges them, and keeps their status while it leads."""

    def __init__(
        self, cluster: FakeCluster, *, leads: bool = False, claims: ClaimRules | None = None
    ) -> None:
        loop = asyncio.get_running_loop()
        self.client = FakeKubernetes(cluster)
        self.problems: list[str] = []
        self.quotas = Quotas(self.client, self.problems.append)

        def now() -> float:
            return EPOCH + loop.time()

        self.charging = Charging(self.client, self.quotas, claims=claims, now=now)
        # On a connection of its own, which may be slower.
        self.watches = FakeKubernetes(cluster)
        self.status = QuotaStatus(
            self.watches, self.quotas, claims=claims, now=now, report=self.problems.append
        )
        works: list[Awaitable[None]] = [self.quotas.follow()]
        if leads:
            works.append(self.status.run())
        self.tasks = [asyncio.ensure_future(work) for work in works]

    async def end(self) -> None:
        """Kill it wherever it is."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check(self) -> None:
        """Fail where something has ended that goes on for ever."""
        for task in self.tasks:
            if task.done() and not task.cancelled():
                task.result()
                raise AssertionError(task)


class Team:
    """What an API server does for the pods of one namespace: it asks a replica, and stores."""

    def __init__(self, cluster: FakeCluster, hard: int) -> None:
        self.cluster = cluster
        self.hard = hard
        cluster.create(RESOURCE_QUOTAS, quota(hard))

    def pods(self) -> dict[str, int]:
        """The pods there are, and their CPUs."""
        return {
            one["metadata"]["name"]: _cpus(one) for one in self.cluster.chunk(PODS, "team").objects
        }

    async def create(
        self, replica: Replica, name: str, cpus: int, *, comes: bool = True, late: float = 0.0
    ) -> Charged | Refused:
        """Ask whether a pod may come; let it come unless somebody else is against it."""
        made = self.cluster.prepared(PODS, pod(name, cpus))
        request = Request(CREATE, counted_pod_from_api(made))
        answer = await replica.charging.charge("team", request, dry_run=False)
        if isinstance(answer, Charged) and comes:
            await asyncio.sleep(late)
            self.cluster.create(PODS, made, uid=made["metadata"]["uid"])
            self.check()
        return answer

    async def resize(
        self, replica: Replica, name: str, cpus: int, *, comes: bool = True
    ) -> Charged | Refused | None:
        """Ask whether a pod may have so many CPUs; let it unless somebody else is against it."""
        try:
            old = self.cluster.read(PODS, name, "team")
        except NotFoundError:
            return None
        new = copy.deepcopy(old)
        for one in new["spec"]["containers"]:
            for amounts in ("requests", "limits"):
                one["resources"][amounts]["cpu"] = str(cpus)
        request = Request(
            UPDATE, counted_pod_from_api(new), counted_pod_from_api(old), subresource="resize"
        )
        answer = await replica.charging.charge("team", request, dry_run=False)
        if isinstance(answer, Charged) and comes:
            version = self.cluster.version
            try:
                self.cluster.update(PODS, new)
            except Exception:
                assert self.cluster.version == version
                raise
            self.check()
        return answer

    def check(self) -> None:
        """Never more than hard."""
        assert sum(self.pods().values()) <= self.hard, self.pods()

    @property
    def used(self) -> int | None:
        """By the status of the quota."""
        return known_quota(self.cluster.read(RESOURCE_QUOTAS, "cpus", "team")).used

    @property
    def held(self) -> dict[str, int]:
        """What is reserved, by the names of pods."""
        known = known_quota(self.cluster.read(RESOURCE_QUOTAS, "cpus", "team"))
        return {one.name: one.cpus for one in known.reservations.held.values()}


def _cpus(found: Object) -> int:
    return int(found["spec"]["containers"][0]["resources"]["requests"]["cpu"])
