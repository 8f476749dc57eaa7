"""A small client of the Kubernetes API: just the requests that the agent makes.

:data:`OPERATIONS` is all of it; the rights in ``deploy/kubernetes`` are compared with that table.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from msgspec import Struct

from pinfold.adapters.kubernetes.access import Access, KubernetesError

if TYPE_CHECKING:
    import httpx

TIMEOUT: Final = 10.0
"""Seconds for a request, all in all."""

MANAGER: Final = "pinfold"
"""The field manager: who a server notes down as the owner of what is written."""

_MAX_ANSWER: Final = 16 << 20
_REMEDIES: Final = {
    401: "the token or certificate is not known or has expired",
    403: "give this account the rights of deploy/kubernetes",
}
_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"


class Operation(Struct, frozen=True):
    """A request: method and path, and the rights that it needs (RBAC's words)."""

    method: str
    path: str
    group: str
    resource: str
    verbs: tuple[str, ...]
    content_type: str = _JSON


GET_POD: Final = Operation(
    "GET", "/api/v1/namespaces/{namespace}/pods/{name}", "", "pods", ("get",)
)
CREATE_EVENT: Final = Operation(
    "POST", "/api/v1/namespaces/{namespace}/events", "", "events", ("create",)
)
PATCH_EVENT: Final = Operation(
    "PATCH", "/api/v1/namespaces/{namespace}/events/{name}", "", "events", ("patch",), _MERGE
)
GET_NODE: Final = Operation("GET", "/api/v1/nodes/{name}", "", "nodes", ("get",))
PATCH_NODE: Final = Operation("PATCH", "/api/v1/nodes/{name}", "", "nodes", ("patch",), _MERGE)
APPLY_TOPOLOGY: Final = Operation(
    "PATCH",
    "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/{name}"
    f"?fieldManager={MANAGER}&force=true",
    "topology.node.k8s.io",
    "noderesourcetopologies",
    # A server-side apply of what is not there yet creates it.
    ("create", "patch"),
    _APPLY,
)

OPERATIONS: Final[Mapping[str, tuple[Operation, ...]]] = {
    "": (GET_POD, CREATE_EVENT, PATCH_EVENT),
    "nodeLabels": (PATCH_NODE,),
    "nodeResourceTopology": (GET_NODE, APPLY_TOPOLOGY),
    "startUpTaint": (GET_NODE, PATCH_NODE),
}
"""The requests by the setting that asks for them; "": wherever there is an API server."""


class KubeClient:
    """Talks to one API server; to be closed.

    Every method raises :class:`KubernetesError` where the server cannot be reached or refuses.
    """

    def __init__(self, access: Access, *, timeout: float = TIMEOUT) -> None:
        self._access = access
        self._timeout = timeout
        # Not at the first request: loading it takes some 80 ms, and a runtime may wait.
        import httpx  # noqa: PLC0415 - 63 ms: only where there is an API server

        self._http = httpx.AsyncClient(
            verify=access.tls or False,
            timeout=timeout,
            # Proxies and passwords of whoever started the agent are not meant for it.
            trust_env=False,
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=1),
        )

    @property
    def server(self) -> str:
        """The address."""
        return self._access.server

    async def get_pod(self, namespace: str, name: str) -> Mapping[str, Any]:
        """A pod, as the server has it."""
        return await self._do(GET_POD, namespace=namespace, name=name)

    async def create_event(self, namespace: str, event: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write a new ``core/v1`` Event."""
        return await self._do(CREATE_EVENT, event, namespace=namespace)

    async def patch_event(
        self, namespace: str, name: str, changes: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Change an Event; the server forgets them after an hour or so (status 404)."""
        return await self._do(PATCH_EVENT, changes, namespace=namespace, name=name)

    async def get_node(self, name: str) -> Mapping[str, Any]:
        """A node."""
        return await self._do(GET_NODE, name=name)

    async def label_node(self, name: str, labels: Mapping[str, str | None]) -> Mapping[str, Any]:
        """Set these labels of a node, and remove those that are None; others stay."""
        return await self._do(PATCH_NODE, {"metadata": {"labels": dict(labels)}}, name=name)

    async def set_taints(
        self, name: str, taints: Sequence[object], *, version: str
    ) -> Mapping[str, Any]:
        """Set all taints of a node as it was read (``resourceVersion``; status 409: it is not)."""
        changes = {"metadata": {"resourceVersion": version}, "spec": {"taints": list(taints)}}
        return await self._do(PATCH_NODE, changes, name=name)

    async def apply_topology(self, topology: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create or replace a ``NodeResourceTopology``."""
        return await self._do(APPLY_TOPOLOGY, topology, name=topology["metadata"]["name"])

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _do(
        self, operation: Operation, body: Mapping[str, Any] | None = None, **names: str
    ) -> Mapping[str, Any]:
        import httpx  # noqa: PLC0415 - 63 ms: only where there is an API server

        path = operation.path.format(**{key: quote(name, safe="") for key, name in names.items()})
        what = f"{self.server}: {operation.method} {path.partition('?')[0]}"
        headers = {"Accept": _JSON}
        if token := self._access.bearer():
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = operation.content_type
        content = None if body is None else json.dumps(body).encode()
        name = self._access.tls_name
        try:
            async with (
                asyncio.timeout(self._timeout),
                self._http.stream(
                    operation.method,
                    self.server + path,
                    headers=headers,
                    content=content,
                    extensions={"sni_hostname": name} if name else None,
                ) as answer,
            ):
                return _understood(what, answer.status_code, await _body(what, answer))
        except TimeoutError:
            raise KubernetesError(f"{what}: no answer within {self._timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            text = str(error) or type(error).__name__
            raise KubernetesError(f"{what}: {text}") from None


async def _body(what: str, answer: httpx.Response) -> bytes:
    content = bytearray()
    async for part in answer.aiter_bytes():
        content += part
        if len(content) > _MAX_ANSWER:
            raise KubernetesError(f"{what}: an answer of more than {_MAX_ANSWER >> 20} MiB")
    return bytes(content)


def _understood(what: str, status: int, content: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if status >= 300:
        message = document.get("message") if isinstance(document, dict) else None
        said = message if isinstance(message, str) else content[:200].decode(errors="replace")
        raise KubernetesError(
            f"{what}: status {status}: {said[:500]!r}", _REMEDIES.get(status, ""), status=status
        )
    if not isinstance(document, dict):
        raise KubernetesError(f"{what}: the answer is no JSON object", "is it an API server?")
    return document
