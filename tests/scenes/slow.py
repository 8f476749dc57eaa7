"""Work of an adapter that takes its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Slow:
    """What an adapter does takes as long as a test says; nobody can cancel it."""

    def __init__(self, work: Callable[..., Awaitable[object]]) -> None:
        self._work = work
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, *args: object) -> object:
        self.begun.set()
        await self.go.wait()
        error, self.error = self.error, None
        if error is not None:
            raise error
        return await self._work(*args)
