"""Server-sent events (``text/event-stream``, the HTML standard, 9.2): written, and read.

Bytes in, messages out: whoever reads brings his own socket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

MEDIA_TYPE: Final = "text/event-stream"

ALIVE: Final = 5.0
"""Seconds without an event, after which an agent sends a comment."""

SILENCE: Final = 3 * ALIVE
"""Seconds after which an agent that says nothing on its stream does not answer any more."""

LONGEST_LINE: Final = 64 << 20
"""Bytes of a line, and of all the data of a message, that a reader keeps at most."""

_MARK: Final = b"\xef\xbb\xbf"


class StreamError(ValueError):
    """This is no stream of events, or one of messages that are too long."""


class Message(Struct, frozen=True):
    """One message.

    Attributes:
        id: the newest id of the stream, from which ``Last-Event-ID`` goes on; empty: there is none.
        event: its kind; empty: none was given.
        data: its lines of data, with newlines between them.
    """

    id: str
    event: str
    data: bytes


def written(message: Message) -> bytes:
    """A message as the stream has it; neither ``id`` nor ``event`` has line breaks."""
    lines = [b"id: " + message.id.encode()] if message.id else []
    if message.event:
        lines.append(b"event: " + message.event.encode())
    lines += [b"data: " + line for line in message.data.split(b"\n")]
    return b"\n".join(lines) + b"\n\n"


def pause(seconds: float) -> bytes:
    """What tells a reader how long to wait before it connects again."""
    return b"retry: %d\n\n" % round(seconds * 1000)


def remark(text: str) -> bytes:
    """A comment, which keeps a connection alive and which readers pass over."""
    return b": " + text.encode() + b"\n\n"


class EventStream:
    """Takes a stream apart.

    Attributes:
        pause: seconds that the other side asks its readers to wait before they connect again; None
            until it says so.
        last_id: of the newest message; empty before the first.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self.pause: float | None = None
        self.last_id = ""
        self._longest = longest
        self._rest = bytearray()
        self._looked = 0
        self._begins = True
        self._skips_newline = False
        self._event, self._data = "", list[bytes]()
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Message]:
        """The messages that are whole with this piece.

        Raises:
            StreamError: a line, or a message, is longer than anybody keeps.
        """
        self._rest += piece
        for line in self._lines():
            if (message := self._take(line)) is not None:
                yield message

    def _lines(self) -> Iterator[bytes]:
        """The lines that are whole; they end in LF, CR LF or CR."""
        rest = self._rest
        if self._begins and len(rest) >= len(_MARK):
            self._begins = False
            if rest.startswith(_MARK):
                del rest[: len(_MARK)]
        start = 0
        if self._skips_newline and rest:
            self._skips_newline = False
            start = rest.startswith(b"\n")
        while not self._begins or not _MARK.startswith(rest[: len(_MARK)]):
            end = _line_end(rest, max(start, self._looked))
            if end < 0:
                break
            yield bytes(rest[start:end])
            self._looked = 0
            start = end + 1
            if rest[end] == 0x0D:
                if start == len(rest):
                    self._skips_newline = True
                elif rest[start] == 0x0A:
                    start += 1
        del rest[:start]
        self._looked = len(rest)
        self._check(len(rest))

    def _check(self, more: int) -> None:
        if self._size + more > self._longest:
            raise StreamError(f"a message is longer than {self._longest} bytes")

    def _take(self, line: bytes) -> Message | None:
        if not line:
            data, event = self._data, self._event
            self._event, self._data, self._size = "", [], 0
            return Message(self.last_id, event, b"\n".join(data)) if data else None
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._check(len(value))
            self._size += len(value) + 1
            self._data.append(value)
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                self.last_id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self.pause = int(value) / 1000
        return None


def _line_end(text: bytearray, start: int) -> int:
    """Where the next line ends; -1: not yet."""
    newline, carriage = text.find(b"\n", start), text.find(b"\r", start)
    return max(newline, carriage) if min(newline, carriage) < 0 else min(newline, carriage)
