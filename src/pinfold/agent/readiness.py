"""When a service manager may go on with what it starts after the agent: a kubelet, say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

PATIENCE: Final = 10.0
"""Seconds after which something that is wrong is no reason to wait any longer."""

_LOOK: Final = 0.02


async def at_work(problems: Callable[[], Sequence[str]], *, patience: float = PATIENCE) -> None:
    """Return when nothing keeps the agent from its work any more, or that took too long.

    Args:
        problems: what does.
        patience: seconds.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience
    while True:
        if not problems() or loop.time() > deadline:
            return
        await asyncio.sleep(_LOOK)
