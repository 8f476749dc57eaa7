"""The kubelet's side of the device plugin API: plugins register, list devices and are asked.

Source: upstream ``pkg/kubelet/cm/devicemanager/plugin/v1beta1`` and ``devicemanager/manager.go``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pinfold.adapters.deviceplugin.inventory import PluginInventory
from pinfold.adapters.deviceplugin.messages import run_options
from pinfold.adapters.deviceplugin.plugin_client import (
    PluginClient,
    PluginLimits,
    PluginOptions,
)
from pinfold.adapters.deviceplugin.registered_plugin import RegisteredPlugin
from pinfold.adapters.deviceplugin.registration_rules import RegistrationRefusedError, check_socket
from pinfold.adapters.deviceplugin.registration_service import RegistrationService
from pinfold.adapters.deviceplugin.registry import PluginRegistry
from pinfold.core.devices.devices import DeviceInventory, DeviceRunOptions, PreferenceQuestion
from pinfold.linux.descriptors import lack_of_files
from pinfold.linux.socket_places import identity
from pinfold.ports.devices import DevicePluginError
from pinfold.retry.loops import Loops

_SOCKET_PAUSE: Final = 0.02
_FILES_OF_A_PLUGIN: Final = 2


class DevicePluginServer:
    """The port :class:`pinfold.ports.devices.DevicePlugins`, for one event loop.

    Args:
        folder: where ``kubelet.sock`` is made and the sockets of plugins are.
        registry: the folder of the plugin watcher (``plugins_registry``), None for none.
        limits: how long plugins may take, and how much they may send.
        report: takes a problem, in one line.
        loops: where the looks at the files go through.
    """

    def __init__(
        self,
        folder: Path,
        *,
        registry: Path | None = None,
        limits: PluginLimits | None = None,
        report: Callable[[str], None] = lambda _: None,
        loops: Loops | None = None,
    ) -> None:
        self._loops = loops or Loops(lambda name, problem: report(f"{name}: {problem}"))
        self._limits = limits or PluginLimits()
        self._folder = folder.absolute()
        self._report = report
        self._service = RegistrationService(self._folder, self, report)
        self._inventory = PluginInventory(self._limits.grace)
        self._plugins: dict[str, RegisteredPlugin] = {}
        self._numbers = itertools.count(1)
        self._registrations: Counter[str] = Counter()
        self._closing: set[asyncio.Task[None]] = set()
        self._registry = (
            None
            if registry is None
            else PluginRegistry(registry.absolute(), self._limits, self, report)
        )
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Let plugins register; raises PortError."""
        if self._registry is not None:
            self._registry.prepare()
        await self._service.start()
        self._looking = asyncio.create_task(self._look(), name="device plugins")

    async def close(self) -> None:
        """End every connection and remove the socket; the inventory stays as it is."""
        self._inventory.close()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
            self._looking = None
        if self._registry is not None:
            await self._registry.close()
        await self._service.close()
        plugins = list(self._plugins.values())
        self._plugins.clear()
        await asyncio.gather(*(plugin.close() for plugin in plugins), *self._closing)

    # ------------------------------------------------------------------------------- the port

    def inventory(self) -> DeviceInventory:
        """What the plugins list now."""
        return self._inventory.now()

    def subscribe(self, changed: Callable[[DeviceInventory], None]) -> None:
        """Have ``changed`` called, once per turn of the loop, when the inventory is another one."""
        self._inventory.subscribe(changed)

    async def preferred_allocation(self, question: PreferenceQuestion) -> Sequence[str]:
        """See :class:`pinfold.ports.devices.DevicePlugins`.

        The ids are as the plugin says them, none if it has no wish; what was not offered is the
        asker's to ignore, as the kubelet does.
        """
        return await self._client(question.resource).preferred_allocation(question)

    async def allocate(self, resource: str, device_ids: Sequence[str]) -> bytes:
        """See :class:`pinfold.ports.devices.DevicePlugins`."""
        return await self._client(resource).allocate(device_ids)

    async def pre_start(self, resource: str, device_ids: Sequence[str]) -> None:
        """Let the plugin prepare its devices; raises DevicePluginError."""
        await self._client(resource).pre_start(device_ids)

    def options(self, response: bytes) -> DeviceRunOptions:
        """Read a serialized ``ContainerAllocateResponse``; raises DevicePluginError."""
        return run_options(response)

    def registrations(self) -> Mapping[str, int]:
        """See :class:`pinfold.ports.devices.CountsRegistrations`."""
        return self._registrations

    def _client(self, resource: str) -> PluginClient:
        plugin = self._plugins.get(resource)
        if plugin is None:
            raise DevicePluginError(
                f"{resource}: its device plugin is not there", "start the plugin, or wait for it"
            )
        return plugin.client

    # --------------------------------------------------------------------------- registration

    async def register(
        self,
        resource: str,
        path: Path,
        *,
        origin: Path | None = None,
        offered: PluginOptions | None = None,
    ) -> None:
        """Connect to a plugin; whoever had the resource before is replaced.

        Args:
            resource: its name, which was checked.
            path: the plugin's socket, for which it is waited.
            origin: the socket in the registry that told of it.
            offered: the options in its registration, which count if it cannot be asked for them.

        Raises:
            RegistrationRefusedError: another file is at the path, there was a later plugin, or
                there are too many.
            DevicePluginError: it did not answer.
        """
        self._check_room(resource)
        number = next(self._numbers)
        client = PluginClient(resource, path, self._limits)
        try:
            await self._await_socket(path, None if origin else self._folder)
            await client.dial()
            try:
                options = await client.get_options()
            except DevicePluginError as error:
                raise RegistrationRefusedError(
                    f"failed to get device plugin options: {error}"
                ) from None
            before = self._before(resource, number)
        except BaseException:
            await client.close()
            raise
        plugin = RegisteredPlugin(
            client,
            number=number,
            origin=origin,
            options=options or offered or PluginOptions(),
            inventory=self._inventory,
            report=self._report,
            ended=self._ended,
        )
        self._plugins[resource] = plugin
        self._registrations[resource] += 1
        plugin.start()
        if before is not None:
            self._close_soon(before)

    def _check_room(self, resource: str) -> None:
        """Take no new resource when there are very many, or no files left to connect with."""
        known = self._plugins.keys() | self._inventory.now().keys()
        if resource in known:
            return
        if len(known) >= self._limits.resources:
            raise RegistrationRefusedError(
                f"{self._limits.resources} resources have a device plugin: no more are taken"
            )
        if lack := lack_of_files(_FILES_OF_A_PLUGIN):
            raise RegistrationRefusedError(f"{lack}: raise LimitNOFILE (ulimit -n)")

    def deregister(self, origin: Path) -> None:
        """Take the plugin of a socket in the registry for gone."""
        for plugin in list(self._plugins.values()):
            if plugin.origin == origin:
                plugin.stop(f"{origin} was removed")

    def serves(self, resource: str) -> bool:
        """Whether a plugin is connected for the resource."""
        return resource in self._plugins

    def _before(self, resource: str, number: int) -> RegisteredPlugin | None:
        before = self._plugins.get(resource)
        if before is not None and before.number > number:
            raise RegistrationRefusedError(f"{resource}: a later registration has come first")
        return before

    async def _await_socket(self, path: Path, folder: Path | None) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._limits.dial
        while not check_socket(path, folder):
            if loop.time() >= ends:
                raise DevicePluginError(
                    f"failed to dial device plugin: {path} is not there",
                    "the plugin must listen there before it registers",
                )
            await asyncio.sleep(_SOCKET_PAUSE)

    def _ended(self, plugin: RegisteredPlugin, reason: str) -> None:
        if self._plugins.get(plugin.resource) is plugin:
            del self._plugins[plugin.resource]
            self._inventory.disconnect(plugin.resource)
            reason = reason.removeprefix(f"{plugin.resource}: ")
            self._report(f"device plugin {plugin.resource} has gone: {reason}")
            self._close_soon(plugin)

    def _close_soon(self, plugin: RegisteredPlugin) -> None:
        plugin.silence()
        task = asyncio.create_task(plugin.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _look(self) -> None:
        """Look after the files: our socket, those of the plugins, the registry."""
        while True:
            await self._loops.attempt("device plugins' sockets", self._look_once)
            await asyncio.sleep(self._limits.look)

    async def _look_once(self) -> None:
        if self._registry is not None:
            self._registry.look()
        for plugin in list(self._plugins.values()):
            if identity(plugin.client.path) is None:
                plugin.stop(f"its socket {plugin.client.path} was removed")
        await self._service.look()
