"""Whoever follows ``GET /v1/events`` of a server on a unix socket."""

from __future__ import annotations

import time
from collections.abc import Mapping
from http.client import HTTPResponse
from pathlib import Path
from typing import Self

import msgspec

from pinfold.documents.live.event import Event, Whole
from pinfold.documents.live.following import apply
from pinfold.formats.event_stream import EventStream, Message
from tests.scenes.web_world import UnixConnection


class Follower:
    """A connection whose events are read one by one; ``whole`` is what is known by them."""

    def __init__(
        self, path: Path, target: str = "/v1/events", headers: Mapping[str, str] | None = None
    ) -> None:
        self._connection = UnixConnection(path)
        self._connection.request("GET", target, headers=dict(headers or {}))
        self.answer: HTTPResponse = self._connection.getresponse()
        self.stream = EventStream()
        self.text = b""
        self.whole: Whole | None = None
        self._messages: list[Message] = []

    def next(self) -> Event:
        """The next event; raises EOFError at the end of the stream."""
        while not self._messages:
            piece = self.answer.read1(1 << 16)
            if not piece:
                raise EOFError
            self.text += piece
            self._messages.extend(self.stream.feed(piece))
        message = self._messages.pop(0)
        event = msgspec.json.decode(message.data, type=Event)
        assert (message.id, message.event) == (event.id, event.kind)
        if self.whole is not None:
            self.whole = apply(self.whole, event)
        elif event.whole:
            self.whole = event.whole
        return event

    def until(self, kind: str, within: float = 10.0) -> Event:
        """The next event of a kind."""
        deadline = time.monotonic() + within
        while (event := self.next()).kind != kind:
            assert time.monotonic() < deadline
        return event

    def close(self) -> None:
        """Go away."""
        self.answer.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
