"""The answer that is a stream of events: it ends when its reader goes, or whoever tells."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractContextManager, aclosing
from types import MappingProxyType
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pinfold.formats.event_stream import MEDIA_TYPE

_HEADERS: Final = {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store"}
_NO_MORE: Final = MappingProxyType[str, str]({})


def known_id(request: Request) -> str:
    """The id of the newest event that the reader has; "": he has none."""
    return request.headers.get("last-event-id") or request.query_params.get("lastEventId", "")


def events_head(headers: Mapping[str, str] = _NO_MORE) -> Response:
    """What a stream begins with, and nothing of it."""
    return Response(headers={**headers, **_HEADERS})


class EventsAnswer(StreamingResponse):
    """The events for one reader; what he does not read within the server's limit ends it.

    Args:
        messages: as bytes.
        listening: entered while they are sent; a Refusal that it raises is answered instead.
        headers: beside those of every stream.
    """

    def __init__(
        self,
        messages: AsyncGenerator[bytes, None],
        listening: AbstractContextManager[None],
        headers: Mapping[str, str] = _NO_MORE,
    ) -> None:
        super().__init__(messages, headers={**headers, **_HEADERS})
        self._messages = messages
        self._listening = listening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send, until either side is gone."""
        with self._listening:
            async with aclosing(self._messages):
                await super().__call__(scope, receive, send)
