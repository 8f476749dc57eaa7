"""The server: paths, verbs and watches over the objects of a :class:`FakeCluster`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from pinfold.planning.fake_cluster import FakeCluster
from pinfold.ports.kubernetes import (
    NAMESPACES,
    ConflictError,
    KubernetesError,
    NotFoundError,
    Object,
    Resource,
    refusal,
)
from tests.cluster.api_server import discovery
from tests.cluster.api_server.admission import Admission, Asked
from tests.cluster.api_server.kinds import CRDS, Kinds, Served
from tests.cluster.api_server.patches import patched
from tests.cluster.api_server.selectors import matches
from tests.cluster.api_server.upkeep import Upkeep

_REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound"}


@dataclass
class Target:
    """What a path names."""

    served: Served
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> Resource:
        return self.served.resource


@dataclass
class ApiServer:
    """An API server; its ``cluster`` may be changed, compacted and disconnected from outside.

    Attributes:
        tokens: who has which token; none: whoever asks may do anything.
        services: the address of a service ``NAMESPACE/NAME``, for webhooks.
        stands_in: asked first at each request (method, path): the seconds that it hangs, a status
            that is its answer, or None.
        bookmarks: seconds between two bookmarks of a watch.
    """

    cluster: FakeCluster = field(default_factory=FakeCluster)
    tokens: Mapping[str, str] = field(default_factory=dict)
    services: dict[str, str] = field(default_factory=dict)
    stands_in: Callable[[str, str], int | float | None] = lambda _method, _path: None
    bookmarks: float = 60.0
    url: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kinds = Kinds(self.cluster)
        self.upkeep = Upkeep(self.cluster, self.kinds)
        self.admission = Admission(self.cluster, self.services)
        for name in ("default", "kube-system"):
            self.upkeep.create_namespace(name)

    # --------------------------------------------------------------------------------- http

    def app(self) -> Starlette:
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=methods)])

    async def _answer(self, request: Request) -> Response:
        self.requests.append((request.method, request.url.path))
        try:
            trouble = self.stands_in(request.method, request.url.path)
            if isinstance(trouble, int):
                raise refusal(trouble, "", "as the test wants it")
            if trouble is not None:
                await asyncio.sleep(trouble)
            return await self._routed(request)
        except KubernetesError as error:
            return _status(error)

    async def _routed(self, request: Request) -> Response:
        path = request.url.path.strip("/")
        if path in {"healthz", "livez", "readyz"}:
            return Response("ok", media_type="text/plain")
        user = self._user(request)
        if path.startswith("double/"):
            return self._told(path.removeprefix("double/"))
        if (document := self._discovered(path)) is not None:
            return JSONResponse(document)
        target = self._target(path)
        verbs: Mapping[str, Callable[[Request, Target, str], Awaitable[Response]]] = {
            "GET": self._get,
            "POST": self._post,
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }
        return await verbs[request.method](request, target, user)

    def _user(self, request: Request) -> str:
        if not self.tokens:
            return "system:admin"
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        user = self.tokens.get(token) if scheme == "Bearer" else None
        if user is None:
            raise refusal(401, "Unauthorized", "Unauthorized")
        return user

    def _told(self, what: str) -> Response:
        do = {
            "compact": self.cluster.compact,
            "disconnect": self.cluster.disconnect,
            "bookmark": self.cluster.bookmark,
        }.get(what)
        if do is None:
            raise refusal(404, "NotFound", "double/compact, double/disconnect, double/bookmark")
        do()
        return JSONResponse({})

    def _discovered(self, path: str) -> dict[str, Any] | None:
        served = list(self.kinds.all())
        parts = path.split("/")
        if path == "version":
            return {"major": "1", "minor": "34", "gitVersion": "v1.34.0", "platform": "double"}
        if path == "api":
            return discovery.api_versions()
        if path == "apis":
            return discovery.groups(served)
        if path == "openapi/v3":
            return discovery.open_api_index(served)
        if path.startswith("openapi/v3/"):
            return discovery.open_api(path.removeprefix("openapi/v3/"), served)
        if path == "api/v1" or (parts[0] == "apis" and len(parts) == 3):
            return discovery.resources(path.partition("/")[2], served)
        if parts[0] == "apis" and len(parts) == 2:
            found = [one for one in discovery.groups(served)["groups"] if one["name"] == parts[1]]
            return {"kind": "APIGroup", "apiVersion": "v1", **found[0]} if found else None
        return None

    def _target(self, path: str) -> Target:
        parts = path.split("/")
        if parts[0] == "api":
            group, version, rest = "", parts[1], parts[2:]
        elif parts[0] == "apis" and len(parts) > 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            rest = []
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in {"status", "finalize"}:
            namespace, rest = rest[1], rest[2:]
        served = self.kinds.find(group, version, rest[0]) if rest else None
        if served is None or len(rest) > 3:
            raise refusal(404, "NotFound", "the server could not find the requested resource")
        name, subresource = (*rest[1:], "", "")[:2]
        return Target(served, namespace, name, subresource)

    # -------------------------------------------------------------------------------- verbs

    async def _get(self, request: Request, target: Target, _user: str) -> Response:
        query = request.query_params
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        as_table = "as=Table" in request.headers.get("accept", "")
        if target.name:
            found = self.cluster.read(target.resource, target.name, target.namespace)
            if as_table:
                return JSONResponse(discovery.table(target.served, [found], ""))
            return JSONResponse(found)
        if query.get("watch") in {"1", "true"}:
            return StreamingResponse(
                self._watch(target, dict(query), labels, fields), media_type="application/json"
            )
        chunk = self.cluster.chunk(
            target.resource,
            target.namespace,
            limit=int(query.get("limit") or 0),
            continued=query.get("continue", ""),
        )
        found_all = [one for one in chunk.objects if matches(one, labels, fields)]
        if as_table:
            return JSONResponse(discovery.table(target.served, found_all, chunk.version))
        metadata: dict[str, Any] = {"resourceVersion": chunk.version}
        if chunk.continued:
            metadata |= {"continue": chunk.continued, "remainingItemCount": chunk.remaining}
        kind = f"{target.resource.kind}List"
        return JSONResponse(
            {
                "kind": kind,
                "apiVersion": target.resource.api_version,
                "metadata": metadata,
                "items": found_all,
            }
        )

    async def _post(self, request: Request, target: Target, user: str) -> Response:
        resource = target.resource
        body = _body(await request.body(), request)
        if target.subresource == "binding":
            bound = self.upkeep.bind(resource, target.namespace, target.name, body)
            return JSONResponse(bound, 201)
        if target.namespace:
            body.setdefault("metadata", {}).setdefault("namespace", target.namespace)
            self.upkeep.check_namespace(target.namespace)
        made = self.cluster.prepared(resource, body)
        name = made["metadata"]["name"]
        asked = Asked("CREATE", resource, "", target.namespace, name, made, None, user)
        admitted = await self._admitted(request, asked)
        self.upkeep.check(target.served, admitted)
        if asked.dry_run:
            return JSONResponse(admitted, 201)
        uid = made["metadata"]["uid"]
        if resource == NAMESPACES:
            admitted.setdefault("spec", {})["finalizers"] = ["kubernetes"]
            admitted["status"] = {"phase": "Active"}
            admitted["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name
        elif target.served.has_status and resource.kind != "Pod":
            admitted.pop("status", None)
        elif resource.kind == "Pod":
            admitted["status"] = {"phase": "Pending"}
        stored = self.cluster.create(resource, admitted, uid=uid)
        if resource == CRDS:
            self.upkeep.establish(stored)
        return JSONResponse(stored, 201)

    async def _put(self, request: Request, target: Target, user: str) -> Response:
        body = _body(await request.body(), request)
        return await self._replace(request, target, user, body)

    async def _patch(self, request: Request, target: Target, user: str) -> Response:
        kind, raw = request.headers.get("content-type", ""), await request.body()
        is_apply = kind.startswith("application/apply-patch")
        for _ in range(5):
            try:
                before = self.cluster.read(target.resource, target.name, target.namespace)
            except NotFoundError:
                if not is_apply or target.subresource:
                    raise
                return await self._applied_anew(request, target, user, raw)
            after = patched(before, kind, raw)
            version = before["metadata"]["resourceVersion"]
            is_swap = after["metadata"].get("resourceVersion") != version
            try:
                return await self._replace(request, target, user, after)
            except ConflictError:
                if is_swap:
                    raise
        raise refusal(409, "Conflict", "the object has been modified")

    async def _applied_anew(
        self, request: Request, target: Target, user: str, raw: bytes
    ) -> Response:
        made = self.cluster.prepared(target.resource, yaml.safe_load(raw))
        name = made["metadata"]["name"]
        if target.namespace:
            self.upkeep.check_namespace(target.namespace)
            made["metadata"]["namespace"] = target.namespace
        asked = Asked("CREATE", target.resource, "", target.namespace, name, made, None, user)
        admitted = await self._admitted(request, asked)
        self.upkeep.check(target.served, admitted)
        stored = self.cluster.create(target.resource, admitted, uid=made["metadata"]["uid"])
        if target.resource == CRDS:
            self.upkeep.establish(stored)
        return JSONResponse(stored, 201)

    async def _replace(
        self, request: Request, target: Target, user: str, after: Object
    ) -> Response:
        resource = target.resource
        before = self.cluster.read(resource, target.name, target.namespace)
        if resource.is_namespaced:
            after["metadata"]["namespace"] = target.namespace
        asked = Asked(
            "UPDATE",
            resource,
            target.subresource,
            target.namespace,
            target.name,
            after,
            before,
            user,
        )
        admitted = await self._admitted(request, asked)
        self.upkeep.check(target.served, admitted)
        if asked.dry_run:
            return JSONResponse(admitted)
        # A resize changes the spec, and only there; other subresources change the status.
        subresource = "" if target.subresource in {"resize", "finalize"} else target.subresource
        return JSONResponse(self.cluster.update(resource, admitted, subresource))

    async def _delete(self, request: Request, target: Target, user: str) -> Response:
        resource = target.resource
        if not target.name:
            raise refusal(405, "MethodNotAllowed", "delete what you mean by name")
        before = self.cluster.read(resource, target.name, target.namespace)
        asked = Asked("DELETE", resource, "", target.namespace, target.name, None, before, user)
        await self._admitted(request, asked)
        if asked.dry_run:
            return JSONResponse(before)
        if resource == NAMESPACES:
            return JSONResponse(self.upkeep.end_namespace(target.name))
        return JSONResponse(self.cluster.delete(resource, target.name, target.namespace))

    async def _watch(
        self, target: Target, query: Mapping[str, str], labels: str, fields: str
    ) -> AsyncIterator[bytes]:
        version = query.get("resourceVersion", "")
        if version in ("", "0"):
            chunk = self.cluster.chunk(target.resource, target.namespace)
            version = chunk.version
            for one in chunk.objects:
                if matches(one, labels, fields):
                    yield _line("ADDED", one)
        seconds = float(query.get("timeoutSeconds") or 1800)
        wants_bookmarks = query.get("allowWatchBookmarks") in {"1", "true"}
        bookmarks = asyncio.create_task(self._bookmark())
        try:
            async with asyncio.timeout(seconds):
                async for event in self.cluster.watch(target.resource, version, target.namespace):
                    if event.key is None:
                        if wants_bookmarks:
                            yield _line("BOOKMARK", _bookmarked(target.resource, event.version))
                    elif matches(event.object, labels, fields):
                        yield _line(event.type, event.object)
        except TimeoutError:
            return
        except KubernetesError as error:
            yield _line("ERROR", _problem(error))
        finally:
            bookmarks.cancel()

    async def _bookmark(self) -> None:
        while True:
            await asyncio.sleep(self.bookmarks)
            self.cluster.bookmark()

    # ------------------------------------------------------------------------------- inside

    async def _admitted(self, request: Request, asked: Asked) -> Object:
        asked.dry_run = request.query_params.get("dryRun") == "All"
        return await self.admission.admit(asked) or {}


def _body(raw: bytes, request: Request) -> Object:
    try:
        kind = request.headers.get("content-type", "application/json")
        body = yaml.safe_load(raw) if "yaml" in kind else json.loads(raw)
    except (ValueError, yaml.YAMLError) as error:
        raise refusal(400, "BadRequest", f"the body is no object: {error}") from None
    if not isinstance(body, dict):
        raise refusal(400, "BadRequest", "the body is no object")
    return body


def _line(kind: str, shown: Object) -> bytes:
    return json.dumps({"type": kind, "object": shown}).encode() + b"\n"


def _bookmarked(resource: Resource, version: int) -> Object:
    return {
        "kind": resource.kind,
        "apiVersion": resource.api_version,
        "metadata": {"resourceVersion": str(version)},
    }


def _problem(error: KubernetesError) -> Object:
    named = {"AlreadyExistsError": "AlreadyExists", "ConflictError": "Conflict"}
    reason = named.get(type(error).__name__) or _REASONS.get(error.status, "")
    reason = {410: "Expired", 422: "Invalid"}.get(error.status, reason)
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.problem,
        "reason": reason,
        "code": error.status,
    }


def _status(error: KubernetesError) -> Response:
    return JSONResponse(_problem(error), error.status)
