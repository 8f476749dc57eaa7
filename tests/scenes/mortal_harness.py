"""A node on fakes whose agent dies at one of its calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tests.scenes.manager_harness import Harness


@dataclass
class Death:
    """Ends the agent at one call, before or after its effect; the dead call nobody."""

    at: int = 0
    after: bool = False
    calls: int = 0
    dead: asyncio.Event = field(default_factory=asyncio.Event)
    buried: bool = False

    async def call(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.dead.is_set():
            await self._never()
        self.calls += 1
        if self.calls == self.at and not self.after:
            await self._die()
        result = await work(*args, **kwargs)
        if self.calls == self.at:
            await self._die()
        return result

    async def _die(self) -> None:
        self.dead.set()
        await self._never()

    async def _never(self) -> None:
        if self.buried:
            raise asyncio.CancelledError
        await asyncio.Event().wait()


class Mortal:
    """A port of an agent that may die."""

    def __init__(self, port: Any, death: Death) -> None:
        self._port = port
        self._death = death

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._death.call(method, *args, **kwargs)

        return call


class MortalHarness(Harness):
    """A node whose agent dies where it is told to."""

    death: Death

    def arm(self, at: int, *, after: bool) -> None:
        """The agent that starts next dies at this call."""
        self.death = Death(at, after)

    async def start(self, *args: Any) -> Any:
        names = ("cgroups", "runtime", "store", "files", "plugins")
        ports = {name: getattr(self, name) for name in names}
        try:
            vars(self).update({name: Mortal(port, self.death) for name, port in ports.items()})
            return await super().start(*args)
        finally:
            vars(self).update(ports)

    async def kill(self) -> None:
        self.death.buried = True
        await super().kill()


async def until_dead(node: MortalHarness, life: Any) -> bool:
    """Run a life of the agent; True when it died on the way."""
    living = asyncio.create_task(life)
    dying = asyncio.create_task(node.death.dead.wait())
    await asyncio.wait({living, dying}, return_when=asyncio.FIRST_COMPLETED)
    died = node.death.dead.is_set()
    node.death.buried = died
    for task in (living, dying):
        task.cancel()
    results = await asyncio.gather(living, dying, return_exceptions=True)
    error = results[0]
    if isinstance(error, Exception) and not died:
        raise error
    return died


_Node = TypeVar("_Node", bound=MortalHarness)


async def next_starts(
    node: _Node, life: Callable[[_Node], Awaitable[None]], at: int, *, after: bool
) -> bool:
    """Let an agent start and live that dies at this call, and the next one start; did it die?

    What the kernel refused the first, it does not refuse the next.
    """
    node.arm(at, after=after)

    async def whole() -> None:
        await node.start()
        await life(node)

    died = await until_dead(node, whole())
    await node.kill()
    node.cgroups.faults.fail_at = set()
    node.arm(0, after=False)
    await node.start()
    return died


class Dies(Protocol):
    """A life in which the agent dies at its call of this number, before or ``after`` its effect."""

    def __call__(self, at: int, /, *, after: bool) -> Awaitable[bool]:
        """Whether it died: there are no more calls where it did not."""


async def every_death(dies: Dies, within: float = 100) -> int:
    """Let the agent die at each of its calls; how often that was.

    Args:
        dies: one life; it looks whether all is well after it.
        within: seconds that it may take.
    """
    deaths = 0
    for after in (False, True):
        at = 1
        while await asyncio.wait_for(dies(at, after=after), within):
            at += 1
            deaths += 1
    return deaths
