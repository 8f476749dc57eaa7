"""Changes that somebody asked for, and that go on when he no longer waits."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Changes:
    """Runs each change as a task of its own.

    An admission that is given up between its record and its effects would leave what no restart
    has to expect; so the request may be cancelled (the agent stops), and the change is not.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Wait for a change; when the waiting is cancelled, the change goes on."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Whoever waited has it; asking for it keeps asyncio from calling it forgotten.
            task.exception()
