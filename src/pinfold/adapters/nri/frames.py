"""The two framings of an NRI socket, without any I/O: logical connections, and ttrpc messages.

The trunk (one unix stream) carries frames of a 4-byte connection id and a 4-byte length, both big
endian; inside a logical connection ttrpc messages have a header of 10 bytes: length (4), stream id
(4), type (1), flags (1).  Source: NRI's ``pkg/net/multiplex``, ttrpc's ``PROTOCOL.md``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Final

from msgspec import Struct

_FRAME: Final = struct.Struct(">II")
_HEADER: Final = struct.Struct(">IIBB")

MAX_MESSAGE: Final = 4 << 20
"""The longest body of a ttrpc message, in bytes."""
MAX_FRAME: Final = _HEADER.size + MAX_MESSAGE
"""The longest payload of a trunk's frame, in bytes."""
_FIRST_FRAME: Final = 4096
"""What a Go runtime's reader has room for when it waits for a header; a longer frame is lost."""


class FramingError(Exception):
    """The bytes are no NRI trunk: a frame longer than any can be."""


class MessageType(IntEnum):
    """ttrpc's message types that are known here."""

    REQUEST = 1
    RESPONSE = 2
    DATA = 3


class Message(Struct, frozen=True):
    """One ttrpc message; ``kind`` may be a type that is not known.

    Where ``oversized`` is not 0 that many bytes were announced, and thrown away unread.
    """

    stream: int
    kind: int
    body: bytes = b""
    oversized: int = 0


def encode_message(connection: int, message: Message) -> bytes:
    """The bytes of a message on the trunk.

    Raises:
        ValueError: the body is longer than ``MAX_MESSAGE``.
    """
    if len(message.body) > MAX_MESSAGE:
        raise ValueError(f"{len(message.body)} bytes; ttrpc messages have {MAX_MESSAGE} at most")
    data = _HEADER.pack(len(message.body), message.stream, message.kind, 0) + message.body
    parts = (data[:_FIRST_FRAME], data[_FIRST_FRAME:])
    return b"".join(_FRAME.pack(connection, len(part)) + part for part in parts if part)


class Splitter:
    """Splits a trunk into the pieces of its logical connections, as they come.

    No frame is ever held as a whole: what is kept is at most one header.
    """

    def __init__(self) -> None:
        self._header = bytearray()
        self._connection = 0
        self._left = 0

    @property
    def in_frame(self) -> bool:
        """Whether an end here cuts a frame off."""
        return bool(self._header) or self._left > 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The connection ids and their bytes, in order.

        Raises:
            FramingError: a frame is announced that is longer than ``MAX_FRAME``.
        """
        position = 0
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                position += len(piece)
                self._left -= len(piece)
                yield self._connection, piece
                continue
            missing = _FRAME.size - len(self._header)
            self._header += data[position : position + missing]
            position += missing
            if len(self._header) == _FRAME.size:
                self._connection, self._left = _FRAME.unpack(self._header)
                self._header.clear()
                if self._left > MAX_FRAME:
                    raise FramingError(
                        f"a frame of {self._left} bytes on connection {self._connection};"
                        f" the longest has {MAX_FRAME}"
                    )


class MessageReader:
    """Puts the ttrpc messages of one logical connection together.

    A message that is too long is thrown away as it comes, and handed out without its body.  What is
    held is at most one message of ``MAX_MESSAGE`` bytes.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._skipping: Message | None = None
        self._skip = 0

    def feed(self, data: bytes) -> Sequence[Message]:
        """The messages that these bytes complete."""
        messages: list[Message] = []
        self._buffer += data
        while True:
            if self._skipping is not None:
                thrown = min(self._skip, len(self._buffer))
                del self._buffer[:thrown]
                self._skip -= thrown
                if self._skip:
                    return messages
                messages.append(self._skipping)
                self._skipping = None
            if len(self._buffer) < _HEADER.size:
                return messages
            length, stream, kind, _flags = _HEADER.unpack_from(self._buffer)
            if length > MAX_MESSAGE:
                del self._buffer[: _HEADER.size]
                self._skipping, self._skip = Message(stream, kind, oversized=length), length
                continue
            end = _HEADER.size + length
            if len(self._buffer) < end:
                return messages
            messages.append(Message(stream, kind, bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
