"""The answer of ``GET /v1/events``: a stream that ends when its reader goes, or the agent."""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pinfold.formats.event_stream import MEDIA_TYPE
from pinfold.web.events.telling import Telling

HEADERS: Final = {"content-type": MEDIA_TYPE, "cache-control": "no-store"}


def events_answer(request: Request, telling: Telling) -> Response:
    """Answer with the events from now on, or from ``Last-Event-ID`` on.

    Raises:
        Refusal: as many listen as may.
    """
    telling.expect_room()
    if request.method == "HEAD":
        return Response(headers=HEADERS)
    known = request.headers.get("last-event-id") or request.query_params.get("lastEventId", "")
    return _Stream(telling, known)


class _Stream(StreamingResponse):
    """The events for one reader; what he does not read within the server's limit ends it."""

    def __init__(self, telling: Telling, known: str) -> None:
        self._telling = telling
        self._stream = telling.stream(known)
        super().__init__(self._stream, headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, until either side is gone."""
        with self._telling.listening(scope["state"]["stop"]):
            async with aclosing(self._stream):
                await super().__call__(scope, receive, send)
