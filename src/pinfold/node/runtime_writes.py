"""When a runtime may be writing a cpuset that it was told some time ago.

It does not write while it is told: containerd answers an event's lock free first, then changes the
container, and says so (NRI's ``PostUpdateContainer``).  Whoever takes CPUs from somebody who runs
has to wait for that, or the older set comes back over the newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Final

from pinfold.ports.errors import ContainerKey

WRITTEN: Final = 3.0
"""Seconds after which a runtime has written what it was told, or never will: nobody hears of a
change that has failed."""


Concerns = Callable[[ContainerKey], bool]
"""Whether it matters who writes a container's cpuset."""


class RuntimeWrites:
    """What a runtime has been told of containers, and has perhaps not written yet."""

    def __init__(self) -> None:
        self._under_way: dict[ContainerKey, float] = {}
        self._in_answers: set[ContainerKey] = set()
        self._news = asyncio.Event()
        self._tells = False
        self._waiting: list[Concerns] = []

    @property
    def held(self) -> bool:
        """Whether somebody relies on what was said last: nothing is to be told just now."""
        return bool(self._waiting)

    @asynccontextmanager
    async def telling(self) -> AsyncIterator[None]:
        """Around telling the runtime something unasked; one at a time."""
        while self._waiting or self._tells:
            self._news.clear()
            await self._news.wait()
        self._tells = True
        try:
            yield
        finally:
            self._tells = False
            self._news.set()

    def begun(self, *keys: ContainerKey) -> None:
        """The runtime is about to write these; once more when it was answered about them."""
        until = asyncio.get_running_loop().time() + WRITTEN
        self._under_way.update(dict.fromkeys(keys, until))

    def told_besides(self, keys: Iterable[ContainerKey]) -> None:
        """An answer speaks of these, too: it writes them before it asks anything else."""
        told = frozenset(keys)
        self._in_answers |= told
        self.begun(*told)

    def next_asked(self) -> None:
        """The runtime asks something: what the last answer said besides is written."""
        if self._in_answers:
            self.over(*self._in_answers)
            self._in_answers.clear()

    def over(self, *keys: ContainerKey) -> None:
        """These are written, or gone."""
        for key in keys:
            self._under_way.pop(key, None)
        self._news.set()

    @asynccontextmanager
    async def still(self, concerns: Concerns) -> AsyncIterator[None]:
        """Entered when no older set of those whom it ``concerns`` can be written any more.

        Who is to be answered in the meantime has to wait for the books, which are to be changed
        at once.  One may be within another.
        """
        self._waiting.append(concerns)
        try:
            while self._tells or (left := self._left()) > 0:
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if self._tells else left):
                        await self._news.wait()
            yield
        finally:
            self._waiting.remove(concerns)
            self._news.set()

    def _left(self) -> float:
        """How long the runtime may still be writing one of those who matter."""
        now = asyncio.get_running_loop().time()
        for key in [key for key, until in self._under_way.items() if until <= now]:
            del self._under_way[key]
        left = (
            until - now
            for key, until in self._under_way.items()
            if any(concerns(key) for concerns in self._waiting)
        )
        return max(left, default=0.0)
