"""Device plugins in an agent: where they register, and what their devices' health leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinfold.agent.parts import Companion
from pinfold.config.agent import AgentConfig, device_plugin_dir
from pinfold.node.device_health import DeviceHealth
from pinfold.node.pods.manager import Manager
from pinfold.ports.devices import DevicePlugins
from pinfold.ports.errors import PortError
from pinfold.retry.loops import Loops

if TYPE_CHECKING:
    from pinfold.adapters.deviceplugin import DevicePluginServer


async def open_plugins(
    config: AgentConfig, report: Callable[[str], None], loops: Loops
) -> DevicePluginServer | None:
    """Let device plugins register; None where they are a kubelet's, or nobody's.

    Raises:
        PortError: the folder that the configuration names cannot be used.
    """
    folder = device_plugin_dir(config.own)
    if folder is None:
        return None
    from pinfold.adapters.deviceplugin import DevicePluginServer  # noqa: PLC0415 - heavy

    registry = config.own.plugin_registry_dir
    server = DevicePluginServer(
        folder,
        registry=None if registry is None else Path(registry),
        report=report,
        loops=loops,
    )
    try:
        await server.start()
    except PortError as error:
        if config.own.device_plugin_dir is not None:
            raise
        # The folder was only found; whoever has it may keep it.
        report(f"no device plugins: {error}")
        return None
    return server


def plugin_companion(manager: Manager, plugins: DevicePlugins, folder: Path | None) -> Companion:
    """Keeps the manager's devices those that the plugins list."""
    health = DeviceHealth(manager)
    plugins.subscribe(health.changed)
    health.changed(plugins.inventory())

    async def run(stop: asyncio.Event) -> None:
        del stop
        # Also what changed while this had failed.
        health.changed(plugins.inventory())
        await health.follow()

    def about() -> Mapping[str, Any]:
        devices = manager.state.devices
        allocatable = devices.allocatable()
        return {
            "folder": None if folder is None else str(folder),
            "resources": {
                name: {
                    "capacity": count,
                    "allocatable": allocatable[name],
                    "in_use": len(devices.in_use(name)),
                    "connected": devices.inventory[name].connected,
                }
                for name, count in sorted(devices.capacity().items())
            },
        }

    return Companion("devicePlugins", run, about=about)
