"""Devices come, fail and go: what that means for the node and for the pods that use them.

Source: the specification's notes on the device manager: a device that fails fails the pods that
use it; a plugin that is gone takes its capacity with it and leaves the pods alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from pinfold.core.devices.devices import DeviceInventory
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.pods.manager import Manager
from pinfold.ports.records import UNHEALTHY_DEVICE, PodPhase

MIRROR_PAUSE: Final = 1.0
"""Seconds between two mirrored lists of devices: to write 10,000 takes some 30 ms."""


class DeviceHealth:
    """Keeps the node's devices those that the plugins list."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._latest: DeviceInventory | None = None
        self._changed = asyncio.Event()
        self._mirrored_at: float | None = None
        self._mirror_later: asyncio.TimerHandle | None = None

    def changed(self, inventory: DeviceInventory) -> None:
        """Take what the plugins list now; of a storm only the last is looked at."""
        self._latest = inventory
        self._changed.set()

    async def follow(self) -> None:
        """Make the node's state follow, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._latest is not None:
                await self.take(self._latest)

    async def take(self, inventory: DeviceInventory) -> None:
        """Let this be the node's devices, and end the pods of those that have failed."""
        manager = self._manager
        async with manager.books.change() as draft:
            devices = draft.state.devices.with_inventory(inventory)
            draft.state = replace(draft.state, devices=devices)
        for pod, resource, device in list(self._failed(inventory)):
            life = manager.lives[pod.uid]
            if life.ending:
                continue
            life.failure = f"device {device} of {resource} is unhealthy"
            life.failure_reason = UNHEALTHY_DEVICE
            manager.books.observers.report(life.name, f"{life.failure}; the pod is ended")
            manager.ended_by_itself(life, PodPhase.FAILED)
        self._mirror()

    def _mirror(self) -> None:
        """Have the kubelet's files say so, at once or when the pause is over."""
        loop = asyncio.get_running_loop()
        if self._mirror_later is not None:
            return
        due = 0.0 if self._mirrored_at is None else self._mirrored_at + MIRROR_PAUSE
        if loop.time() >= due:
            self._mirror_now()
        else:
            self._mirror_later = loop.call_at(due, self._mirror_now)

    def _mirror_now(self) -> None:
        self._mirrored_at, self._mirror_later = asyncio.get_running_loop().time(), None
        books = self._manager.books
        books.announcements.mirror(books.view)

    def _failed(self, inventory: DeviceInventory) -> Iterator[tuple[AdmittedPod, str, str]]:
        for pod in self._manager.books.view.pods.active.values():
            for grants in pod.record.devices.values():
                for resource, grant in grants.items():
                    listed = inventory.get(resource)
                    if listed is None or not listed.connected:
                        continue
                    for device_id in grant.ids:
                        device = listed.devices.get(device_id)
                        if device is not None and not device.healthy:
                            yield pod, resource, device_id
