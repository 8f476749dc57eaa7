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
from pinfold.core.quota.claims import ClaimedCPUs, ClaimRules
from pinfold.core.quota.counted_pod import counted_pod_from_api
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.planning.fake_cluster import FakeCluster
from pinfold.planning.fake_kubernetes import FakeKubernetes
from pinfold.ports.kubernetes import (
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    NotFoundError,
    Object,
)

EPOCH = 1_790_000_000.0


def pod(name: str, cpus: int, *, priority: str = "", claim: str = "", **metadata: Any) -> Object:
    """A Guaranteed pod of one container, which may name a claim."""
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    resources: dict[str, Any] = {"requests": amounts, "limits": amounts}
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": resources}]}
    if priority:
        spec["priorityClassName"] = priority
    if claim:
        spec["resourceClaims"] = [{"name": "cpus", "resourceClaimName": claim}]
        resources["claims"] = [{"name": "cpus"}]
    return {
        "metadata": {"name": name, "namespace": "team", **metadata},
        "spec": spec,
        "status": {"phase": "Pending", "qosClass": "Guaranteed"},
    }


def claim_of(name: str, cpus: int) -> Object:
    """A claim for so many CPUs of the official driver."""
    asked = {"deviceClassName": "dra.cpu", "capacity": {"requests": {"dra.cpu/cpu": str(cpus)}}}
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": asked}]}},
    }


def quota(hard: int, name: str = "cpus", priority: str = "") -> Object:
    """A quota of so many CPUs, and of 1000 pods, which is not ours; of one priority class."""
    limits = {EXCLUSIVE_CPUS: str(hard), "pods": "1k"}
    spec: dict[str, Any] = {"hard": limits}
    if priority:
        of_it = {"scopeName": "PriorityClass", "operator": "In", "values": [priority]}
        spec["scopeSelector"] = {"matchExpressions": [of_it]}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec}


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
    """What an API server does for the pods of one namespace: it asks a replica, and stores.

    ``high`` is what the pods of the priority class ``high`` may have of ``hard``.
    """

    def __init__(self, cluster: FakeCluster, hard: int, high: int | None = None) -> None:
        self.cluster = cluster
        self.hard = hard
        self.high = high
        cluster.create(RESOURCE_QUOTAS, quota(hard))
        if high is not None:
            cluster.create(RESOURCE_QUOTAS, quota(high, "high", "high"))

    def pods(self) -> dict[str, int]:
        """The pods there are, and their CPUs."""
        return {
            one["metadata"]["name"]: _cpus(one) for one in self.cluster.chunk(PODS, "team").objects
        }

    def counted(self) -> tuple[int, int]:
        """The CPUs that count: in all, and for the priority class ``high``."""
        found = self.cluster.chunk(RESOURCE_CLAIMS, "team").objects
        claims = {one["metadata"]["name"]: _claimed(one) for one in found}
        total, high = sum(claims.values()), 0
        for one in self.cluster.chunk(PODS, "team").objects:
            named = [each["resourceClaimName"] for each in one["spec"].get("resourceClaims", ())]
            # A claim is counted by itself, and for the priority class not at all.
            total += max(0, _cpus(one) - sum(claims.get(name, 0) for name in named))
            high += _cpus(one) if one["spec"].get("priorityClassName") == "high" else 0
        return total, high

    async def claim(
        self, replica: Replica, name: str, cpus: int, *, comes: bool = True, late: float = 0.0
    ) -> Charged | Refused:
        """Ask whether a claim may come; let it come unless somebody else is against it."""
        made = self.cluster.prepared(RESOURCE_CLAIMS, claim_of(name, cpus))
        uid = made["metadata"]["uid"]
        answer = await replica.charging.charge_claim(
            "team", uid, name, ClaimedCPUs(cpus), dry_run=False
        )
        if isinstance(answer, Charged) and comes:
            await asyncio.sleep(late)
            self.cluster.create(RESOURCE_CLAIMS, made, uid=uid)
            self.check()
        return answer

    async def create(
        self,
        replica: Replica,
        name: str,
        cpus: int,
        *,
        comes: bool = True,
        late: float = 0.0,
        **fields: str,
    ) -> Charged | Refused:
        """Ask whether a pod may come; let it come unless somebody else is against it."""
        made = self.cluster.prepared(PODS, pod(name, cpus, **fields))
        request = Request(CREATE, counted_pod_from_api(made))
        answer = await replica.charging.charge("team", request, dry_run=False)
        if isinstance(answer, Charged) and comes:
            await asyncio.sleep(late)
            self.cluster.create(PODS, made, uid=made["metadata"]["uid"])
            self.check()
        return answer

    async def resize(
        self, replica: Replica, name: str, cpus: int, *, comes: bool = True, late: float = 0.0
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
            await asyncio.sleep(late)
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
        total, high = self.counted()
        assert total <= self.hard, self.pods()
        assert self.high is None or high <= self.high, self.pods()

    def used_of(self, name: str) -> int | None:
        """By the status of a quota."""
        return known_quota(self.cluster.read(RESOURCE_QUOTAS, name, "team")).used

    @property
    def used(self) -> int | None:
        """By the status of the quota of all."""
        return self.used_of("cpus")

    @property
    def held(self) -> dict[str, int]:
        """What is reserved, by the names of pods."""
        known = known_quota(self.cluster.read(RESOURCE_QUOTAS, "cpus", "team"))
        return {one.name: one.cpus for one in known.reservations.held.values()}


def _claimed(found: Object) -> int:
    (request,) = found["spec"]["devices"]["requests"]
    return int(request["exactly"]["capacity"]["requests"]["dra.cpu/cpu"])


def _cpus(found: Object) -> int:
    return int(found["spec"]["containers"][0]["resources"]["requests"]["cpu"])
