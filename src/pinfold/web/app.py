"""The routes: each takes a request, asks the desk, and answers with a document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from pinfold.core.pod_api import PodError
from pinfold.node.manager import FOREGROUND
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.ports import PortError
from pinfold.node.records import PodPhase
from pinfold.web.desk import Desk
from pinfold.web.documents import (
    VERSION,
    drift_document,
    history_document,
    pod_document,
    pod_documents,
    status_document,
)
from pinfold.web.metrics import CONTENT_TYPE, metrics_text
from pinfold.web.openapi import openapi_document

MAX_BODY: Final = 1024 * 1024
MAX_HISTORY: Final = 10_000
MAX_GRACE: Final = 86_400.0

Handler = Callable[[Request], Awaitable[Response]]


class BadRequestError(ValueError):
    """A request that cannot be understood."""


def make_app(desk: Desk) -> Starlette:
    """The API of one agent."""
    api = _Api(desk)
    routes = [
        Route("/v1/status", api.status, methods=["GET"]),
        Route("/v1/machine", api.machine, methods=["GET"]),
        Route("/v1/pods", api.pods, methods=["GET"]),
        Route("/v1/pods", api.apply, methods=["POST"]),
        Route("/v1/pods/{namespace}/{name}", api.pod, methods=["GET"]),
        Route("/v1/pods/{namespace}/{name}", api.delete, methods=["DELETE"]),
        Route("/v1/run", api.run, methods=["POST"]),
        Route("/v1/run/{uid}/exit", api.report_exit, methods=["POST"]),
        Route("/v1/history", api.history, methods=["GET"]),
        Route("/v1/explain/{namespace}/{name}", api.explain, methods=["GET"]),
        Route("/v1/reconcile", api.reconcile, methods=["POST"]),
        Route("/healthz", api.healthz, methods=["GET"]),
        Route("/readyz", api.readyz, methods=["GET"]),
        Route("/metrics", api.metrics, methods=["GET"]),
        Route("/openapi.json", api.openapi, methods=["GET"]),
    ]
    errors: dict[Any, Any] = {
        BadRequestError: _answering(400, "BadRequest"),
        PodError: _answering(400, "Invalid"),
        UnknownPodError: _answering(404, "NotFound"),
        NameTakenError: _answering(409, "AlreadyExists"),
        PortError: _answering(503, "Unavailable"),
        HTTPException: _unrouted,
    }
    return Starlette(routes=routes, exception_handlers=errors)


def _answering(status: int, code: str) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(_request: Request, error: Exception) -> Response:
        message = error.problem if isinstance(error, PortError) else str(error)
        remedy = error.remedy if isinstance(error, PortError) else ""
        return _error(status, code, message, remedy)

    return answer


async def _unrouted(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    what = "there is no such path" if status == 404 else "this path does not take that method"
    return _error(
        status,
        "NotFound" if status == 404 else "MethodNotAllowed",
        f"{request.method} {request.url.path}: {what}",
        "see GET /openapi.json",
    )


def _error(status: int, code: str, message: str, remedy: str = "") -> Response:
    return JSONResponse({"error": {"code": code, "message": message, "remedy": remedy}}, status)


class _Api:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def status(self, _request: Request) -> Response:
        return JSONResponse(status_document(self._desk))

    async def machine(self, _request: Request) -> Response:
        return JSONResponse(dict(self._desk.machine()))

    async def pods(self, _request: Request) -> Response:
        return JSONResponse({"version": VERSION, "pods": list(pod_documents(self._desk.manager))})

    async def apply(self, request: Request) -> Response:
        manifest = await _body(request)
        record = await self._desk.apply(manifest, source="api")
        created = record.phase is not PodPhase.FAILED
        return JSONResponse(self._document(record.uid), 201 if created else 200)

    async def pod(self, request: Request) -> Response:
        return JSONResponse(self._document(self._desk.manager.pods.find(_name(request))))

    async def delete(self, request: Request) -> Response:
        text = request.query_params.get("grace")
        grace = None if text is None else _number("grace", text, MAX_GRACE)
        await self._desk.delete(_name(request), grace=grace)
        return Response(status_code=204)

    async def run(self, request: Request) -> Response:
        body = await _body(request)
        manifest, pid = body.get("manifest"), body.get("pid")
        if not isinstance(manifest, dict):
            raise BadRequestError("manifest: a Pod is required")
        if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
            raise BadRequestError("pid: the number of a process is required")
        record = await self._desk.apply(manifest, source=FOREGROUND, pid=pid)
        pod = self._desk.manager.pods.active.get(record.uid)
        if pod is not None:
            waits = [asyncio.create_task(event.wait()) for event in (pod.started, pod.gone)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
        return JSONResponse(self._document(record.uid))

    async def report_exit(self, request: Request) -> Response:
        body = await _body(request)
        code = body.get("code")
        if not isinstance(code, int) or isinstance(code, bool) or code not in range(256):
            raise BadRequestError("code: 0 to 255 is required")
        self._desk.manager.host.report_exit(request.path_params["uid"], code)
        return Response(status_code=204)

    async def history(self, request: Request) -> Response:
        limit = int(_number("limit", request.query_params.get("limit", "100"), MAX_HISTORY))
        pod = request.query_params.get("pod")
        if pod is not None and "/" not in pod and not pod.count("-") >= 4:
            pod = f"default/{pod}"
        entries = await self._desk.manager.store.history(pod=pod, limit=limit)
        return JSONResponse(
            {"version": VERSION, "history": [history_document(entry) for entry in entries]}
        )

    async def explain(self, request: Request) -> Response:
        name = _name(request)
        for entry in await self._desk.manager.store.history(pod=name, limit=MAX_HISTORY):
            if entry.kind in ("admitted", "rejected"):
                return JSONResponse(json.loads(entry.document))
        raise UnknownPodError(f"nothing was ever decided about pod {name}")

    async def reconcile(self, _request: Request) -> Response:
        drifts = await self._desk.reconcile()
        return JSONResponse(
            {"version": VERSION, "drifts": [drift_document(drift) for drift in drifts]}
        )

    async def healthz(self, _request: Request) -> Response:
        return PlainTextResponse("ok")

    async def readyz(self, _request: Request) -> Response:
        problems = self._desk.problems()
        return PlainTextResponse("\n".join(problems) or "ok", 503 if problems else 200)

    async def metrics(self, _request: Request) -> Response:
        return Response(metrics_text(self._desk.manager), media_type=CONTENT_TYPE)

    async def openapi(self, _request: Request) -> Response:
        return JSONResponse(openapi_document())

    def _document(self, uid: str) -> dict[str, Any]:
        manager = self._desk.manager
        pod = manager.pods.active.get(uid)
        record = manager.pods.ended.get(uid) if pod is None else pod.record
        if record is None:
            raise UnknownPodError(f"pod {uid} is gone")
        return pod_document(manager, record)


def _name(request: Request) -> str:
    return f"{request.path_params['namespace']}/{request.path_params['name']}"


def _number(name: str, text: str, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        raise BadRequestError(f"{name}: {text[:40]!r} is no number") from None
    if not 0 <= number <= most:
        raise BadRequestError(f"{name}: must be 0 to {most:g}, not {text[:40]}")
    return number


async def _body(request: Request) -> dict[str, Any]:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > MAX_BODY:
            raise BadRequestError(f"the body is larger than {MAX_BODY // 1024} KiB")
        chunks.append(chunk)
    try:
        content = json.loads(b"".join(chunks))
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is no JSON: {error}"[:300]) from None
    if not isinstance(content, dict):
        raise BadRequestError("the body must be a JSON object")
    return content
