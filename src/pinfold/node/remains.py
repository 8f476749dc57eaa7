"""What pods that are over leave behind: it goes before another pod of their uid writes there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from pinfold.ports.errors import PortError
from pinfold.ports.logs import PodLogs
from pinfold.ports.records import PodRecord


class Remains:
    """Follows those who clear away, and removes the logs of forgotten pods beside everything else.

    There may be megabytes of logs.
    """

    def __init__(
        self, spawn: Callable[..., asyncio.Task[None]], report: Callable[[str | None, str], None]
    ) -> None:
        self._spawn = spawn
        self._report = report
        self._clearing: dict[str, set[asyncio.Task[None]]] = {}

    def follow(self, uid: str, task: asyncio.Task[None]) -> None:
        """Take note of one who ends a pod of this uid, and clears away what it leaves."""
        self._clearing.setdefault(uid, set()).add(task)
        task.add_done_callback(lambda done: self._done(uid, done))

    def remove_logs(self, logs: PodLogs | None, pod: PodRecord) -> None:
        """Begin to remove what a pod has written; whatever is in the way is only reported."""
        if logs is not None:
            before = tuple(self._clearing.get(pod.uid, ()))
            task = self._spawn(self._remove(logs, pod, before), name=f"the logs of {pod.full_name}")
            self.follow(pod.uid, task)

    async def gone(self, uid: str) -> None:
        """Return when nobody clears away anything of a pod of this uid."""
        while tasks := self._clearing.get(uid):
            await asyncio.wait(tasks)

    async def _remove(
        self, logs: PodLogs, pod: PodRecord, before: Collection[asyncio.Task[None]]
    ) -> None:
        if before:
            await asyncio.wait(before)
        try:
            await logs.remove(pod)
        except PortError as error:
            # The next start looks again.
            self._report(pod.full_name, str(error))

    def _done(self, uid: str, task: asyncio.Task[None]) -> None:
        self._clearing[uid].discard(task)
        if not self._clearing[uid]:
            del self._clearing[uid]
