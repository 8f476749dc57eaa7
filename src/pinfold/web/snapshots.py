"""Answers that show everything: made once for all who wait for them, and not all the time.

A status of many pods takes milliseconds to make.  Clients that ask for it one after the other would
leave the event loop no time to admit a pod.  So all who have asked meanwhile get one and the same
answer, which is made after the last of them has asked: nobody sees less than what he was told
before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from msgspec import Struct, field

LEFT_FOR_OTHERS: Final = 4.0
"""So many times as long as answers took to make, none is made."""

FOR_EACH: Final = 0.001
"""Seconds for each who got one: to take his request apart and to write takes some 0.4 ms."""


class _Awaited(Struct):
    make: Callable[[], bytes]
    futures: list[asyncio.Future[bytes]] = field(default_factory=list)


class Snapshots:
    """Makes answers, for one event loop; ``made`` counts them by name."""

    def __init__(self) -> None:
        self.made: dict[str, int] = {}
        self._awaited: dict[str, _Awaited] = {}
        self._next: asyncio.TimerHandle | None = None
        self._free_at = 0.0

    async def get(self, name: str, make: Callable[[], bytes]) -> bytes:
        """What ``make`` answers, or raises, some time from now.

        Of several who wait for the same name one is made.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()
        self._awaited.setdefault(name, _Awaited(make)).futures.append(future)
        if self._next is None:
            self._next = loop.call_at(max(self._free_at, loop.time()), self._make)
        return await future

    def _make(self) -> None:
        loop = asyncio.get_running_loop()
        began, served = loop.time(), 0
        self._next, awaited = None, self._awaited
        self._awaited = {}
        for name, one in awaited.items():
            waiting = [future for future in one.futures if not future.done()]
            if not waiting:
                continue
            served += len(waiting)
            self.made[name] = self.made.get(name, 0) + 1
            try:
                answer = one.make()
            except Exception as error:  # noqa: BLE001 - it is theirs
                for future in waiting:
                    future.set_exception(error)
            else:
                for future in waiting:
                    future.set_result(answer)
        ended = loop.time()
        self._free_at = ended + LEFT_FOR_OTHERS * (ended - began) + FOR_EACH * served
