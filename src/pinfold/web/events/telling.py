"""Makes the events of a node while somebody listens: each once, for all who do.

Nobody has to say that something has changed: it is looked often, and it costs next to nothing to
see that nothing has.  So what is told later is told without a change elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncGenerator, Iterator

import structlog
from msgspec import UNSET, Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from pinfold.documents.live.event import Changed, Event, Whole
from pinfold.documents.live.following import apply
from pinfold.documents.observation import Observation
from pinfold.formats.event_stream import ALIVE, Message, pause, remark, written
from pinfold.node.view import View
from pinfold.web.answers import Refusal, encoded
from pinfold.web.backend import Backend
from pinfold.web.events.answer import EventsAnswer, events_head, known_id
from pinfold.web.events.difference import difference
from pinfold.web.events.remembered import RememberedDocuments
from pinfold.web.events.ring import Ring
from pinfold.web.observed import observation_document

log = structlog.get_logger("pinfold.web")


class Pace(Struct, frozen=True):
    """How often what is done, and for how many; times are seconds.

    Attributes:
        look: between two looks whether something has changed.
        parts: between two looks at what nobody notices by itself, such as a problem that is over.
        everything: between two looks at everything, whether or not anything seems to have changed.
        slowest: the longest pause after a change that took long to tell.
        for_others: so many times as long as telling took, nothing is told.
        alive: without an event, after which a remark keeps the connection.
        back: after which a reader connects again.
        readers: at the same time.
    """

    look: float = 0.08
    parts: float = 0.25
    everything: float = 5.0
    slowest: float = 0.3
    for_others: float = 60.0
    alive: float = ALIVE
    back: float = 1.0
    readers: int = 64


class Telling:
    """The events of one agent, from its start to its end; all in the server's event loop.

    ``made`` counts the events, and how often everything was looked at.
    """

    def __init__(self, backend: Backend, pace: Pace | None = None) -> None:
        self._backend = backend
        self._pace = pace or Pace()
        self._documents = RememberedDocuments(backend.books)
        self._run = secrets.token_hex(4)
        self._ring = Ring()
        self._known: Whole | None = None
        self._seen: tuple[View | None, int] = (None, 0)
        self._observed: Observation | None = None
        self._whole: tuple[int, bytes] = (-1, b"")
        self._news = asyncio.Event()
        self._work: list[asyncio.Task[None]] = []
        self._is_over = False
        self.readers = 0
        self.made: dict[str, int] = {}

    # -------------------------------------------------------------------------------- readers

    def answer(self, request: Request) -> Response:
        """Answer with the events from now on, or from those on that the reader has."""
        if request.method == "HEAD":
            self._expect_room()
            return events_head()
        listening = self.listening(request.scope["state"]["stop"])
        return EventsAnswer(self.stream(known_id(request)), listening)

    def _expect_room(self) -> None:
        if self.readers >= self._pace.readers:
            raise Refusal(
                503,
                f"{self.readers} readers follow the events already",
                "end some of them, or let one pinfold serve feed them all",
            )

    @contextlib.contextmanager
    def listening(self, stop: asyncio.Event) -> Iterator[None]:
        """One reader more, and events are made; ``stop`` is set when the server ends.

        Raises:
            Refusal: as many listen as may.
        """
        self._expect_room()
        self.readers += 1
        try:
            if not self._work:
                self._begin(stop)
            yield
        finally:
            self.readers -= 1
            if not self.readers:
                self._end()

    async def stream(self, last_id: str) -> AsyncGenerator[bytes, None]:
        """What one reader gets until the agent stops, while he is :meth:`listening`.

        ``last_id`` is that of the last event that he knows; he begins with all there is where it is
        "" or not kept any more.
        """
        yield pause(self._pace.back)
        at = self._known_number(last_id)
        while not self._is_over:
            if at is None or self._known is None or not self._ring.has_all_after(at):
                at, text = self._all()
            else:
                at, text = self._ring.after(at)
            if text := text or await self._something():
                yield text
        yield remark("the agent is stopping")

    def _known_number(self, last_id: str) -> int | None:
        run, _, number = last_id.rpartition("-")
        if run != self._run or not (number.isascii() and number.isdecimal() and len(number) < 16):
            return None
        return int(number)

    async def _something(self) -> bytes:
        """Wait for the next event; a remark, that the connection is alive."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.alive):
                await self._news.wait()
                return b""
        return remark("alive")

    def _all(self) -> tuple[int, bytes]:
        """Where a reader begins: made once for all who begin at the same moment."""
        number, text = self._whole
        if number != self._ring.number:
            number = self._ring.number
            known = self._known = self._known or self._look()
            seen = self._observed or UNSET
            whole = apply(known, Event(id="", at=0.0, kind="observed", observed=seen))
            text = self._text(Event(id=self._id(number), at=self._now(), kind="whole", whole=whole))
            self._whole = number, text
        return number, text

    # --------------------------------------------------------------------------- what is told

    def _begin(self, stop: asyncio.Event) -> None:
        """Look and tell from now on."""
        self._is_over = stop.is_set()
        # What has changed while nobody listened is one change.
        self._tell_changes()
        # Counters and the time are of no change, and have gone on all the same.
        self._whole = (-1, b"")
        self._observed = self._observe()
        work = {
            "changes": self._changes(),
            "observed": self._observations(),
            "end": self._until(stop),
        }
        self._work = [asyncio.create_task(do, name=f"events: {name}") for name, do in work.items()]
        for task in self._work:
            task.add_done_callback(self._has_ended)

    def _end(self) -> None:
        for task in self._work:
            task.cancel()
        self._work = []

    async def _until(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._is_over = True
        self._wake()

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        """A task that failed ends the streams, whose readers come again."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("events failed", work=task.get_name(), problem=repr(error))
        self._is_over = True
        self._wake()

    async def _changes(self) -> None:
        """Tell what changes, for ever."""
        wait, parts_at, everything_at = self._pace.look, 0.0, 0.0
        while True:
            await asyncio.sleep(wait)
            began, now = time.thread_time(), asyncio.get_running_loop().time()
            if now >= everything_at:
                everything_at, self._seen = now + self._pace.everything, (None, 0)
            if now >= parts_at:
                parts_at = now + self._pace.parts
                self._tell_changes()
            elif not self._sees_nothing_new():
                self._tell_changes()
            took = time.thread_time() - began
            wait = min(max(self._pace.look, took * self._pace.for_others), self._pace.slowest)

    def _sees_nothing_new(self) -> bool:
        """Whether the books are as they were when everything was looked at."""
        books = self._backend.books
        view, changes = self._seen
        return view is books.view and changes == books.containers.seen.changes

    def _tell_changes(self) -> None:
        before = self._known
        if before is None:
            return
        now = self._known = self._look()
        change = difference(before, now)
        if change is not None:
            self._tell("changed", changed=change)

    def _look(self) -> Whole:
        """How the node is now, without the load of its containers."""
        backend, books, before = self._backend, self._backend.books, self._known
        about = backend.about()
        if before is not None and self._sees_nothing_new():
            return replace(before, status=replace(before.status, agent=about))
        self._seen = books.view, books.containers.seen.changes
        status = self._documents.status(about, backend.settings())
        machine = backend.machine() if before is None else before.machine
        return Whole(status=status, machine=machine, node=backend.node())

    async def _observations(self) -> None:
        """Tell what containers do, for ever."""
        if (observation := self._backend.observation) is None:
            return
        told = observation.readings
        while True:
            if observation.readings == told:
                await observation.until_read()
            told, began = observation.readings, time.thread_time()
            self._observed = self._observe()
            self._tell("observed", observed=self._observed)
            await asyncio.sleep((time.thread_time() - began) * self._pace.for_others)

    def _observe(self) -> Observation | None:
        observation = self._backend.observation
        if observation is None:
            return None
        return observation_document(observation, self._backend.books, history=False)

    def _tell(
        self,
        kind: str,
        changed: Changed | None = None,
        observed: Observation | None = None,
    ) -> None:
        number = self._ring.next
        event = Event(
            id=self._id(number),
            at=self._now(),
            kind=kind,
            changed=changed or UNSET,
            observed=observed or UNSET,
        )
        self._ring.add(self._text(event), replaceable=kind == "observed")
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _id(self, number: int) -> str:
        return f"{self._run}-{number}"

    def _now(self) -> float:
        return self._backend.books.observers.clock()

    def _text(self, event: Event) -> bytes:
        self.made[event.kind] = self.made.get(event.kind, 0) + 1
        return written(Message(event.id, event.kind, encoded(event)))
