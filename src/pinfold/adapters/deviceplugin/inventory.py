"""What the plugins list: one inventory, whose subscribers are told once per turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import MappingProxyType

from msgspec.structs import replace

from pinfold.core.devices.devices import Device, DeviceInventory, DeviceResource


class PluginInventory:
    """The resources by name.

    Args:
        grace: seconds after which a resource without its plugin leaves.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._resources: dict[str, DeviceResource] = {}
        self._leaving: dict[str, asyncio.TimerHandle] = {}
        self._subscribers: list[Callable[[DeviceInventory], None]] = []
        self._told: DeviceInventory = MappingProxyType({})
        self._telling: asyncio.Handle | None = None

    def now(self) -> DeviceInventory:
        """A copy that stays as it is."""
        return MappingProxyType(dict(self._resources))

    def subscribe(self, changed: Callable[[DeviceInventory], None]) -> None:
        """Have ``changed`` called whenever the inventory is another one than it was told last."""
        self._subscribers.append(changed)

    def put(self, resource: DeviceResource) -> None:
        """Take what a plugin that is there lists."""
        self._stay(resource.name)
        if self._resources.get(resource.name) != resource:
            self._resources[resource.name] = resource
            self._changed()

    def devices_of(self, name: str) -> Mapping[str, Device]:
        """The devices that were listed last."""
        resource = self._resources.get(name)
        return MappingProxyType({}) if resource is None else resource.devices

    def disconnect(self, name: str) -> None:
        """No device of this resource counts as healthy; it leaves after the grace."""
        resource = self._resources.get(name)
        if resource is None or not resource.connected:
            return
        self._resources[name] = replace(resource, connected=False)
        self._leaving[name] = asyncio.get_running_loop().call_later(self._grace, self._leave, name)
        self._changed()

    def close(self) -> None:
        """Tell nobody any more, and stay as it is."""
        for name in list(self._leaving):
            self._stay(name)
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._subscribers.clear()

    def _stay(self, name: str) -> None:
        timer = self._leaving.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _leave(self, name: str) -> None:
        self._leaving.pop(name, None)
        if self._resources.pop(name, None) is not None:
            self._changed()

    def _changed(self) -> None:
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._telling = None
        now = self.now()
        if now == self._told:
            return
        self._told = now
        for changed in list(self._subscribers):
            changed(now)
