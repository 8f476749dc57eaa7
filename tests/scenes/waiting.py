"""Waiting for what tells of no event: files, processes, the kernel, the other end of a socket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

PATIENCE: Final = float(os.environ.get("PINFOLD_TEST_PATIENCE", "1"))
"""How much slower than a usual machine this one may be (an emulated one is)."""

_PAUSE: Final = 0.005

T = TypeVar("T")


def wait_until(condition: Callable[[], T], seconds: float = 20.0) -> T:
    """What the condition gives once it holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(_PAUSE)
    return found


def eventually(what: Callable[[], object], expected: object, seconds: float = 15) -> None:
    """Wait until something is what it is to be."""
    deadline = time.monotonic() + seconds * PATIENCE
    while (found := what()) != expected:
        assert time.monotonic() < deadline, f"{found!r} is not {expected!r}"
        time.sleep(0.02)


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """As :func:`wait_until`, while others go on."""
    async with asyncio.timeout(seconds * PATIENCE):
        while not condition():  # noqa: ASYNC110 - files and other ends tell of no event here
            await asyncio.sleep(_PAUSE)
