"""Notices that containers have exited: by the runtime's events, and by looking."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from pinfold.adapters.cri import cri_pb2 as pb
from pinfold.adapters.cri.client import CriClient, CriError
from pinfold.adapters.cri.table import Table
from pinfold.retry.backoff import Backoff

POLL: Final = 1.0
"""Seconds from look to look, as the kubelet's; a look takes 2 ms with 100 containers.

Events make it quick, looking makes it sure: containerd 1.7 gives each event to one listener only
(measured), so another listener takes some away.
"""
_RESUBSCRIBE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_NOT_OFFERED_PAUSE: Final = 60.0
_TOLD: Final = frozenset(
    {
        pb.ContainerEventType.CONTAINER_STOPPED_EVENT,
        pb.ContainerEventType.CONTAINER_DELETED_EVENT,
    }
)


class Watch:
    """Keeps a table fresh, for ever; see :meth:`run`."""

    def __init__(self, client: CriClient, table: Table) -> None:
        self._client = client
        self._table = table
        self._nudge = asyncio.Event()

    async def run(self) -> None:
        """Look whenever something happened, and from time to time."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="container events")
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL):
                        await self._nudge.wait()
                self._nudge.clear()
                # While the runtime is away there is nothing to see; calls tell the callers so.
                with suppress(CriError):
                    await self._table.refresh()

    async def _follow(self) -> None:
        backoff = Backoff(_RESUBSCRIBE, _LONGEST_PAUSE)
        while True:
            offered = True
            try:
                async for event in self._client.events():
                    backoff.well()
                    if event.container_event_type in _TOLD:
                        self._nudge.set()
            except CriError as error:
                offered = error.code != "UNIMPLEMENTED"
            # Whatever happened while nobody listened.
            self._nudge.set()
            await asyncio.sleep(backoff.failed() if offered else _NOT_OFFERED_PAUSE)
