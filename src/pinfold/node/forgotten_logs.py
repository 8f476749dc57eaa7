"""What forgotten pods have written: nobody can ask for it any more, and it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pinfold.ports.errors import PortError
from pinfold.ports.logs import PodLogs
from pinfold.ports.records import PodRecord


class ForgottenLogs:
    """Removes the logs of pods beside everything else: there may be megabytes of them."""

    def __init__(
        self, spawn: Callable[..., asyncio.Task[None]], report: Callable[[str | None, str], None]
    ) -> None:
        self._spawn = spawn
        self._report = report
        self._going: dict[str, asyncio.Task[None]] = {}

    def remove(self, logs: PodLogs | None, pod: PodRecord) -> None:
        """Begin to remove what a pod has written; whatever is in the way is only reported."""
        if logs is not None:
            before = self._going.get(pod.uid)
            task = self._spawn(self._remove(logs, pod, before), name=f"the logs of {pod.full_name}")
            self._going[pod.uid] = task
            task.add_done_callback(lambda done: self._gone(pod.uid, done))

    async def removed(self, uid: str) -> None:
        """Return when no removal goes on of what a pod of this uid has written.

        The next pod of that uid writes to the same place.
        """
        while (task := self._going.get(uid)) is not None:
            await asyncio.wait({task})

    async def _remove(
        self, logs: PodLogs, pod: PodRecord, before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            await logs.remove(pod)
        except PortError as error:
            # The next start looks again.
            self._report(pod.full_name, str(error))

    def _gone(self, uid: str, task: asyncio.Task[None]) -> None:
        if self._going.get(uid) is task:
            del self._going[uid]
