"""The containers of a node as they were seen last."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from pinfold.ports.errors import ContainerKey
from pinfold.ports.runtime import ContainerStatus


class SeenContainers:
    """What whoever has the containers keeps of them, and others look at.

    Attributes:
        statuses: the newest container of each key.
        busy: those that are being started or ended.
        changes: how often ``statuses`` has become another.
    """

    def __init__(self) -> None:
        self.statuses: dict[ContainerKey, ContainerStatus] = {}
        self.busy: set[ContainerKey] = set()
        self.changes = 0
        self._silent: dict[ContainerKey, tuple[str, float]] = {}
        self._idle = asyncio.Event()

    @contextmanager
    def at_work(self, key: ContainerKey) -> Iterator[None]:
        """Start or end a container: nobody else places it."""
        self.busy.add(key)
        try:
            yield
        finally:
            self.busy.discard(key)
            self._idle.set()
            self._idle = asyncio.Event()

    async def until_idle(self, keys: Collection[ContainerKey]) -> None:
        """Return when none of these is being started or ended."""
        while not self.busy.isdisjoint(keys):
            await self._idle.wait()

    def put(self, status: ContainerStatus) -> None:
        """Take note of a container."""
        self.statuses[status.key] = status
        self.changes += 1

    def drop(self, key: ContainerKey) -> None:
        """Nothing is left of a container."""
        self.statuses.pop(key, None)
        self.changes += 1
        self._silent.pop(key, None)

    def of_pod(self, uid: str) -> list[ContainerStatus]:
        """The containers of a pod."""
        return [status for key, status in self.statuses.items() if key.pod_uid == uid]

    def drop_pod(self, uid: str) -> None:
        """Nothing is left of a pod's containers."""
        for status in self.of_pod(uid):
            self.drop(status.key)

    def silent_for(self, status: ContainerStatus, now: float) -> float:
        """Seconds since a container was first found without a process that is said to run."""
        known = self._silent.get(status.key)
        if known is None or known[0] != status.id:
            known = self._silent[status.key] = (status.id, now)
        return now - known[1]
