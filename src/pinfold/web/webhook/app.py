"""The webhook as an ASGI application: one review in, one answer out.

An answer that is no decision (a ``Status`` with its HTTP status) leaves the request to the
``failurePolicy`` of the webhook's configuration, which alone says whether it fails open or closed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pinfold.documents.admission_review import (
    API_VERSION,
    KIND,
    AdmissionRequest,
    AdmissionResponse,
    AnsweredReview,
    AskedReview,
)
from pinfold.ports.errors import PortError
from pinfold.web.answers import Document
from pinfold.web.bodies import Room, announced, read_body
from pinfold.web.replica.figures import Requests
from pinfold.web.webhook.connection import REASONS, failure

PATH: Final = "/validate"

DEADLINE: Final = 4.5
"""Seconds for an answer: less than the ``timeoutSeconds`` of 5, so that the reason is told."""

MARGIN: Final = 0.5
"""Seconds before the API server's own deadline."""

_TIMEOUT: Final = re.compile(r"(?:(\d{1,4}(?:\.\d{1,9})?)s|(\d{1,7})ms)", re.ASCII)
"""The ``timeout`` parameter that an API server sends: a Go duration of up to 30 s."""

Decide = Callable[[AdmissionRequest], Awaitable[AdmissionResponse]]
"""Takes what it needs of a request at once, so that nobody who waits holds an object; what it gives
raises :class:`PortError` where no decision can be made."""

_decoder: Final = msgspec.json.Decoder(AskedReview)


def make_webhook(
    decides: Mapping[str, Decide],
    requests: Requests,
    *,
    deadline: float = DEADLINE,
    room: Room | None = None,
) -> Starlette:
    """The application; ``decides`` has who answers at each path, ``requests`` counts."""
    room = room or Room()
    app = Starlette(
        routes=[
            Route(path, _Webhook(decide, requests, deadline, room).review, methods=["POST"])
            for path, decide in decides.items()
        ],
        exception_handlers={HTTPException: _refused, Exception: _failed},
    )
    app.router.redirect_slashes = False
    return app


class _Webhook:
    def __init__(self, decide: Decide, requests: Requests, deadline: float, room: Room) -> None:
        self._decide = decide
        self._requests = requests
        self._deadline = deadline
        self._room = room

    async def review(self, request: Request) -> Response:
        """Answer a review."""
        deadline = min(self._deadline, _patience(request))
        with self._requests.counted() as counted:
            try:
                async with asyncio.timeout(deadline) as limit:
                    async with self._room.taken(announced(request)):
                        asked = _understood(await read_body(request))
                        counted.path = asked.path
                        deciding = self._decide(asked)
                        del asked
                    answer = await deciding
            except TimeoutError:
                if not limit.expired():
                    raise
                raise HTTPException(504, f"there was no decision within {deadline:g} s") from None
            except PortError as error:
                raise HTTPException(503, str(error)) from None
            counted.decision = "allowed" if answer.allowed else "denied"
        return Document(AnsweredReview(response=answer))


def _understood(body: bytearray) -> AdmissionRequest:
    try:
        review = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"the body is no AdmissionReview: {error}") from None
    except RecursionError:
        raise HTTPException(400, "the body is nested too deeply") from None
    if (review.api_version, review.kind) != (API_VERSION, KIND):
        said = f"{review.kind[:80]!r} of {review.api_version[:80]!r}"
        raise HTTPException(400, f"{said}: must be {KIND} of {API_VERSION}")
    if review.request is None:
        raise HTTPException(400, "the AdmissionReview has no request")
    if not review.request.uid:
        raise HTTPException(400, "the request of the AdmissionReview has no uid")
    return review.request


def _patience(request: Request) -> float:
    """Seconds that the API server has left for us, by what it says; infinite without a word."""
    found = _TIMEOUT.fullmatch(request.query_params.get("timeout", ""))
    if found is None:
        return float("inf")
    seconds = float(found[1]) if found[1] else int(found[2]) / 1000
    return max(seconds - MARGIN, seconds / 2)


async def _refused(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return await _failed(_request, error)
    code = error.status_code if error.status_code in REASONS else 400
    body = failure(code, error.detail)
    return Response(body, code, error.headers, media_type="application/json")


async def _failed(_request: Request, _error: Exception) -> Response:
    body = failure(500, "this review could not be answered", "the log says why")
    return Response(body, 500, media_type="application/json")
