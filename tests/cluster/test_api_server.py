"""The API server of the tests behaves as a real one, as far as clients of ours and kubectl see."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pinfold.adapters.kubernetes.access import Access
from pinfold.adapters.kubernetes.objects import KubeObjects
from pinfold.ports.kubernetes import (
    MUTATING_WEBHOOKS,
    NAMESPACES,
    PODS,
    VALIDATING_WEBHOOKS,
    KubernetesError,
    NotFoundError,
    Object,
)
from tests.cluster.api_server.__main__ import kubeconfig
from tests.cluster.api_server.server import ApiServer
from tests.cluster.api_server.serving import running, served
from tests.scenes.kube_api_peer import Certificates, make_certificates
from tests.scenes.kubectl import Kubectl, needs_kubectl

WIDGETS = """\
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Cluster
  names: {plural: widgets, kind: Widget, singular: widget}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {size: {type: integer, minimum: 1}}
---
apiVersion: v1
kind: Namespace
metadata: {name: team}
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: cpus, namespace: team}
spec: {hard: {pinfold.dev/exclusive-cpus: "4"}}
"""
WIDGET = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: %s}\n"


@needs_kubectl
def test_kubectl_works_with_it(tmp_path: Path) -> None:

    async def scenario() -> None:
        async with running(ApiServer()) as api:
            run = Kubectl(tmp_path, kubeconfig(api, tmp_path / "config"))

            async def kubectl(*words: str, given: str = "", status: int = 0) -> str:
                return await asyncio.to_thread(run, *words, given=given, status=status)

            told = await kubectl("apply", "-f", "-", given=WIDGETS)
            assert told.splitlines()[1:] == [
                "namespace/team created",
                "resourcequota/cpus created",
            ]
            assert "resourcequota/cpus unchanged" in await kubectl(
                "apply", "-f", "-", given=WIDGETS
            )
            told = await kubectl("apply", "-f", "-", given=WIDGET % 0, status=1)
            assert "less than the minimum of 1" in told
            await kubectl("apply", "-f", "-", given=WIDGET % 3)
            await kubectl("apply", "--server-side", "-f", "-", given=WIDGET % 4)
            assert (await kubectl("get", "widgets")).split() == ["NAME", "SIZE", "w", "4"]
            assert "Namespace:  team" in await kubectl("describe", "quota", "cpus", "-n", "team")
            await kubectl("delete", "namespace", "team")
            assert "not found" in await kubectl("get", "quota", "cpus", "-n", "team", status=1)

    asyncio.run(scenario())


def test_nothing_is_created_in_a_namespace_that_is_not_there() -> None:
    async def scenario() -> None:
        async with running(ApiServer()) as api:
            client = KubeObjects(Access(api.url, None))
            pod: Object = {"metadata": {"name": "a", "namespace": "team"}, "spec": {}}
            with pytest.raises(NotFoundError, match='namespaces "team" not found'):
                await client.create(PODS, pod)
            await client.create(NAMESPACES, {"metadata": {"name": "team"}})
            await client.create(PODS, pod)
            await client.delete(NAMESPACES, "team")
            assert await client.list(PODS) == []
            await client.close()

    asyncio.run(scenario())


# --------------------------------------------------------------------------------------- webhooks


class Webhook:
    """A webhook that allows, refuses, changes, or fails."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self.asked: list[Any] = []
        self.answer: dict[str, Any] = {"allowed": True}
        self.status = 200

    async def review(self, request: Request) -> JSONResponse:
        review = json.loads(await request.body())
        self.asked.append(review["request"])
        response = {"uid": review["request"]["uid"], **self.answer}
        body = {"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}
        return JSONResponse(body, self.status)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = Starlette(routes=[Route("/review", self.review, methods=["POST"])])
        folder = self.certificates
        async with served(
            app, certificate=folder.path("server.crt"), key=folder.path("server.key")
        ) as url:
            yield url.replace("127.0.0.1", "localhost") + "/review"

    def configuration(self, url: str, **more: Any) -> Object:
        webhook = {
            "name": "cpus.pinfold.dev",
            "clientConfig": {"url": url, "caBundle": self.certificates.data("ca.crt")},
            "rules": [
                {
                    "operations": ["CREATE"],
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods"],
                }
            ],
            "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
            **more,
        }
        return {"metadata": {"name": "quota"}, "webhooks": [webhook]}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


POD: Object = {"metadata": {"generateName": "a-", "namespace": "default"}, "spec": {}}


def test_webhooks_are_asked_as_an_api_server_does(certificates: Certificates) -> None:
    async def scenario() -> None:
        webhook = Webhook(certificates)
        async with running(ApiServer()) as api, webhook.serving() as url:
            client = KubeObjects(Access(api.url, None))
            await client.create(VALIDATING_WEBHOOKS, webhook.configuration(url))
            made = await client.create(PODS, POD)
            asked = webhook.asked[0]
            assert asked["operation"] == "CREATE"
            assert asked["object"]["metadata"]["uid"] == made["metadata"]["uid"]
            assert asked["name"] == made["metadata"]["name"]
            webhook.answer = {
                "allowed": False,
                "status": {"code": 403, "reason": "Forbidden", "message": "too many"},
            }
            said = 'admission webhook "cpus.pinfold.dev" denied the request: too many'
            with pytest.raises(KubernetesError, match=said) as refused:
                await client.create(PODS, POD)
            assert refused.value.status == 403
            assert len(await client.list(PODS)) == 1
            # A mutating one comes first, and what it changes is what is stored.
            steps = [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]
            webhook.answer = {
                "allowed": True,
                "patchType": "JSONPatch",
                "patch": base64.b64encode(json.dumps(steps).encode()).decode(),
            }
            await client.create(MUTATING_WEBHOOKS, webhook.configuration(url))
            assert (await client.create(PODS, POD))["metadata"]["labels"] == {"a": "b"}
            await client.close()

    asyncio.run(scenario())


def test_warnings_reach_the_client_and_other_bodies_are_not_taken(
    certificates: Certificates,
) -> None:
    async def scenario() -> None:
        webhook = Webhook(certificates)
        async with running(ApiServer()) as api, webhook.serving() as url:
            client = KubeObjects(Access(api.url, None))
            await client.create(VALIDATING_WEBHOOKS, webhook.configuration(url))
            await client.close()
            pods = f"{api.url}/api/v1/namespaces/default/pods"
            async with httpx.AsyncClient(trust_env=False) as http:
                for allowed, status in ((True, 201), (False, 400)):
                    webhook.answer = {"allowed": allowed, "warnings": ["it is late", 'say "a"']}
                    answer = await http.post(pods, json=POD)
                    assert answer.status_code == status
                    told = answer.headers.get_list("Warning")
                    assert told == ['299 - "it is late"', '299 - "say \\"a\\""']
                kind = {"Content-Type": "application/vnd.kubernetes.protobuf"}
                answer = await http.post(pods, content=b"k8s", headers=kind)
                assert answer.status_code == 415
                assert answer.json()["reason"] == "UnsupportedMediaType"

    asyncio.run(scenario())


def test_what_is_limited_is_requested_also_of_what_a_webhook_adds(
    certificates: Certificates,
) -> None:
    """Kubernetes fills in what is missing before it asks the first webhook, and after each."""

    async def scenario() -> None:
        webhook = Webhook(certificates)
        async with running(ApiServer()) as api, webhook.serving() as url:
            client = KubeObjects(Access(api.url, None))
            path = "/spec/containers/0/resources/limits/example.com~1gpu"
            steps = [{"op": "add", "path": path, "value": "1"}]
            webhook.answer = {
                "allowed": True,
                "patchType": "JSONPatch",
                "patch": base64.b64encode(json.dumps(steps).encode()).decode(),
            }
            await client.create(MUTATING_WEBHOOKS, webhook.configuration(url))
            limited = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
            containers = [
                {"name": "main", "image": "a", "resources": limited},
                {"name": "other", "image": "a"},
            ]
            one = {**POD, "spec": {"containers": containers, "initContainers": containers[:1]}}
            made = (await client.create(PODS, one))["spec"]
            (asked,) = webhook.asked
            seen = asked["object"]["spec"]["containers"]
            requests = {"cpu": "1", "memory": "1Gi"}
            assert seen[0]["resources"] == {**limited, "requests": requests}
            assert seen[1] == containers[1]
            assert made["initContainers"][0]["resources"]["requests"] == requests
            resources = made["containers"][0]["resources"]
            assert resources["requests"] == {**requests, "example.com/gpu": "1"}
            await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_what_becomes_of_a_pod_when_a_webhook_fails(
    policy: str, certificates: Certificates
) -> None:
    async def scenario() -> None:
        webhook = Webhook(certificates)
        webhook.status = 500
        async with running(ApiServer()) as api, webhook.serving() as url:
            client = KubeObjects(Access(api.url, None))
            only = {"namespaceSelector": {"matchExpressions": [_not_in("kube-system")]}}
            configured = webhook.configuration(url, failurePolicy=policy, **only)
            await client.create(VALIDATING_WEBHOOKS, configured)
            elsewhere = {**POD, "metadata": {"name": "b", "namespace": "kube-system"}}
            await client.create(PODS, elsewhere)
            assert webhook.asked == []
            if policy == "Ignore":
                await client.create(PODS, POD)
            else:
                with pytest.raises(KubernetesError, match="failed calling webhook"):
                    await client.create(PODS, POD)
            assert len(webhook.asked) == 1
            await client.close()

    asyncio.run(scenario())


def _not_in(namespace: str) -> dict[str, Any]:
    key = "kubernetes.io/metadata.name"
    return {"key": key, "operator": "NotIn", "values": [namespace]}
