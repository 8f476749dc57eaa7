"""Containers that have exited, and those who wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from pinfold.ports.runtime import ContainerState, ContainerStatus

_REMEMBERED: Final = 1024


class Exits:
    """Hands each exit to the one who waits for it, even when he comes later."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[ContainerStatus]]] = {}
        self._seen: dict[str, ContainerStatus] = {}

    async def follow(self, exits: AsyncIterator[ContainerStatus]) -> None:
        """Take exits from a runtime, for ever."""
        async for status in exits:
            self.tell(status)

    def tell(self, status: ContainerStatus) -> None:
        """One container has exited."""
        waiting = self._waiting.pop(status.id, [])
        for future in waiting:
            if not future.done():
                future.set_result(status)
        self._seen[status.id] = status
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]

    async def wait(self, status: ContainerStatus) -> ContainerStatus:
        """Return the status with which a container exited."""
        if status.state is ContainerState.EXITED:
            return status
        if status.id in self._seen:
            return self._seen[status.id]
        future: asyncio.Future[ContainerStatus] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(status.id, []).append(future)
        try:
            return await future
        finally:
            # Who is deleted meanwhile waits no more, and its exit may never be told.
            self._leave(status.id, future)

    def _leave(self, container_id: str, future: asyncio.Future[ContainerStatus]) -> None:
        waiting = self._waiting.get(container_id, [])
        if future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._waiting[container_id]
