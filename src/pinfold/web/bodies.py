"""The body of a request, and how much memory all bodies together may have."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request

MOST_OBJECT: Final = 3 << 20
"""Bytes of an object that an API server takes (``MaxRequestBodyBytes``)."""

MOST_BODY: Final = 2 * MOST_OBJECT + (64 << 10)
"""Bytes of a review: an update has the object twice, before and after."""

SMALL: Final = 64 << 10
"""Bytes that each connection may have anyway (uvicorn reads so much before it is asked to)."""

ROOM: Final = 4 * MOST_BODY


class Room:
    """Bytes for the large bodies under way; who finds none left waits, first come first.

    Nothing is read for who waits, so that his sender waits, too.  Small ones never wait: how many
    there can be is limited already, and those who send a large one slowly hold up nobody else.
    """

    def __init__(self, size: int = ROOM) -> None:
        self._free = size
        self._next = asyncio.Lock()
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Have this much for the block."""
        if size <= SMALL:
            yield
            return
        async with self._next:
            while self._free < size:
                self._freed.clear()
                await self._freed.wait()
            self._free -= size
        try:
            yield
        finally:
            self._free += size
            self._freed.set()


def announced(request: Request, most: int = MOST_BODY) -> int:
    """How large the body may be: as it says, the most where it does not.

    Raises:
        HTTPException: that is too much (413).
    """
    text = request.headers.get("content-length", "")
    size = int(text) if text.isdecimal() and len(text) < 20 else most
    if size > most:
        raise too_large(most)
    return size


async def read_body(request: Request, most: int = MOST_BODY) -> bytearray:
    """All of it.

    Raises:
        HTTPException: it is larger than that (413).
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise too_large(most)
    return body


def too_large(most: int) -> HTTPException:
    """The refusal."""
    return HTTPException(413, f"the body has more than {most} bytes")
