"""One connection to the API: who may ask, and how long he may take."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from pinfold.web.answers import error_document

_CREDENTIALS: Final = struct.Struct("iII")
"""``struct ucred`` of ``unix(7)``: pid, uid, gid of the process that connected."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may take; times are seconds.

    Attributes:
        request: from a request's first byte (or the connection) to its last.
        answer: for which a client may leave an answer unread.
        idle: between two requests.
        connections: at the same time; the agent needs file descriptors for the kernel's files.
    """

    request: float = 10.0
    answer: float = 30.0
    idle: int = 30
    connections: int = 400


class Connection(H11Protocol):
    """uvicorn's protocol with a check at the door, and with deadlines."""

    def __init__(self, *, limits: Limits, **uvicorn: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(**uvicorn)
        self._limits = limits
        self._admitted = False
        self._request_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Only root and the agent's own user may ask; others are not answered."""
        if _peer_uid(transport) not in (0, os.geteuid()):
            transport.abort()
            return
        if len(self.connections) >= self._limits.connections:
            transport.abort()
            return
        self._admitted = True
        super().connection_made(transport)
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_request_timer()
        self.resume_writing()
        if self._admitted:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_request_timer()
        elif self._request_timer is None:
            self._start_request_timer()

    def pause_writing(self) -> None:
        """The client does not read."""
        super().pause_writing()
        if self._answer_timer is None:
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

    def _refuse(self, status: int, message: str, remedy: str) -> None:
        """Answer without the application, and hang up."""
        body = msgspec.json.encode(error_document(status, message, remedy))
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


def _peer_uid(transport: asyncio.Transport) -> int:
    sock: socket.socket = transport.get_extra_info("socket")
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(credentials)
    return int(uid)
