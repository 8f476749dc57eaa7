"""Looks after the bound of containers' logs, where the one who writes does not."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from pinfold.agent.parts import Companion
from pinfold.node.log_ports import BoundedLogs
from pinfold.node.port_errors import PortError

LOOK_PERIOD: Final = 10.0
"""Seconds between two looks: the kubelet's ``containerLogMonitorInterval``."""

log = structlog.get_logger("pinfold")


def log_companion(runtime: BoundedLogs) -> Companion:
    """What keeps a runtime's logs within their bound while the agent serves."""

    async def run(stop: asyncio.Event) -> None:
        del stop
        while True:
            try:
                for text in await runtime.bound_logs():
                    log.warning("logs", problem=text)
            except PortError as error:
                log.warning("logs", problem=str(error))
            await asyncio.sleep(LOOK_PERIOD)

    return Companion("logs", run)
