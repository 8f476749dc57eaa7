"""Two replicas over HTTP, beside the quota controller of the API server."""

from __future__ import annotations

import asyncio

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.cluster.lease import Election
from pinfold.cluster.quota.charging import Charging
from pinfold.cluster.quota.keeping import keep_quotas
from pinfold.cluster.quota.known import Quotas
from pinfold.cluster.quota.status import QuotaStatus
from pinfold.core.quota.charge import CREATE, Charged, Refused, Request
from pinfold.core.quota.counted_pod import counted_pod_from_api
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.ports.kubernetes import NAMESPACES, PODS, RESOURCE_QUOTAS
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.scenes.built_in_quota import built_in_quota
from tests.scenes.quota_cluster import pod, quota
from tests.scenes.waiting import until


class Process:
    """What one replica runs."""

    def __init__(self, api: ApiServer, name: str) -> None:
        self.client = KubeObjects(Access(api.url, None))
        self.problems: list[str] = []
        quotas = Quotas(self.client, self.problems.append)
        self.charging = Charging(self.client, quotas)
        status = QuotaStatus(self.client, quotas, report=self.problems.append)
        self.election = Election(
            self.client, "kube-system", "pinfold-quota", name, report=self.problems.append
        )
        self.task = asyncio.create_task(keep_quotas(quotas, status, self.election))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.client.close()


def test_two_replicas_over_http() -> None:
    async def scenario() -> None:
        async with running(ApiServer()) as api:
            cluster = api.cluster
            cluster.create(NAMESPACES, {"metadata": {"name": "team"}})
            cluster.create(RESOURCE_QUOTAS, quota(4))
            own = KubeObjects(Access(api.url, None))
            other = asyncio.create_task(built_in_quota(own))

            def used() -> dict[str, str]:
                status = cluster.read(RESOURCE_QUOTAS, "cpus", "team").get("status", {})
                return dict(status.get("used") or {})

            async def create(process: Process, name: str, cpus: int) -> Charged | Refused:
                made = cluster.prepared(PODS, pod(name, cpus))
                request = Request(CREATE, counted_pod_from_api(made))
                answer = await process.charging.charge("team", request, dry_run=False)
                if isinstance(answer, Charged):
                    cluster.create(PODS, made, uid=made["metadata"]["uid"])
                return answer

            first = Process(api, "first")
            await until(lambda: used() == {EXCLUSIVE_CPUS: "0", "pods": "0"})
            second = Process(api, "second")
            await until(lambda: second.charging.problems() == ())
            answers = await asyncio.gather(
                *(create((first, second)[number % 2], f"p{number}", 1) for number in range(12))
            )
            assert sum(isinstance(one, Charged) for one in answers) == 4
            await until(lambda: used() == {EXCLUSIVE_CPUS: "4", "pods": "4"})
            # The watches are cut off and forgotten, while a pod goes; and then the leader does.
            gone = cluster.chunk(PODS, "team").objects[0]["metadata"]["name"]
            cluster.disconnect()
            cluster.delete(PODS, gone, "team")
            cluster.compact()
            await until(lambda: used() == {EXCLUSIVE_CPUS: "3", "pods": "3"})
            await first.end()
            await until(lambda: second.election.leads)
            assert isinstance(await create(second, "last", 1), Charged)
            assert isinstance(await create(second, "one-too-many", 1), Refused)
            await until(lambda: used() == {EXCLUSIVE_CPUS: "4", "pods": "4"})
            other.cancel()
            await asyncio.gather(other, return_exceptions=True)
            await asyncio.gather(second.end(), own.close())

    asyncio.run(scenario())
