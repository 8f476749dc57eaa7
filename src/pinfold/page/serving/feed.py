"""What all browsers are told: one reader of the agent's events for all of them, while they look."""

from __future__ import annotations

import asyncio
import contextlib
import traceback
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Final

import structlog

from pinfold.core.machine.machine import MachineError
from pinfold.documents.live.event import Event, Whole
from pinfold.documents.live.scene import Scene
from pinfold.formats.event_stream import pause, remark
from pinfold.page.serving.drawn import Drawn
from pinfold.page.serving.questions import AskedAgent, AwayError
from pinfold.ports.errors import PortError
from pinfold.retry.backoff import Backoff

log = structlog.get_logger("pinfold.page")

LINGER: Final = 60.0
"""Seconds for which the agent is read when nobody looks any more, so that a page that is loaded
again is there at once."""

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0
"""Seconds before an agent that is away is looked for again, twice as many each time up to these."""

FIRST_PATIENCE: Final = 10.0
"""Seconds for the first scene."""

KEPT_ALIVE: Final = 15.0
"""Seconds between two words to a browser, at most: it is let in still, and is still there."""

AGAIN: Final = 1.0
"""Seconds after which a browser connects again."""


class Feed:
    """Reads the agent while somebody looks, and tells all who do.

    Args:
        agent: who is read.
        linger: for how many seconds it is read when nobody looks any more.
    """

    def __init__(self, agent: AskedAgent, *, linger: float = LINGER) -> None:
        self._agent = agent
        self._linger = linger
        self._drawn = Drawn()
        self._lookers = 0
        self._bells: set[asyncio.Event] = set()
        self._reading: asyncio.Task[None] | None = None
        self._leaving: asyncio.TimerHandle | None = None
        self._closed = False

    async def close(self) -> None:
        """Tell nobody any more: all streams end."""
        self._closed = True
        self._ring()
        self._leave()

    @property
    def reads(self) -> bool:
        """Whether the agent is read now."""
        return self._reading is not None

    def expect(self) -> None:
        """Somebody is going to look: what is told then can be had meanwhile."""
        with self._looking():
            pass

    async def messages(self, last_id: str) -> AsyncGenerator[bytes, None]:
        """What a browser is told, piece by piece, until the feed is closed.

        An empty piece says nothing; it is there for who asks whether to go on.

        Args:
            last_id: of the newest event that it has; "": it has none.
        """
        with self._looking() as bell:
            yield pause(AGAIN)
            seen = self._drawn.seen_by(last_id)
            while not self._closed:
                bell.clear()
                for message in self._drawn.news(seen):
                    yield message
                try:
                    await asyncio.wait_for(bell.wait(), KEPT_ALIVE)
                except TimeoutError:
                    yield remark("still here")
                else:
                    yield b""

    async def now(self) -> tuple[Whole, Scene]:
        """What there is, and how it is drawn.

        Raises:
            PortError: the agent is away.
        """
        with self._looking() as bell, contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PATIENCE):
                while not self._closed:
                    bell.clear()
                    drawn = self._drawn
                    if drawn.problem:
                        raise AwayError(drawn.problem)
                    if drawn.whole is not None and drawn.scene is not None:
                        return drawn.whole, drawn.scene
                    await bell.wait()
        raise AwayError("the agent has told nothing yet", "ask again soon")

    @contextlib.contextmanager
    def _looking(self) -> Iterator[asyncio.Event]:
        """The agent is read meanwhile; a bell that rings when there is something new."""
        bell = asyncio.Event()
        self._bells.add(bell)
        self._lookers += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._reading is None and not self._closed:
            self._drawn.forget()
            self._reading = asyncio.create_task(self._read(), name="the agent's events")
        try:
            yield bell
        finally:
            self._bells.discard(bell)
            self._lookers -= 1
            if not self._lookers and not self._closed:
                loop = asyncio.get_running_loop()
                self._leaving = loop.call_later(self._linger, self._leave)

    def _leave(self) -> None:
        self._leaving = None
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _ring(self) -> None:
        for bell in self._bells:
            bell.set()

    async def _read(self) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, PortError, report=self._away)
        while True:
            async with backoff:
                try:
                    await self._follow(backoff)
                except PortError:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever it is, it is told and tried again
                    raise _fault(error) from None

    async def _follow(self, backoff: Backoff) -> None:
        async with aclosing(self._agent.events()) as events:
            async for event in events:
                self._take(event)
                backoff.well()

    def _take(self, event: Event) -> None:
        try:
            self._drawn.take(event)
        except MachineError as error:
            raise AwayError(
                f"the agent's machine is not understood: {error}",
                "agent and page are of different versions: restart both",
            ) from None
        self._ring()

    def _away(self, problem: str) -> None:
        self._drawn.is_away(problem)
        self._ring()


def _fault(error: Exception) -> AwayError:
    """One of ours, for those who look: they would wait for ever if they were not told."""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("events failed", problem=repr(error), where=where)
    return AwayError(
        "the page failed at what the agent tells", "the output of pinfold serve says why"
    )
