"""Looks after the bound of containers' logs, where the one who writes does not."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from pinfold.agent.parts import Companion
from pinfold.ports.logs import BoundedLogs

LOOK_PERIOD: Final = 1.0
"""Seconds between two looks, a tenth of the kubelet's: as much may be written beyond the bound."""

log = structlog.get_logger("pinfold")


def log_companion(runtime: BoundedLogs) -> Companion:
    """What keeps a runtime's logs within their bound while the agent serves."""

    async def run(stop: asyncio.Event) -> None:
        del stop
        told: list[str] = []
        while True:
            problems = await runtime.bound_logs()
            if problems != told:
                for text in problems:
                    log.warning("logs", problem=text)
            told = problems
            await asyncio.sleep(LOOK_PERIOD)

    return Companion("logs", run)
