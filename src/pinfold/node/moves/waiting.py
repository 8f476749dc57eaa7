"""Waiting until CPUs may be taken from an owner that was told."""

from __future__ import annotations

import asyncio
from typing import Final

from pinfold.core.moves.gone import is_gone
from pinfold.core.moves.steps import Wait
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.books import Books
from pinfold.node.moves.runs import key_of
from pinfold.ports.errors import ContainerKey
from pinfold.ports.records import PendingMove

_SHORTEST: Final = 0.001
_LOOK: Final = 1.0
"""Seconds."""


async def has_waited(books: Books, move: PendingMove, step: Wait) -> bool:
    """Wait for a deadline, or the word of the owner; False where there is another plan by then.

    Meanwhile those who wait are told again what somebody has removed, and their deadlines where
    the clock was set.
    """
    if is_gone(step.owner):
        return True
    observers, told = books.observers, {owner.pod_uid for owner in move.deadlines}
    replanned = asyncio.create_task(books.until_replanned(move))
    coming = move.holds.coming[step.owner]
    acknowledged = asyncio.create_task(_word(books, key_of(step.owner), coming))
    both = {replanned, acknowledged}
    try:
        while left := move.seconds_left(step.owner, observers.uptime(), observers.boot):
            # So short a time that a clock does not show it would be waited for again and again.
            left = max(min(left, _LOOK), _SHORTEST)
            await asyncio.wait(both, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if replanned.done() or acknowledged.done():
                break
            await books.announcements.publish(told, books, anew=True)
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
    return replanned.cancelled()


async def _word(books: Books, key: ContainerKey, coming: CPUSet) -> None:
    """Return at the owner's acknowledgement; one that cannot be heard has its whole time."""
    try:
        await books.announcements.acknowledged(key, coming)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is no acknowledgement
        books.observers.report(None, f"container {key}: its acknowledgement is not heard: {error}")
        await asyncio.Event().wait()
