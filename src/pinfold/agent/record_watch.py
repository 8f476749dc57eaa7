"""Knows whether the record can be written, without anybody asking."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from pinfold.ports.store import Store

LOOK_PERIOD: Final = 2.0
"""Seconds between two looks; one is a handful of system calls while all is well."""

log = structlog.get_logger("pinfold")


async def follow_record(store: Store) -> None:
    """Look for ever, and say when it changes; ``store.problem`` is what readiness depends on."""
    told = ""
    while True:
        await store.check()
        if store.problem and not told:
            log.warning("record", problem=store.problem)
        elif told and not store.problem:
            log.info("record", problem="none any more")
        told = store.problem
        await asyncio.sleep(LOOK_PERIOD)
