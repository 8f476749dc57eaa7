"""Admission webhooks, called as an API server calls them: AdmissionReview v1 over TLS."""

from __future__ import annotations

import base64
import ssl
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from pinfold.planning.fake_cluster import FakeCluster
from pinfold.ports.kubernetes import (
    MUTATING_WEBHOOKS,
    NAMESPACES,
    VALIDATING_WEBHOOKS,
    KubernetesError,
    NotFoundError,
    Object,
    Resource,
    refusal,
)
from tests.cluster.api_server.defaults import defaulted
from tests.cluster.api_server.patches import patched
from tests.cluster.api_server.selectors import selected
from tests.scenes.cel_rules import evaluated

HEADERS = {"User-Agent": "kube-apiserver-admission", "Accept": "application/json, */*"}


@dataclass
class Asked:
    """What somebody wants to do."""

    operation: str
    resource: Resource
    subresource: str
    namespace: str
    name: str
    object: Object | None
    old: Object | None
    user: str = "system:admin"
    dry_run: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """What webhooks want its client to be told."""


class Admission:
    """Asks the webhooks that are configured in the cluster.

    ``services``: the address (``https://127.0.0.1:PORT``) of a service ``NAMESPACE/NAME``.
    """

    def __init__(self, cluster: FakeCluster, services: Mapping[str, str]) -> None:
        self._cluster = cluster
        self._services = services
        self.reviews: list[dict[str, Any]] = []
        """The answers that webhooks gave, the newest last."""

    async def mutate(self, asked: Asked) -> Object:
        """The object as mutating webhooks want it; raises KubernetesError where one refuses.

        What a pod does not say is filled in before the first, and after each patch.
        """
        self._fill_in(asked)
        for webhook in self._meant(asked, MUTATING_WEBHOOKS):
            answer = await self._ask(webhook, asked)
            if answer.get("patch") and asked.object is not None:
                steps = base64.b64decode(answer["patch"])
                asked.object = patched(asked.object, "application/json-patch+json", steps)
                self._fill_in(asked)
        return asked.object or {}

    def _fill_in(self, asked: Asked) -> None:
        is_pod = asked.resource.kind == "Pod" and asked.subresource != "binding"
        if is_pod and asked.object is not None:
            asked.object = defaulted(asked.object)

    async def validate(self, asked: Asked) -> None:
        """Ask the validating webhooks; raises KubernetesError where one refuses."""
        for webhook in self._meant(asked, VALIDATING_WEBHOOKS):
            await self._ask(webhook, asked)

    def _meant(self, asked: Asked, of: Resource) -> Iterator[Mapping[str, Any]]:
        if asked.resource.group == "admissionregistration.k8s.io":
            return
        for configuration in self._cluster.chunk(of).objects:
            for webhook in configuration.get("webhooks") or ():
                if any(_rule(one, asked) for one in webhook.get("rules") or ()) and self._selects(
                    webhook, asked
                ):
                    yield webhook

    def _selects(self, webhook: Mapping[str, Any], asked: Asked) -> bool:
        if asked.resource.is_namespaced:
            try:
                namespace = self._cluster.read(NAMESPACES, asked.namespace)
            except NotFoundError:
                namespace = {"metadata": {}}
            labels = namespace["metadata"].get("labels") or {}
            if not selected(webhook.get("namespaceSelector"), labels):
                return False
        is_selected = any(
            selected(webhook.get("objectSelector"), one["metadata"].get("labels") or {})
            for one in (asked.object, asked.old)
            if one is not None
        )
        conditions = webhook.get("matchConditions") or ()
        if not is_selected or not conditions:
            return is_selected
        request = _review(asked)["request"]
        seen = {"object": asked.object, "oldObject": asked.old, "request": request}
        return all(evaluated(one["expression"], **seen) for one in conditions)

    async def _ask(self, webhook: Mapping[str, Any], asked: Asked) -> Mapping[str, Any]:
        name = webhook["name"]
        if asked.dry_run and webhook.get("sideEffects") not in {"None", "NoneOnDryRun"}:
            raise refusal(400, "BadRequest", f'admission webhook "{name}" does not support dry run')
        review = _review(asked)
        try:
            answer = await self._post(webhook, review)
            response = answer["response"]
            if response["uid"] != review["request"]["uid"] or answer["kind"] != "AdmissionReview":
                raise ValueError("the answer is to something else")  # noqa: TRY301 - as any other
        except (httpx.HTTPError, OSError, ValueError, KeyError, TypeError) as error:
            self.reviews.append({"error": str(error) or type(error).__name__})
            if webhook.get("failurePolicy", "Fail") == "Ignore":
                return {}
            raise refusal(
                500, "InternalError", f'failed calling webhook "{name}": {error}'
            ) from None
        self.reviews.append(response)
        asked.warnings += response.get("warnings") or ()
        if not response.get("allowed"):
            raise _denied(name, response.get("status") or {})
        return dict(response)

    async def _post(self, webhook: Mapping[str, Any], review: Object) -> Any:
        client = webhook["clientConfig"]
        authority = base64.b64decode(client.get("caBundle") or "").decode()
        tls = ssl.create_default_context(cadata=authority or None)
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        server_name = None
        if "service" in client:
            service = client["service"]
            url = self._services[f"{service['namespace']}/{service['name']}"]
            url += service.get("path", "/")
            server_name = f"{service['name']}.{service['namespace']}.svc"
        else:
            url = client["url"]
        seconds = webhook.get("timeoutSeconds", 10)
        async with httpx.AsyncClient(verify=tls, timeout=seconds, trust_env=False) as http:
            answer = await http.post(
                url,
                params={"timeout": f"{seconds}s"},
                json=review,
                headers=HEADERS,
                extensions={"sni_hostname": server_name} if server_name else None,
            )
            answer.raise_for_status()
            return answer.json()


def _review(asked: Asked) -> dict[str, Any]:
    resource = asked.resource
    kind = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    if asked.subresource == "binding":
        kind["kind"] = "Binding"
    plural = {"group": resource.group, "version": resource.version, "resource": resource.plural}
    sub = {"subResource": asked.subresource} if asked.subresource else {}
    request = {
        "uid": str(uuid.uuid4()),
        "kind": kind,
        "resource": plural,
        **sub,
        "requestKind": kind,
        "requestResource": plural,
        **({"requestSubResource": asked.subresource} if sub else {}),
        # What has no name yet has no field for it, either.
        **({"name": asked.name} if asked.name else {}),
        "namespace": asked.namespace,
        "operation": asked.operation,
        "userInfo": {
            "username": asked.user,
            "uid": asked.user,
            "groups": ["system:masters", "system:authenticated"],
        },
        "object": asked.object,
        "oldObject": asked.old,
        "dryRun": asked.dry_run,
        "options": {**_OPTIONS[asked.operation], **asked.options},
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


_OPTIONS = {
    operation: {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    for operation, kind in (
        ("CREATE", "CreateOptions"),
        ("UPDATE", "UpdateOptions"),
        ("DELETE", "DeleteOptions"),
    )
}


def _rule(rule: Mapping[str, Any], asked: Asked) -> bool:
    resource = asked.resource
    wanted = f"{resource.plural}/{asked.subresource}" if asked.subresource else resource.plural
    accepted = {wanted, "*/*", f"{resource.plural}/*"} | (
        {f"*/{asked.subresource}"} if asked.subresource else {"*"}
    )
    return (
        bool({asked.operation, "*"} & set(rule["operations"]))
        and bool({resource.group, "*"} & set(rule["apiGroups"]))
        and bool({resource.version, "*"} & set(rule["apiVersions"]))
        and bool(accepted & set(rule["resources"]))
    )


def _denied(name: str, status: Mapping[str, Any]) -> KubernetesError:
    code = status.get("code") or 0
    message = status.get("message") or status.get("reason") or ""
    said = f"denied the request: {message}" if message else "denied the request without explanation"
    return refusal(
        max(code, 400),
        str(status.get("reason") or ""),
        f'admission webhook "{name}" {said}',
    )
