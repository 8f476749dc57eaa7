"""The application: routes made of the table of operations, errors as documents."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pinfold.core.pod.api import PodError
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.ports.errors import PortError
from pinfold.ports.held_process import ForeignProcessError
from pinfold.web.answers import Refusal, error_answer
from pinfold.web.backend import Backend
from pinfold.web.changes import Patience
from pinfold.web.handlers import Handlers
from pinfold.web.operations import OPERATIONS, Operation
from pinfold.web.requests import only_parameters

Handler = Callable[[Request], Awaitable[Response]]

_FORESEEN = (
    ForeignProcessError,
    HTTPException,
    NameTakenError,
    PodError,
    PortError,
    Refusal,
    UnknownPodError,
)


def make_app(backend: Backend, patience: Patience | None = None) -> Starlette:
    """The local API of an agent, as an ASGI application; ``state.handlers`` answer."""
    patience = patience or Patience()
    handlers = Handlers(backend, patience)
    by_path: dict[str, dict[str, Handler]] = {}
    for operation in OPERATIONS:
        handler: Handler = getattr(handlers, operation.handler)
        methods = by_path.setdefault(operation.path, {})
        methods[operation.method] = _checked(operation, handler, patience)
    app = Starlette(
        routes=[
            # A pod that an older agent admitted may have a slash in its name.
            Route(path.replace("{name}", "{name:path}"), _by_method(methods), methods=list(methods))
            for path, methods in by_path.items()
        ],
        exception_handlers=dict.fromkeys((*_FORESEEN, Exception), _answer_error),
    )
    # A path with a slash too many is another path; nobody is sent elsewhere.
    app.router.redirect_slashes = False
    app.state.handlers = handlers
    return app


def _checked(operation: Operation, handler: Handler, patience: Patience) -> Handler:
    reads = operation.method == "GET"

    async def checked(request: Request) -> Response:
        only_parameters(request, operation.query)
        try:
            # What changes something has a patience of its own.
            async with asyncio.timeout(patience.reading if reads else None) as limit:
                return await handler(request)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Refusal(
                503, f"there was no answer within {patience.reading:g} s", "see the agent's log"
            ) from None

    return checked


def _by_method(handlers: dict[str, Handler]) -> Handler:
    """One route for each path, so that a wrong method is told of all the right ones."""

    async def dispatch(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        return await handlers[method](request)

    return dispatch


async def _answer_error(request: Request, error: Exception) -> Response:
    answer = error_answer(_told(request, error))
    if isinstance(error, HTTPException) and error.headers:
        answer.headers.update(error.headers)
    return answer


def _told(request: Request, error: Exception) -> Exception:
    """What Starlette's own refusals mean here."""
    path = request.scope["path"]  # as it was meant: without percent signs
    if not isinstance(error, HTTPException):
        return error
    if error.status_code == 404:
        return Refusal(
            404, f"there is nothing at {path}", "pinfold schema openapi prints what there is"
        )
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return Refusal(405, f"{request.method} is not a method of {path}", f"it has {allowed}")
    return error
