"""``pinfold quota serve`` as a process, beside an API server that calls its webhook over TLS."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
import urllib.error
import urllib.request
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
from tests.scenes.waiting import PATIENCE
from tests.scenes.webhook_world import pod

NAME = "pinfold-quota"
WEBHOOK = ROOT / "deploy" / "kubernetes" / "quota" / "base" / "webhook.yaml"


class Replica:
    """One process, to which the service leads once it is ready."""

    def __init__(self, api: ApiServer, config: Path, certificates: Path) -> None:
        self._api, self._config, self._certificates = api, config, certificates
        self.lines: list[str] = []

    async def start(self) -> None:
        """Return when it is ready."""
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "pinfold", "quota", "serve", "--make-certificates"),
            *("--certificates", str(self._certificates), "--kubeconfig", str(self._config)),
            *("--namespace", NAME, "--listen", "127.0.0.1:0", "--drain", "0"),
            *("--health-listen", "127.0.0.1:0"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        told = asyncio.Event()
        self._reading = asyncio.create_task(self._read(told))
        async with asyncio.timeout(30 * PATIENCE):
            await told.wait()
            text = "".join(self.lines)
            assert self.process.returncode is None, text
            port, self.health = (
                int(re.findall(rf"\b{name}=(\d+)", text)[0]) for name in ("port", "health_port")
            )
            while (await self.get("/readyz"))[0] != 200:  # noqa: ASYNC110 - it tells of no event
                await asyncio.sleep(0.05)
        self._api.services[f"{NAME}/{NAME}"] = f"https://127.0.0.1:{port}"

    async def _read(self, told: asyncio.Event) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode())
            if b"health_port=" in line:
                told.set()
        told.set()

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self._reading

    async def get(self, path: str) -> tuple[int, str]:
        """What its health has to say; the API server goes on meanwhile."""
        return await asyncio.to_thread(fetched, f"http://127.0.0.1:{self.health}{path}")


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
    async def replica(self, number: int = 0) -> AsyncIterator[Replica]:
        found = Replica(self.api, self._config, self._folder / f"certificates-{number}")
        try:
            await found.start()
            yield found
        finally:
            await found.end()

    async def create(self, name: str, cpus: int) -> Object:
        return await self.client.create(PODS, pod(name, cpus=str(cpus), uid=""))

    @property
    def used(self) -> int:
        status = self.api.cluster.read(RESOURCE_QUOTAS, "cpus", "team").get("status", {})
        return int(status.get("used", {}).get(EXCLUSIVE_CPUS, -1))


def fetched(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - our own server
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


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
            assert asked(cluster.api) <= rights()
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


def asked(api: ApiServer) -> set[tuple[str, str, str]]:
    """What was asked for but by the test, as rights: group, resource, verb."""
    found = set()
    for method, path in api.requests:
        parts = path.strip("/").split("/")
        group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
        if rest[0] == "namespaces" and len(rest) > 2:
            rest = rest[2:]
        if (method, rest[0]) == ("POST", "pods"):
            continue
        resource = "/".join([rest[0], *rest[2:]])
        verbs = {"POST": "create", "PUT": "update", "GET": "get" if rest[1:] else "list"}
        found.add((group, resource, verbs[method]))
    return found


def rights() -> set[tuple[str, str, str]]:
    return {
        (one.group, one.resource, verb)
        for listed in RIGHTS.values()
        for one in listed
        for verb in one.verbs
    }
