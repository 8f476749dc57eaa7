"""What goes on beside, until it is over or the agent stops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

_AGAIN: Final = 1.0
"""Seconds after which one that goes on although it was cancelled is cancelled again."""


class Tasks:
    """Those that are begun; a failure of one that nobody waits for is reported."""

    def __init__(self, report: Callable[[str | None, str], None]) -> None:
        self._report = report
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Begin what somebody waits for."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Let something go on beside."""
        task = self.begin(work, name=name)
        task.add_done_callback(self.report_failure)
        return task

    def report_failure(self, task: asyncio.Task[None]) -> None:
        """Tell of the failure of one that is over, if it has failed."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report(None, f"{task.get_name()}: {error!r}")

    async def end(self, patience: float = 0.0) -> None:
        """Cancel all, once they have had so many seconds; returns when they are over."""
        await asyncio.sleep(0)  # what is still to be begun
        if patience and self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=_AGAIN)
