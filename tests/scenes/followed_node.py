"""A node on fakes whose events somebody follows, beside what the node says when it is asked."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from msgspec.structs import replace

from pinfold.documents.live.event import Event, Whole
from pinfold.documents.live.following import apply
from pinfold.formats.event_stream import EventStream
from pinfold.node.counters import Counters
from pinfold.web.answers import encoded
from pinfold.web.documents import Documents, counters_document
from pinfold.web.events.telling import Pace, Telling
from tests.scenes.manager_harness import Harness
from tests.scenes.web_world import AgentOnFakes

QUICK = Pace(look=0.05, parts=0.1, everything=1e9, slowest=0.05)
"""Nothing is found by looking at everything for no reason."""


class Reader:
    """Whoever follows the events, as if over a wire; ``kinds`` are those that he got."""

    def __init__(self) -> None:
        self.whole: Whole | None = None
        self.last_id = ""
        self.kinds: list[str] = []
        self.changed: list[set[str]] = []
        self._task: asyncio.Task[None] | None = None

    def begin(self, telling: Telling, stop: asyncio.Event) -> None:
        """Follow, from where he was."""
        self._task = asyncio.create_task(self._follow(telling, stop))

    async def end(self) -> None:
        """Go away."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _follow(self, telling: Telling, stop: asyncio.Event) -> None:
        wire = EventStream()
        with telling.listening(stop):
            async with contextlib.aclosing(telling.stream(self.last_id)) as stream:
                async for piece in stream:
                    for message in wire.feed(piece):
                        self.take(msgspec.json.decode(message.data, type=Event))

    def take(self, event: Event) -> None:
        """Learn of one."""
        self.last_id = event.id
        self.kinds.append(event.kind)
        if event.changed:
            self.changed.append({pod.name for pod in event.changed.pods})
        if event.whole:
            self.whole = event.whole
        else:
            assert self.whole is not None
            self.whole = apply(self.whole, event)


class ToldNode:
    """Such a node: an agent that may be followed by another one."""

    def __init__(self, node: Harness, *, observes: bool = False) -> None:
        self.node, self._observes = node, observes
        self.reader = Reader()
        self._manager: object = None

    async def follow(self) -> None:
        """Follow whoever is the agent now."""
        manager = self.node.manager
        if self._manager is not manager:
            self._manager = manager
            self.agent = AgentOnFakes(manager, self.node)
            if self._observes:
                self.agent.watch()
            self.telling = Telling(self.agent, QUICK)
        await self.reader.end()
        self.reader.begin(self.telling, asyncio.Event())
        await asyncio.sleep(QUICK.look)

    def asked(self) -> Whole:
        """What ``GET /v1/status`` and ``GET /v1/node`` say, but for the counters."""
        documents = Documents(self.agent.books, self.agent.observation)
        status = documents.status(self.agent.about(), self.agent.settings())
        whole = Whole(status=status, machine=self.agent.machine(), node=self.agent.node())
        return without_counters(msgspec.json.decode(encoded(whole), type=Whole))

    def told(self) -> Whole:
        """What the reader knows."""
        assert self.reader.whole is not None
        return without_counters(self.reader.whole)


def without_counters(whole: Whole) -> Whole:
    """What is known without that which no event tells."""
    none = counters_document(Counters())
    return replace(whole, status=replace(whole.status, counters=none))
