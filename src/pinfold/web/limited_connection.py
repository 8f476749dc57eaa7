"""One connection of a server: how much there may be at a time, and how long each may take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import h11
from msgspec import Struct
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from pinfold.linux.descriptors import is_of_the_last
from pinfold.web.answers import encoded, error_document

MOST_PASSED_OVER: Final = 8 << 20
"""Bytes of a refused body that are read so that its sender may read the answer."""


class Limits(Struct, frozen=True):
    """What one client may take; times are seconds.

    Attributes:
        request: from a request's first byte (or the connection) to its last.
        answer: for which a client may leave an answer unread.
        idle: between two requests.
        connections: at the same time.  One more takes the place of the one that has waited longest
            for its client, so that those who connect and say nothing keep nobody out.
    """

    request: float = 10.0
    answer: float = 30.0
    idle: int = 30
    connections: int = 400


UNHURRIED: Final = "pinfold.unhurried"
"""What an application puts into the scope of a request whose answer may be left unread."""


class LimitedConnection(H11Protocol):
    """uvicorn's protocol with deadlines, and with room for so many.

    A service has a class of its own of it, which says how it refuses.

    Attributes:
        stopping: message and remedy for who is still waited for when the server ends.
    """

    stopping: ClassVar[tuple[str, str]] = ("the server is stopping", "ask again soon")

    def __init__(self, *, limits: Limits, **uvicorn: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**uvicorn)
        self._limits = limits
        self._admitted = False
        self._waits_since = 0.0
        self._passed_over = 0
        self._request_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """One more; where that is too many, who has waited longest goes, or this one."""
        is_full = len(self.connections) >= self._limits.connections or is_of_the_last(
            transport.get_extra_info("socket").fileno()
        )
        waiting = [one for one in self._others() if one.waits] if is_full else []
        self._admitted = True
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        if waiting:
            # Nothing was begun for it.
            min(waiting, key=lambda one: one._waits_since).transport.abort()  # noqa: SLF001 - one of us
        elif is_full:
            self._refuse(503, "as many as can be served are asking already", "ask again soon")
            return
        self._start_request_timer()

    def _others(self) -> Iterator[LimitedConnection]:
        for one in self.connections:
            if isinstance(one, LimitedConnection) and not one.transport.is_closing():
                yield one

    @property
    def waits(self) -> bool:
        """Whether it is the client's turn to say something, and nothing is under way for it."""
        return self._request_timer is not None or self.cycle is None or self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_request_timer()
        self.resume_writing()
        if self._admitted:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request; of one that was refused, not all is read."""
        if self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE:
            self._passed_over += len(data)
            if self._passed_over > MOST_PASSED_OVER:
                self.transport.close()
                return
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_request_timer()
        elif self._request_timer is None:
            self._start_request_timer()

    def on_response_complete(self) -> None:
        """An answer is written."""
        super().on_response_complete()
        self._waits_since = self.loop.time()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        unhurried = self.cycle is not None and self.cycle.scope.get(UNHURRIED)
        if self._answer_timer is None and not unhurried:
            self._answer_timer = self.loop.call_later(self._limits.answer, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads on."""
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None
        if self._admitted:
            super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._refuse(400, msg, "send HTTP/1.1")

    def _start_request_timer(self) -> None:
        self._request_timer = self.loop.call_later(self._limits.request, self._too_slow)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _too_slow(self) -> None:
        self._request_timer = None
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        self._refuse(
            408,
            f"the request was not complete after {self._limits.request:g} s",
            "send it at once",
        )

    @classmethod
    def refusal(cls, status: int, message: str, remedy: str) -> bytes:
        """The JSON of an answer that the application does not give."""
        return encoded(error_document(status, message, remedy))

    def _refuse(self, status: int, message: str, remedy: str) -> None:
        """Answer without the application, and hang up."""
        body = self.refusal(status, message, remedy)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        answer = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        with contextlib.suppress(h11.LocalProtocolError):
            for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
