"""``pinfold quota serve`` as a process, beside an API server that calls its webhook over TLS."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.cluster.quota.rights import RIGHTS
from pinfold.core.quota.names import EXCLUSIVE_CPUS
from pinfold.ports.kubernetes import (
    PODS,
    RESOURCE_QUOTAS,
    VALIDATING_WEBHOOKS,
    KubernetesError,
    Object,
)
from tests.cluster.api_server.__main__ import kubeconfig
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.roots import ROOT
from tests.scenes.deployed import asked_for, listed_rights
from tests.scenes.replica_process import NAME, ReplicaProcess, replica_process
from tests.scenes.waiting import PATIENCE
from tests.scenes.webhook_world import pod

WEBHOOK = ROOT / "deploy" / "kubernetes" / "quota" / "base" / "webhook.yaml"


class Cluster:
    """An API server with a team that has a quota, and replicas that come and go."""

    def __init__(self, api: ApiServer, folder: Path, hard: int) -> None:
        self.api, self._folder = api, folder
        self.client = KubeObjects(Access(api.url, None))
        for name in ("team", NAME):
            api.upkeep.create_namespace(name)
        configuration = yaml.safe_load(WEBHOOK.read_text())
        configuration["webhooks"][0] |= {"failurePolicy": "Fail", "timeoutSeconds": 30}
        api.cluster.create(VALIDATING_WEBHOOKS, configuration)
        spec = {"hard": {EXCLUSIVE_CPUS: str(hard)}}
        api.cluster.create(
            RESOURCE_QUOTAS, {"metadata": {"name": "cpus", "namespace": "team"}, "spec": spec}
        )
        self._config = kubeconfig(api, folder / "kubeconfig")

    @asynccontextmanager
    async def replica(self, number: int = 0) -> AsyncIterator[ReplicaProcess]:
        """One to which the service leads."""
        certificates = self._folder / f"certificates-{number}"
        async with replica_process(self._config, certificates) as found:
            self.api.services[f"{NAME}/{NAME}"] = f"https://127.0.0.1:{found.port}"
            yield found

    async def create(self, name: str, cpus: int) -> Object:
        return await self.client.create(PODS, pod(name, cpus=str(cpus), uid=""))

    @property
    def used(self) -> int:
        status = self.api.cluster.read(RESOURCE_QUOTAS, "cpus", "team").get("status", {})
        return int(status.get("used", {}).get(EXCLUSIVE_CPUS, -1))


@asynccontextmanager
async def a_cluster(folder: Path, hard: int) -> AsyncIterator[Cluster]:
    async with running(ApiServer()) as api:
        found = Cluster(api, folder, hard)
        try:
            yield found
        finally:
            await found.client.close()


def test_pods_come_in_until_the_quota_is_full(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_cluster(tmp_path, 4) as cluster, cluster.replica() as replica:
            await cluster.create("a", 3)
            assert cluster.used == 3
            with pytest.raises(KubernetesError, match=r"denied the request.*exceeded quota: cpus"):
                await cluster.create("b", 2)
            assert cluster.api.admission.reviews[0]["auditAnnotations"] == {
                "charged": f"cpus: {EXCLUSIVE_CPUS}=3"
            }
            status, text = await replica.get("/metrics")
            assert status == 200
            assert 'reviews_total{decision="denied",resource="pods"} 1.0' in text
            assert (await replica.get("/healthz"))[0] == 200
            # What it has asked the API server is what it has the rights to.
            assert asked_for(cluster.api) <= listed_rights(RIGHTS)
            replica.process.send_signal(signal.SIGTERM)
            assert await replica.process.wait() == 0, replica.lines

    asyncio.run(scenario())


def test_a_replica_that_is_killed_in_the_middle_of_a_charge_lets_nothing_by(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with a_cluster(tmp_path, 8) as cluster:
            async with cluster.replica() as first:
                await cluster.create("a", 2)
                writing = asyncio.Event()

                def hang(method: str, path: str) -> float | None:
                    if method == "PUT" and path.endswith("/status"):
                        writing.set()
                        return 3600.0
                    return None

                cluster.api.stands_in = hang
                creating = asyncio.create_task(cluster.create("b", 2))
                async with asyncio.timeout(20 * PATIENCE):
                    await writing.wait()
                first.process.kill()
                with pytest.raises(KubernetesError, match="failed calling webhook"):
                    await creating
                cluster.api.stands_in = lambda _method, _path: None
            async with cluster.replica(1):
                await cluster.create("c", 2)
                # What the first had begun to charge may count for a minute, and no longer.
                assert 4 <= cluster.used <= 6
                found = await cluster.client.list(PODS, "team")
                assert {one["metadata"]["name"] for one in found} == {"a", "c"}

    asyncio.run(scenario())
