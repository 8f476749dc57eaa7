"""The application: routes made of the table, behind the door."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pinfold.page.serving.answers import refused
from pinfold.page.serving.door import Door
from pinfold.page.serving.handlers import PageHandlers
from pinfold.page.serving.operations import OPERATIONS, PageOperation
from pinfold.page.serving.questions import RefusedError
from pinfold.page.serving.token_file import TokenFile
from pinfold.ports.errors import PortError
from pinfold.web.answers import CODES, Refusal
from pinfold.web.requests import only_parameters, while_there

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def make_page(handlers: PageHandlers, token: TokenFile, host_names: tuple[str, ...]) -> Door:
    """All of it, as an ASGI application."""
    app = Starlette(
        routes=[
            # As the agent has it: a pod of an older one may have a slash in its name.
            Route(
                one.path.replace("/{namespace}/{name}", "/{namespace}/{name:path}"),
                _checked(one, getattr(handlers, one.handler)),
                methods=["GET"],
            )
            for one in OPERATIONS
        ],
        exception_handlers=dict.fromkeys((HTTPException, PortError, Refusal, Exception), _answer),
    )
    app.router.redirect_slashes = False
    return Door(app, token, host_names)


def _checked(operation: PageOperation, handler: Handler) -> Handler:
    async def checked(request: Request) -> Response:
        if operation.path != "/":  # who comes with a token that is used already sees the page
            only_parameters(request, operation.query)
        return await while_there(request, handler(request))

    return checked


async def _answer(request: Request, error: Exception) -> Response:
    return refused(_meant(request, error))


def _meant(request: Request, error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RefusedError) and error.status in CODES:
        return Refusal(error.status, error.problem, error.remedy)
    if isinstance(error, PortError):
        return Refusal(503, error.problem, error.remedy)
    if isinstance(error, HTTPException) and error.status_code in CODES:
        return Refusal(error.status_code, f"there is nothing at {request.scope['path']}")
    return Refusal(
        500, "the page failed to answer this request", "the output of pinfold serve says why"
    )
