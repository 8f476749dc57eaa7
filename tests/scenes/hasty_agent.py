"""``python -m tests.scenes.hasty_agent LIMITS agent ...``: waits less for device plugins.

``LIMITS`` is a JSON object with fields of :class:`PluginLimits`, in seconds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from pinfold.adapters.deviceplugin import DevicePluginServer, PluginLimits
from pinfold.agent import wiring
from pinfold.cli import main
from pinfold.config.agent import AgentConfig, device_plugin_dir
from pinfold.retry.loops import Loops


async def _open(
    config: AgentConfig, report: Callable[[str], None], loops: Loops
) -> DevicePluginServer:
    limits = PluginLimits(**json.loads(sys.argv[1]))
    folder = device_plugin_dir(config.own) or Path()
    server = DevicePluginServer(folder, limits=limits, report=report, loops=loops)
    await server.start()
    return server


if __name__ == "__main__":
    vars(wiring)["open_plugins"] = _open
    main(sys.argv[2:])
