"""``pinfold classes serve`` as a process, beside an API server that calls its webhook over TLS."""

from __future__ import annotations

import asyncio
import base64
import signal
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from pinfold.adapters.certificates import X509
from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.cluster.classes.rights import RIGHTS
from pinfold.core.classes.bound import bound_key
from pinfold.ports.kubernetes import (
    COMPUTE_RESOURCES,
    ENDPOINT_SLICES,
    MUTATING_WEBHOOKS,
    PODS,
    RESOURCE_CLASSES,
    SECRETS,
    KubernetesError,
    Object,
)
from tests.cluster.api_server.__main__ import kubeconfig
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running
from tests.roots import ROOT
from tests.scenes.class_cluster import GPU, compute_resource, install, pod, resource_class
from tests.scenes.deployed import asked_for, listed_rights
from tests.scenes.replica_process import ReplicaProcess
from tests.scenes.waiting import PATIENCE
from tests.scenes.webhook_world import client_of

NAME = "pinfold-classes"
WEBHOOK = ROOT / "deploy" / "kubernetes" / "serve-classes" / "base" / "webhook.yaml"


class Cluster:
    """An API server with classes and a node, and replicas that come and go."""

    def __init__(self, api: ApiServer, folder: Path) -> None:
        self.api, self._folder = api, folder
        self.client = KubeObjects(Access(api.url, None))
        for name in ("team", NAME):
            api.upkeep.create_namespace(name)
        install(api.cluster)
        configuration = yaml.safe_load(WEBHOOK.read_text())
        configuration["webhooks"][0]["timeoutSeconds"] = 30
        api.cluster.create(MUTATING_WEBHOOKS, configuration)
        api.cluster.create(RESOURCE_CLASSES, resource_class("gold", "big"))
        api.cluster.create(COMPUTE_RESOURCES, compute_resource("n1-big", "n1", "big", 2))
        self._config = kubeconfig(api, folder / "kubeconfig")

    @asynccontextmanager
    async def replica(self, number: int = 0, *words: str) -> AsyncIterator[ReplicaProcess]:
        """One that is ready, and to which the service leads."""
        found = ReplicaProcess(
            self._config,
            self._folder / f"certificates-{number}",
            *("--extender-listen", "127.0.0.1:0", *words),
            command=("classes", "serve"),
            namespace=NAME,
        )
        try:
            await found.start()
            self.api.services[f"{NAME}/{NAME}"] = f"https://127.0.0.1:{found.port}"
            yield found
        finally:
            await found.end()

    async def asks(
        self, replica: ReplicaProcess, verb: str, question: Object, client: Path | None = None
    ) -> Any:
        """What a scheduler is answered that trusts the authority of the Secret."""
        secret = await self.client.get(SECRETS, f"{NAME}-certificates", NAME)
        authority = base64.b64decode(secret["data"]["ca.crt"]).decode()
        tls = ssl.create_default_context(cadata=authority)
        if client is not None:
            tls.load_cert_chain(client)
        url = f"https://127.0.0.1:{replica.ports['extender_port']}/{verb}"
        name = {"sni_hostname": f"{NAME}-extender.{NAME}.svc"}
        async with httpx.AsyncClient(verify=tls, timeout=30, trust_env=False) as http:
            answer = await http.post(url, json=question, extensions=name)
            assert answer.status_code == 200, answer.text
            return answer.json()

    async def fits(self, replica: ReplicaProcess, asked: Object) -> tuple[list[str], Object]:
        """The nodes that fit a pod, and why the others do not; once the replica leads."""
        question = {"Pod": asked, "Nodes": None, "NodeNames": ["n1", "n2"]}
        async with asyncio.timeout(30 * PATIENCE):
            while True:
                answer = await self.asks(replica, "filter", question)
                if not answer.get("Error"):
                    return answer["NodeNames"], answer["FailedNodes"]
                await asyncio.sleep(0.05)

    async def bind(self, replica: ReplicaProcess, pod: Object, node: str) -> str:
        """The error, "" where it is bound."""
        metadata = pod["metadata"]
        about = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"]}
        question = {**about, "PodUID": metadata["uid"], "Node": node}
        error = (await self.asks(replica, "bind", question)).get("Error", "")
        return str(error)

    async def status_once(self, requested: str) -> Object:
        """That of the class, once so many are asked for."""
        watch = self.api.cluster.watch(RESOURCE_CLASSES, "0")
        async with asyncio.timeout(30 * PATIENCE):
            async for event in watch:
                status: Object = event.object.get("status") or {}
                if status.get("requested") == requested:
                    return status
        raise AssertionError

    async def until_it_leads_to(self, address: str) -> None:
        """Until the service of the extender leads there."""
        watch = self.api.cluster.watch(ENDPOINT_SLICES, "0", NAME)
        async with asyncio.timeout(30 * PATIENCE):
            async for event in watch:
                if event.object["endpoints"][0]["addresses"] == [address]:
                    return

    async def create(self, name: str, /, **classes: int) -> Object:
        asked = pod(name, bound=False, **classes)  # type: ignore[arg-type] # no class is called so
        return await self.client.create(PODS, asked)


@asynccontextmanager
async def a_cluster(folder: Path) -> AsyncIterator[Cluster]:
    async with running(ApiServer()) as api:
        found = Cluster(api, folder)
        try:
            yield found
        finally:
            await found.client.close()


def test_a_pod_comes_in_with_its_binding_or_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_cluster(tmp_path) as cluster, cluster.replica() as replica:
            made = await cluster.create("a", gold=2)
            (container,) = made["spec"]["containers"]
            assert container["resources"]["requests"][GPU] == "2"
            assert made["metadata"]["annotations"] == {bound_key("app"): f"gold={GPU}:2"}
            said = r"classes\.pinfold\.dev.*denied the request.*there is no class glod; there is go"
            with pytest.raises(KubernetesError, match=said):
                await cluster.create("b", glod=1)
            status, text = await replica.get("/metrics")
            assert status == 200
            for decision in ("allowed", "denied"):
                said = f'pinfold_classes_reviews_total{{decision="{decision}",resource="pods"}} 1.0'
                assert said in text
            assert (await cluster.status_once("2"))["allocatable"] == "2"
            replica.process.send_signal(signal.SIGTERM)
            assert await replica.process.wait() == 0, replica.lines

    asyncio.run(scenario())


def test_one_replica_publishes_what_belongs_to_no_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "cluster-resources.yaml"
        licences = {
            "apiVersion": COMPUTE_RESOURCES.api_version,
            "kind": COMPUTE_RESOURCES.kind,
            "metadata": {"name": "licences"},
            "spec": {"resourceName": "example.com/licence"},
            "status": {"capacity": "40"},
        }
        file.write_text(yaml.safe_dump(licences))
        async with (
            a_cluster(tmp_path) as cluster,
            cluster.replica(0, "--cluster-resources", str(file)),
        ):
            capacities = []
            async with asyncio.timeout(30 * PATIENCE):
                async for event in cluster.api.cluster.watch(COMPUTE_RESOURCES, "0"):
                    one = event.object
                    if one["metadata"]["name"] == "licences" and "status" in one:
                        capacities.append(one["status"]["capacity"])
                        if capacities == ["40"]:
                            file.write_text(
                                yaml.safe_dump({**licences, "status": {"capacity": 41}})
                            )
                        elif capacities[-1] == "41":
                            break
            assert asked_for(cluster.api) <= listed_rights(RIGHTS)

    asyncio.run(scenario())


def test_while_no_replica_answers_only_pods_with_classes_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_cluster(tmp_path) as cluster:
            async with cluster.replica():
                await cluster.create("a", gold=1)
            with pytest.raises(KubernetesError, match=r'failed calling webhook "classes\.pinfold'):
                await cluster.create("b", gold=1)
            # It is asked about no others.
            assert (await cluster.create("c"))["metadata"]["uid"]
            async with cluster.replica(1):
                await cluster.create("b", gold=1)

    asyncio.run(scenario())


def test_a_scheduler_may_have_to_show_a_certificate_and_an_api_server_none(tmp_path: Path) -> None:
    authority = X509().authority("schedulers", time.time(), 30)
    file, client = tmp_path / "schedulers.crt", tmp_path / "scheduler.pem"
    file.write_bytes(authority.certificate)
    client.write_bytes(client_of(authority))

    async def scenario() -> None:
        async with (
            a_cluster(tmp_path) as cluster,
            cluster.replica(0, "--extender-client-authority", str(file)) as replica,
        ):
            made = await cluster.create("a", gold=2)
            question = {"Pod": made, "NodeNames": ["n1"]}
            with pytest.raises(httpx.TransportError):
                await cluster.asks(replica, "filter", question)
            assert "NodeNames" in await cluster.asks(replica, "filter", question, client)

    asyncio.run(scenario())


def test_a_pod_gets_a_node_and_the_next_leader_knows_what_is_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with a_cluster(tmp_path) as cluster:
            option = "--extender-address"
            async with (
                cluster.replica(0, option, "127.0.0.1") as first,
                cluster.replica(1, option, "127.0.0.2") as second,
            ):
                one, other = [await cluster.create(name, gold=2) for name in "ab"]
                fitting, why = await cluster.fits(first, one)
                assert (fitting, why) == (["n1"], {"n2": "no devices of class gold"})
                # The second is ready for API servers, and no one for a scheduler.
                question = {"Pod": one, "NodeNames": ["n1"]}
                answer = await cluster.asks(second, "filter", question)
                assert "does not lead" in answer["Error"]
                errors = [await cluster.bind(first, pod, "n1") for pod in (one, other)]
                assert errors[0] == ""
                assert "too few free devices of class gold" in errors[1]
                found = await cluster.client.get(PODS, "a", "team")
                assert found["spec"]["nodeName"] == "n1"
                said = found["metadata"]["annotations"][bound_key("app")]
                assert said == f"gold={GPU}:2@n1-big"
                await cluster.until_it_leads_to("127.0.0.1")
                first.process.send_signal(signal.SIGTERM)
                assert await first.process.wait() == 0, first.lines
                fitting, why = await cluster.fits(second, other)
                assert (fitting, why["n1"]) == ([], "too few free devices of class gold")
                await cluster.until_it_leads_to("127.0.0.2")
                text = (await second.get("/metrics"))[1]
                assert "pinfold_classes_leads 1.0" in text
                assert (
                    'pinfold_classes_questions_total{decision="denied",verb="filter"} 1.0' in text
                )
            # Each right is used, and nothing is asked for without one. A slice is made anew only
            # where leaders' addresses are of different families, and a class is read only where
            # somebody else has written it meanwhile.
            listed = {name: one for name, one in RIGHTS.items() if name != "cluster-resources"}
            asked, given = asked_for(cluster.api), listed_rights(listed)
            watched = {(*right[:2], "watch") for right in given}
            assert asked <= given
            assert given - asked - watched <= {
                ("discovery.k8s.io", "endpointslices", "delete"),
                ("pinfold.dev", "resourceclasses", "get"),
            }

    asyncio.run(scenario())
