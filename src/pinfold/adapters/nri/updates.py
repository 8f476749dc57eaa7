"""Unsolicited changes of containers, kept from crossing with the runtime's questions.

A runtime has one lock for NRI: while it waits for the answer to an event, it carries out no
UpdateContainers, and while it carries one out it asks nothing.  So a change that is asked for
inside an event's handler must wait until the answer is out; and one that was on its way when an
event came is carried out *after* the answer, although it was decided before: what the answer said
of the same containers is then told once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from google.protobuf.message import DecodeError
from msgspec import Struct, field

from pinfold.adapters.nri import nri_pb2 as wire
from pinfold.adapters.nri.counters import PluginCounters
from pinfold.adapters.nri.messages import update_messages
from pinfold.adapters.nri.session import Session
from pinfold.ports.errors import RuntimeFailedError
from pinfold.ports.nri import ContainerUpdate

_RUNTIME: Final = "nri.pkg.api.v1alpha1.Runtime"


class _Turn(Struct):
    """One event, from the time that the handler is called until it returns."""

    over: bool = False


_TURN: Final[ContextVar[_Turn | None]] = ContextVar("turn", default=None)


class _Change(Struct):
    """One UpdateContainers; ``newer`` is what answers said meanwhile of the same containers."""

    ids: frozenset[str]
    sent: bool = False
    newer: dict[str, ContainerUpdate] = field(default_factory=dict)


class Updates:
    """Sends changes, one call at a time.

    A caller outside of any handler waits ``patience`` seconds at most for a question of the runtime
    to be answered: should the handler in turn wait for something that the caller holds, it gets it
    in time.  A change goes out when the runtime has asked nothing for ``pause`` seconds.
    ``report`` is told what goes wrong with changes that nobody waits for any more.
    """

    def __init__(
        self,
        counters: PluginCounters,
        report: Callable[[str], None],
        *,
        patience: float,
        pause: float,
    ) -> None:
        self._counters = counters
        self._report = report
        self._patience = patience
        self._session: Session | None = None
        self._pause = pause
        self._asked = 0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy = asyncio.Event()
        self._sending = asyncio.Lock()
        self._queued: list[ContainerUpdate] = []
        self._on_the_way: _Change | None = None
        self._tasks: set[asyncio.Task[Sequence[str]]] = set()

    # ------------------------------------------------------------------- what the runtime is doing

    def connected(self, session: Session | None) -> None:
        """The runtime that changes go to from now on; None: there is none."""
        self._session = session
        if session is None:
            self._queued.clear()  # the next Synchronize shows what is still to be done
            self._open = 0
            self._busy.clear()
            self._idle.set()

    def asked(self) -> None:
        """The runtime has begun to wait for an answer."""
        self._open += 1
        self._asked += 1
        self._idle.clear()
        self._busy.set()

    @contextmanager
    def handling(self) -> Iterator[None]:
        """Around a handler: changes asked for inside are queued."""
        turn = _Turn()
        token = _TURN.set(turn)
        try:
            yield
        finally:
            turn.over = True
            _TURN.reset(token)

    def answered(self, updates: Sequence[ContainerUpdate]) -> None:
        """An answer, with its updates, is out."""
        self._open = max(0, self._open - 1)
        change = self._on_the_way
        if change is not None and change.sent:
            change.newer |= {u.container_id: u for u in updates if u.container_id in change.ids}
        if self._open == 0:
            self._busy.clear()
            self._idle.set()
            if self._queued:
                queued, self._queued = self._queued, []
                self._start(queued).add_done_callback(self._unattended)

    # ------------------------------------------------------------------------------------ changes

    async def send(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        """Change containers (see :meth:`pinfold.ports.nri.RuntimeRecord.update`)."""
        if not updates:
            return ()
        turn = _TURN.get()
        if turn is not None and not turn.over:
            self._queued.extend(updates)
            return ()
        change = _Change(frozenset(update.container_id for update in updates))
        task = self._start(updates, change)
        stuck = asyncio.create_task(self._stuck())
        try:
            await asyncio.wait({task, stuck}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            stuck.cancel()
            if not task.done():
                if change.sent:
                    task.add_done_callback(self._unattended)
                else:
                    task.cancel()
        raise RuntimeFailedError(
            "UpdateContainers: the runtime waits for the answer to another request; "
            + ("the change is made after it" if change.sent else "nothing was changed"),
            "try again when that is answered",
        )

    def _start(
        self, updates: Sequence[ContainerUpdate], change: _Change | None = None
    ) -> asyncio.Task[Sequence[str]]:
        ids = frozenset(update.container_id for update in updates)
        task = asyncio.create_task(self._carry_out(updates, change or _Change(ids)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _stuck(self) -> None:
        """Return when a question has been open for as long as patience lasts."""
        while True:
            await self._busy.wait()
            try:
                async with asyncio.timeout(self._patience):
                    await self._idle.wait()
            except TimeoutError:
                return

    async def _quiet(self) -> None:
        """Return when the runtime has asked nothing for a moment.

        containerd 1.7 takes two locks in one order for events and in the other for updates: an
        update that meets several events in a row can stop its NRI for good.
        """
        while True:
            await self._idle.wait()
            before = self._asked
            await asyncio.sleep(self._pause)
            if self._idle.is_set() and self._asked == before:
                return

    async def _carry_out(
        self, updates: Sequence[ContainerUpdate], change: _Change
    ) -> Sequence[str]:
        failed: list[str] = []
        async with self._sending:
            await self._quiet()
            self._on_the_way = change
            try:
                try:
                    failed += await self._call(updates, change)
                finally:
                    # Also after an error: the containers before the refused one are changed.
                    if change.newer and self._session is not None:
                        again, change.newer = list(change.newer.values()), {}
                        self._counters.repeated_updates += len(again)
                        failed += await self._call(again, change)
            finally:
                self._on_the_way = None
        return failed

    async def _call(self, updates: Sequence[ContainerUpdate], change: _Change) -> Sequence[str]:
        session = self._session
        if session is None:
            raise RuntimeFailedError(
                "UpdateContainers: no runtime is connected", "wait until it is back"
            )
        try:
            request = wire.UpdateContainersRequest(update=update_messages(updates))
        except ValueError as error:
            raise RuntimeFailedError(f"UpdateContainers: {error}") from error
        change.sent = True
        # The runtime starts a process for each container, one after the other.
        limit = 10.0 + 0.2 * len(updates)
        try:
            payload = await session.call(
                _RUNTIME, "UpdateContainers", request.SerializeToString(), limit
            )
            failed = wire.UpdateContainersResponse.FromString(payload).failed
        except DecodeError as error:
            raise RuntimeFailedError(f"UpdateContainers: the answer is garbage: {error}") from error
        except RuntimeFailedError:
            self._counters.failed_updates += len(updates)
            raise
        self._counters.updates += len(updates) - len(failed)
        self._counters.failed_updates += len(failed)
        return [update.container_id for update in failed]

    def _unattended(self, task: asyncio.Task[Sequence[str]]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._report(f"a change of containers that was put off failed: {error}")
        elif task.result():
            self._report(
                "a change of containers that was put off failed for " + ", ".join(task.result())
            )

    async def close(self) -> None:
        """Let go of what is still to be sent."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
