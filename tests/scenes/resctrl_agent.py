"""``python -m tests.scenes.resctrl_agent agent --config FILE``: an agent on a machine with resctrl.

``RESCTRL`` is the folder in which the file system of the tests is mounted, ``RESCTRL_SYSFS`` that
of the CPUs with their caches.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from pinfold.adapters.machines.online import online_cpus
from pinfold.adapters.resctrl import ResctrlGroups
from pinfold.adapters.resctrl.groups import Mounts
from pinfold.agent.loops.following import DIVIDED
from pinfold.agent.wiring import start_agent
from pinfold.config.agent import load_agent_config
from pinfold.linux.mounts import Mount


def main() -> None:
    """Run it."""
    config = load_agent_config(Path(sys.argv[3]))
    place, sysfs = os.environ["RESCTRL"], Path(os.environ["RESCTRL_SYSFS"])
    there = Mount("/", place, "resctrl", frozenset(), writable=True)
    mounts = Mounts(lambda: there, lambda _: None, lambda: None)

    def front(port: Any, /) -> Any:
        if not isinstance(port, ResctrlGroups):
            return port
        record = Path(config.own.record.state_dir) / DIVIDED
        return ResctrlGroups(record, "never", online_cpus, mounts, sysfs)

    asyncio.run(start_agent(config, front))


if __name__ == "__main__":
    main()
