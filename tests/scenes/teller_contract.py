"""What every teller has to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import ContainerKey
from pinfold.ports.tellers import Assigned, Assignment, Teller
from tests.scenes.waiting import PATIENCE

OWNER: Final = ContainerKey("6f5b-uid/of a pod", "main")
OTHER: Final = ContainerKey(OWNER.pod_uid, "beside")
STRANGER: Final = ContainerKey("another", "main")
OLD: Final = Assigned(CPUSet.parse("2-3"), CPUSet([0]))
BOTH: Final = Assigned(CPUSet.parse("2-4"), CPUSet([0, 1]))
NEW: Final = Assigned(CPUSet.parse("4"), CPUSet([1]))
FIRST: Final = Assignment(1, OLD, OLD, None, "admission")
ANNOUNCED: Final = Assignment(2, BOTH, NEW, OLD, "resize", 1_790_000_000.25)

Acknowledge = Callable[[ContainerKey, int], Awaitable[None]]
"""What an application does."""


async def check_telling(teller: Teller, again: Callable[[], Teller]) -> None:
    """What is told is there, for a later agent too, until it is forgotten.

    ``again`` gives what another agent finds.
    """
    assert await teller.told(OWNER) is None
    assert not teller.is_told(OWNER)
    await teller.tell(OWNER, FIRST)
    assert teller.is_told(OWNER)
    assert not teller.is_told(OTHER)
    await teller.tell(OTHER, replace(FIRST, current=NEW, coming=NEW))
    await teller.tell(STRANGER, FIRST)
    assert await teller.told(OWNER) == FIRST
    await teller.tell(OWNER, ANNOUNCED)
    await teller.tell(OWNER, ANNOUNCED)
    for one in (teller, again()):
        assert await one.told(OWNER) == ANNOUNCED
        told = await one.told(OTHER)
        assert told is not None
        assert told.current == NEW
    await teller.forget(OWNER.pod_uid)
    await teller.forget(OWNER.pod_uid)
    for one in (teller, again()):
        assert await one.told(OWNER) is None
        assert await one.told(OTHER) is None
        assert not one.is_told(OWNER)
        assert await one.told(STRANGER) == FIRST


async def check_acknowledgements(teller: Teller, acknowledge: Acknowledge) -> None:
    """Only the very generation counts, given before or after it is waited for."""
    await teller.tell(OWNER, FIRST)
    await teller.tell(OTHER, FIRST)
    await acknowledge(OWNER, 1)
    await asyncio.wait_for(teller.acknowledged(OWNER, 1), 20 * PATIENCE)

    await teller.tell(OWNER, ANNOUNCED)
    waiting = asyncio.create_task(teller.acknowledged(OWNER, 2))
    beside = asyncio.create_task(teller.acknowledged(OTHER, 1))
    for generation in (1, 3):
        await acknowledge(OWNER, generation)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting), 0.05)
    await acknowledge(OWNER, 2)
    await asyncio.wait_for(waiting, 20 * PATIENCE)
    assert not beside.done()
    beside.cancel()
    await asyncio.gather(beside, return_exceptions=True)
    await teller.forget(OWNER.pod_uid)
