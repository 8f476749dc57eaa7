"""``python -m tests.scenes.hasty_agent LIMITS agent --config FILE``: waits less for device plugins.

``LIMITS`` is a JSON object with fields of :class:`PluginLimits`, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from pinfold.adapters.deviceplugin import PluginLimits
from pinfold.agent.wiring import start_agent
from pinfold.config.agent import load_agent_config

if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    limits = PluginLimits(**json.loads(sys.argv[1]))
    asyncio.run(start_agent(load_agent_config(Path(sys.argv[-1])), plugin_limits=limits))
