"""What goes on beside an agent's API: the period, the looks, the watch, and what else there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from pinfold.adapters.systemd.notify import Notifier
from pinfold.agent.claims import ClaimKeeper
from pinfold.agent.loops.cpu_follower import CPUFollower
from pinfold.agent.loops.hugepages import HugepageFollower
from pinfold.agent.loops.runnables import Runnable
from pinfold.documents.status import Part
from pinfold.node.books import Books
from pinfold.node.reconciler import Drift, reconcile, return_unranked
from pinfold.planning.planner import Planner
from pinfold.ports.cgroups import Watchful
from pinfold.ports.errors import PortError
from pinfold.ports.figures import Figure
from pinfold.retry.loops import Loops

LOOK_PERIOD: Final = 0.25
"""Seconds between looks at online CPUs and huge pages; they take some 100 us."""

RECONCILE_PERIOD: Final = 10.0
"""Seconds between two looks at the kernel where the configuration says 0."""

RECORD_PERIOD: Final = 2.0
"""Seconds between two looks at the record; one is a handful of system calls while all is well."""

RECONCILE: Final = "reconcile"
"""Comparing the kernel with the record, and repairing."""

CLAIM: Final = "claim"
"""What the agent has for itself: its tree of cgroups, or the runtime whose plugin it is."""

WATCH: Final = "watch"
"""Noticing at once what others change; without it the period does."""

HOTPLUG: Final = "hotplug"
"""Hearing at once of CPUs that come and go; without it the looks find out."""

NOT_NEEDED: Final = frozenset({WATCH, HOTPLUG})
"""What may fail while the agent is ready."""

log = structlog.get_logger("pinfold")


class Background:
    """Everything that an agent does unasked, none of which may end it.

    It all goes through ``loops``; ``claim`` keeps what the agent has for itself, ``cpus`` and
    ``pages`` follow what is online and the huge pages, and ``runnables`` are what else goes on.
    """

    def __init__(  # noqa: PLR0913 - the parts, one each
        self,
        loops: Loops,
        planner: Planner,
        books: Books,
        runnables: Sequence[Runnable],
        *,
        claim: ClaimKeeper,
        cpus: CPUFollower,
        pages: HugepageFollower,
    ) -> None:
        self._loops = loops
        self._planner = planner
        self._books = books
        self._runnables = runnables
        self._claim = claim
        self.cpus = cpus
        self.pages = pages

    def begin(self, notifier: Notifier) -> Iterator[asyncio.Task[None]]:
        """Begin it all, each as a task that ends with the agent.

        One that raises is worth the agent's end: what the configuration asks for cannot be had.
        """
        own: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            RECONCILE: self._reconcile_for_ever,
            "look": self._look_for_ever,
            HOTPLUG: self.cpus.run,
            WATCH: self._watch_for_ever,
            "record": self._follow_record,
            "watchdog": partial(self._sign_of_life, notifier),
        }
        for name, work in own.items():
            yield asyncio.create_task(self._loops.keep(name, work), name=name)
        for one in self._runnables:
            for name, run in ((one.name, one.run), *one.also.items()):
                fatal = (PortError,) if one.must_start and run is one.run else ()
                yield asyncio.create_task(self._loops.keep(name, run, fatal=fatal), name=name)

    async def close(self) -> None:
        """Let go of what went on, after its tasks have ended."""
        for one in self._runnables:
            await self._loops.attempt(f"the end of {one.name}", one.close)

    def failing(self) -> list[str]:
        """What fails now, but for what a part says of itself."""
        untold = [one.problem() for one in self._runnables if one.about() is None]
        return [*self._loops.problems(), *untold]

    def problems(self) -> list[str]:
        """What keeps the agent from its work; some may be "", which is nothing."""
        problems = [one.problem() for one in self._runnables]
        return problems + self._loops.problems(besides=NOT_NEEDED)

    def figures(self) -> Iterable[Figure]:
        """What is counted of it."""
        return [*(f for one in self._runnables for f in one.figures()), *self._loops.figures()]

    def parts(self) -> list[Part]:
        """What each of its parts says of itself."""
        return [part for one in self._runnables if (part := one.about()) is not None]

    def unforeseen(self, _loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Something failed that nobody waits for, such as a connection that cannot be accepted."""
        error = context.get("exception") or RuntimeError("no exception is known")
        self._loops.note("event loop", error, doing=context["message"])

    async def reconcile(self) -> list[Drift]:
        """Look at the kernel now, and repair; raises PortError."""
        await self._claim.look()
        return await reconcile(self._books)

    async def _reconcile_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._period)
            await self._repair()

    async def _repair(self) -> None:
        # In the tree of another agent all containers would be some that nobody knows.
        if await self._loops.attempt(CLAIM, self._claim.look):
            await self._loops.attempt(RECONCILE, reconcile, self._books)

    async def _watch_for_ever(self) -> None:
        """Repair at once what somebody else changes; the period does what is not noticed."""
        cgroups = self._books.containers.cgroups
        if not isinstance(cgroups, Watchful):
            return
        while True:
            watching = asyncio.create_task(self._watch(cgroups), name=WATCH)
            again = asyncio.create_task(self._claim.again.wait(), name="tree made anew")
            try:
                done, _ = await asyncio.wait({watching, again}, return_when=asyncio.FIRST_COMPLETED)
                if watching in done:
                    watching.result()
                    return
                # A tree that was made anew has other folders than those that are watched.
                self._claim.again.clear()
            finally:
                watching.cancel()
                again.cancel()
                await asyncio.wait({watching, again})

    async def _watch(self, cgroups: Watchful) -> None:
        changed = asyncio.Event()
        repairing = asyncio.create_task(self._repair_when(changed), name="repair")
        try:
            async for _ in cgroups.changes():
                # What is lent is not right for as long as a reconciliation takes.
                await self._loops.attempt("idle side", return_unranked, self._books)
                changed.set()
        finally:
            repairing.cancel()
            await asyncio.wait({repairing})

    async def _repair_when(self, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            await self._repair()
            # Somebody who writes all the time is answered ten times a second.
            await asyncio.sleep(0.1)

    @property
    def _period(self) -> float:
        return self._planner.config.cpu_manager_reconcile_period or RECONCILE_PERIOD

    async def _look_for_ever(self) -> None:
        while True:
            if await self._loops.attempt(CLAIM, self._claim.look):
                await self._loops.attempt("online CPUs", self.cpus.look)
                if self._loops.fails(RECONCILE):
                    # What asked for it may have been noticed, and be noticed only once.
                    await self._loops.attempt(RECONCILE, reconcile, self._books)
            await self._loops.attempt("huge pages", self.pages.look)
            await asyncio.sleep(LOOK_PERIOD)

    async def _follow_record(self) -> None:
        """Know whether the record can be written, without anybody asking."""
        store, told = self._books.store, ""
        while True:
            await store.check()
            if store.problem and not told:
                log.warning("record", problem=store.problem)
            elif told and not store.problem:
                log.info("record", problem="none any more")
            told = store.problem
            await asyncio.sleep(RECORD_PERIOD)

    async def _sign_of_life(self, notifier: Notifier) -> None:
        while True:
            notifier.alive()
            await asyncio.sleep(notifier.watchdog or 3600.0)
