"""The server: paths, verbs and watches over the objects of a :class:`FakeCluster`."""

from __future__ import annotations

import asyncio
import json
import re
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
from tests.cluster.api_server.selectors import check_fields, matches
from tests.cluster.api_server.upkeep import Upkeep

_OTHER_NAMESPACE = (
    "the namespace of the provided object does not match the namespace sent on the request"
)
_ABOUT = re.compile(
    r'(?:Operation cannot be fulfilled on )?(?P<of>[\w./-]+) "(?P<name>[^"]*)"'
    r"(?=:| not found| already exists)"
)
_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    415: "UnsupportedMediaType",
}


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
        request.state.warnings = []
        try:
            answer = await self._tried(request)
        except KubernetesError as error:
            answer = _status(error)
        for warning in request.state.warnings:
            answer.headers.append("Warning", f"299 - {json.dumps(warning)}")
        return answer

    async def _tried(self, request: Request) -> Response:
        trouble = self.stands_in(request.method, request.url.path)
        if isinstance(trouble, int):
            raise refusal(trouble, "", "as the test wants it")
        if trouble is not None:
            await asyncio.sleep(trouble)
        return await self._routed(request)

    async def _routed(self, request: Request) -> Response:
        path = request.url.path.strip("/")
        if path in {"healthz", "livez", "readyz"}:
            return Response("ok", media_type="text/plain")
        user = self._user(request)
        if path.startswith("double/"):
            return self._told(path.removeprefix("double/"))
        if (document := self._discovered(path)) is not None:
            return JSONResponse(document)
        if not self._is_known(path):
            return Response("404 page not found\n", 404, media_type="text/plain")
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

    def _is_known(self, path: str) -> bool:
        parts = path.split("/")
        if parts[0] != "apis":
            return parts[0] == "api"
        versions = {(one.resource.group, one.resource.version) for one in self.kinds.all()}
        return tuple(parts[1:3]) in versions

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
        check_fields(target.served, fields)
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
                "items": [self._item(target, one) for one in found_all],
            }
        )

    def _item(self, target: Target, listed: Object) -> Object:
        """Those of a list of built-in kinds do not say what they are."""
        if target.served.schema:
            return listed
        return {key: one for key, one in listed.items() if key not in {"kind", "apiVersion"}}

    async def _post(self, request: Request, target: Target, user: str) -> Response:
        body = _body(await request.body(), request)
        if target.subresource == "binding":
            return await self._bind(request, target, user, body)
        if target.namespace:
            about = body.setdefault("metadata", {})
            if about.setdefault("namespace", target.namespace) != target.namespace:
                raise refusal(400, "BadRequest", _OTHER_NAMESPACE)
        return JSONResponse(await self._created(request, target, user, body), 201)

    async def _bind(self, request: Request, target: Target, user: str, body: Object) -> Response:
        metadata = body.get("metadata", {})
        binding = body | {"metadata": {**metadata, "namespace": target.namespace}}
        if metadata.get("name") != target.name:
            problem = "name in URL does not match name in Binding object"
            raise refusal(400, "BadRequest", problem)
        shown = {"kind": "Binding", "apiVersion": "v1", **binding}
        shown["metadata"] = {**binding["metadata"], "creationTimestamp": None}
        asked = self._asked(request, target, user, "CREATE", shown)
        await self.admission.mutate(asked)
        await self.admission.validate(asked)
        return JSONResponse(self.cluster.bind(target.resource, binding), 201)

    async def _created(self, request: Request, target: Target, user: str, body: Object) -> Object:
        """Mutated, given what the server gives, validated, and stored."""
        resource = target.resource
        if target.namespace:
            self.upkeep.check_namespace(target.namespace)
        metadata = {**body.get("metadata", {}), "creationTimestamp": None}
        about = {"kind": resource.kind, "apiVersion": resource.api_version}
        body = {**about, **body, "metadata": metadata}
        asked = self._asked(request, target, user, "CREATE", body)
        made = self.cluster.prepared(resource, await self.admission.mutate(asked))
        asked.object, asked.name = made, made["metadata"]["name"]
        self.upkeep.check(target.served, made)
        await self.admission.validate(asked)
        if asked.dry_run:
            return made
        if resource == NAMESPACES:
            made.setdefault("spec", {})["finalizers"] = ["kubernetes"]
            made["status"] = {"phase": "Active"}
            made["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = asked.name
        elif target.served.has_status and resource.kind != "Pod":
            made.pop("status", None)
        elif resource.kind == "Pod":
            made["status"] = {"phase": "Pending"}
        stored = self.cluster.create(resource, made, uid=made["metadata"]["uid"])
        if resource == CRDS:
            self.upkeep.establish(stored)
        return stored

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
        body = yaml.safe_load(raw)
        if target.namespace:
            body["metadata"]["namespace"] = target.namespace
        return JSONResponse(await self._created(request, target, user, body), 201)

    async def _replace(
        self, request: Request, target: Target, user: str, after: Object
    ) -> Response:
        resource = target.resource
        if (name := after["metadata"].get("name")) != target.name:
            problem = f"the name of the object ({name}) does not match the name on the URL"
            raise refusal(400, "BadRequest", f"{problem} ({target.name})")
        before = self.cluster.read(resource, target.name, target.namespace)
        if resource.is_namespaced:
            after["metadata"]["namespace"] = target.namespace
        asked = self._asked(request, target, user, "UPDATE", after)
        asked.old = before
        admitted = await self.admission.mutate(asked)
        self.cluster.check_version(resource, admitted)
        self.upkeep.check(target.served, admitted)
        await self.admission.validate(asked)
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
        asked = self._asked(request, target, user, "DELETE", None)
        asked.old = before
        await self.admission.mutate(asked)
        await self.admission.validate(asked)
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
                    seen = event.among(lambda one: matches(one, labels, fields))
                    if event.key is None:
                        if wants_bookmarks:
                            yield _line("BOOKMARK", _bookmarked(target.resource, event.version))
                    elif seen is not None:
                        yield _line(seen.type, seen.object)
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

    def _asked(
        self, request: Request, target: Target, user: str, operation: str, wanted: Object | None
    ) -> Asked:
        options: dict[str, Any] = {}
        if dry_run := request.query_params.getlist("dryRun"):
            if dry_run != ["All"]:
                raise refusal(422, "Invalid", f"dryRun: Unsupported value: {dry_run}")
            options["dryRun"] = dry_run
        if manager := request.query_params.get("fieldManager"):
            options["fieldManager"] = manager
        return Asked(
            operation,
            target.resource,
            target.subresource,
            target.namespace,
            target.name or (wanted or {}).get("metadata", {}).get("name", ""),
            wanted,
            None,
            user,
            dry_run=bool(dry_run),
            options=options,
            warnings=request.state.warnings,
        )


def _body(raw: bytes, request: Request) -> Object:
    kind = request.headers.get("content-type") or "application/json"
    if "json" not in kind and "yaml" not in kind:
        known = "application/json, application/yaml"
        problem = f"the body of the request was in an unknown format - accepted are {known}"
        raise refusal(415, "UnsupportedMediaType", problem)
    try:
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
    details = _details(error)
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": error.problem,
        "reason": reason,
        **({} if details is None else {"details": details}),
        "code": error.status,
    }


def _details(error: KubernetesError) -> dict[str, str] | None:
    """Which object it is about; None where a server tells nothing of that."""
    if found := _ABOUT.match(error.problem):
        kind, _, group = found["of"].partition(".")
        return {"name": found["name"], **({"group": group} if group else {}), "kind": kind}
    return {} if error.status == 404 else None


def _status(error: KubernetesError) -> Response:
    return JSONResponse(_problem(error), error.status)
