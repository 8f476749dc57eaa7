"""One plugin that has registered: its stream of lists, read until it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from pinfold.adapters.deviceplugin.inventory import PluginInventory
from pinfold.adapters.deviceplugin.messages import Listing, listing
from pinfold.adapters.deviceplugin.plugin_client import PluginClient, PluginOptions
from pinfold.core.devices.devices import Device, DeviceResource
from pinfold.ports.devices import DevicePluginError

_LARGE: Final = 1 << 20
"""Bytes of a list from which it is read in a thread, so that the loop goes on."""

_MOST_SKIPPED: Final = 64
"""Lists that are read in vain before the plugin is made to wait."""

_SHARE: Final = 9
"""Lists are read in a tenth of the time at most."""


class RegisteredPlugin:
    """A plugin whose lists fill the inventory, from :meth:`start` to its end or :meth:`close`.

    Args:
        client: the connection, which is closed with this.
        number: registrations are counted; a later one wins.
        origin: the socket in the registry that told of it, None when it came by Register.
        options: what the plugin offers.
        inventory: what its lists go to.
        report: takes a problem, each kind once.
        ended: is told why there are no more lists, unless it was closed.
    """

    def __init__(  # noqa: PLR0913 - what a registration tells, by keyword
        self,
        client: PluginClient,
        *,
        number: int,
        origin: Path | None,
        options: PluginOptions,
        inventory: PluginInventory,
        report: Callable[[str], None],
        ended: Callable[[RegisteredPlugin, str], None],
    ) -> None:
        self.client = client
        self.number = number
        self.origin = origin
        self._options = options
        self._inventory = inventory
        self._report = report
        self._ended = ended
        self._reported: set[str] = set()
        self._latest: bytes | None = None
        self._arrived = asyncio.Event()
        self._patience: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def resource(self) -> str:
        """The name of what it offers."""
        return self.client.resource

    def start(self) -> None:
        """Begin to read lists."""
        seconds = self.client.limits.first_list
        self._patience = asyncio.get_running_loop().call_later(seconds, self._impatient)
        self._task = asyncio.create_task(self._run(), name=f"device plugin {self.resource}")

    def stop(self, reason: str) -> None:
        """Take it for gone now; its connection is closed soon."""
        if not self._stopped:
            self.silence()
            self._ended(self, reason)
            if self._task is not None:
                self._task.cancel()

    async def close(self) -> None:
        """Read no more lists, and tell nobody."""
        self.silence()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.client.close()

    def silence(self) -> None:
        """Put nothing into the inventory any more."""
        self._stopped = True
        if self._patience is not None:
            self._patience.cancel()

    async def _run(self) -> None:
        reading = asyncio.create_task(self._read())
        taking = asyncio.create_task(self._take())
        try:
            await asyncio.wait({reading, taking}, return_when=asyncio.FIRST_COMPLETED)
            reason = _reason(taking) or _reason(reading) or "it ended its stream of lists"
            if reading.done() and not taking.done() and self._arrived.is_set():
                # What it said last is what it had.
                with contextlib.suppress(DevicePluginError):
                    self._put(self._listing(self._latest or b"", self._known()))
            if not self._stopped:
                self.silence()
                self._ended(self, reason)
        finally:
            reading.cancel()
            taking.cancel()
            await asyncio.gather(reading, taking, return_exceptions=True)
            await self.client.close()

    async def _read(self) -> None:
        skipped = 0
        async for data in self.client.lists():
            skipped = skipped + 1 if self._arrived.is_set() else 0
            self._latest = data
            self._arrived.set()
            if skipped >= _MOST_SKIPPED:
                # A storm: the plugin has to wait, too.
                skipped = 0
                await asyncio.sleep(self.client.limits.list_pause)

    async def _take(self) -> None:
        """Take each list, but not faster than the pause; of several, the last."""
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            began = loop.time()
            data = self._latest or b""
            if len(data) < _LARGE:
                found = self._listing(data, self._known())
            else:
                found = await asyncio.to_thread(self._listing, data, self._known())
            self._put(found)
            spent = loop.time() - began
            await asyncio.sleep(max(self.client.limits.list_pause, _SHARE * spent))

    def _known(self) -> Mapping[str, Device]:
        return self._inventory.devices_of(self.resource)

    def _listing(self, data: bytes, before: Mapping[str, Device]) -> Listing:
        try:
            return listing(data, before)
        except DecodeError:
            raise DevicePluginError(
                f"{self.resource}: ListAndWatch sent {len(data)} bytes that are no list of devices",
                "see the plugin's log",
            ) from None

    def _put(self, found: Listing) -> None:
        if self._stopped:
            return
        if self._patience is not None:
            self._patience.cancel()
        self._inventory.put(
            DeviceResource(
                self.resource,
                found.devices,
                pre_start_required=self._options.pre_start_required,
                preferred_allocation=self._options.preferred_allocation,
            )
        )
        for kind, problem in found.problems.items():
            if kind not in self._reported:
                self._reported.add(kind)
                self._report(f"device plugin {self.resource}: {problem}")

    def _impatient(self) -> None:
        self._report(
            f"device plugin {self.resource}: has registered, and has sent no list of devices for "
            f"{self.client.limits.first_list:g} s (see the plugin's log)"
        )
        self._inventory.disconnect(self.resource)


def _reason(task: asyncio.Task[None]) -> str:
    if not task.done() or task.cancelled():
        return ""
    error = task.exception()
    return str(error) if error is not None else ""
