"""What goes on beside an agent's API: the period, the looks, the watch, its companions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final

import structlog

from pinfold.adapters.systemd.notify import Notifier
from pinfold.agent.claim_keeper import ClaimKeeper
from pinfold.agent.cpu_follower import CPUFollower
from pinfold.agent.hugepages import HugepageFollower
from pinfold.agent.parts import Companion, Ports
from pinfold.agent.record_watch import follow_record
from pinfold.agent.static_pods import StaticPods
from pinfold.node.pods.manager import Manager
from pinfold.node.reconciler import reconcile
from pinfold.planning.planner import Planner
from pinfold.ports.cgroups import Cgroups, Watchful
from pinfold.ports.errors import PortError
from pinfold.retry.loops import Loops

LOOK_PERIOD: Final = 0.25
"""Seconds between looks at manifests, online CPUs and huge pages; they take some 100 us."""

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

    Args:
        loops: where it all goes through.
        planner: the machine and its configuration.
        manager: the node.
        companions: what else goes on.
        claim: keeps what the agent has for itself.
        cpus: follows the CPUs that are online.
        pages: follows the huge pages.
        static_pods: follows the folder of manifests; None where there is none.
    """

    def __init__(  # noqa: PLR0913 - the parts, one each
        self,
        loops: Loops,
        planner: Planner,
        manager: Manager,
        companions: Sequence[Companion],
        *,
        claim: ClaimKeeper,
        cpus: CPUFollower,
        pages: HugepageFollower,
        static_pods: StaticPods | None,
    ) -> None:
        self._loops = loops
        self._planner = planner
        self._manager = manager
        self._companions = companions
        self._claim = claim
        self._cpus = cpus
        self._pages = pages
        self._static_pods = static_pods

    def begin(
        self, ports: Ports, notifier: Notifier, stop: asyncio.Event
    ) -> Iterator[asyncio.Task[None]]:
        """Begin it all, each as a task that ends with the agent.

        One that raises is worth the agent's end: what the configuration asks for cannot be had.
        """

        async def exits() -> None:
            await self._manager.exits.follow(ports.runtime.exits())

        own: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "exits": exits,
            "reconcile": self._reconcile_for_ever,
            "look": self._look_for_ever,
            HOTPLUG: self._cpus.run,
            WATCH: partial(self._watch_for_ever, ports.cgroups),
            "record": partial(follow_record, self._manager.store),
            "watchdog": partial(self._sign_of_life, notifier),
        }
        if self._static_pods is not None:
            own["looks at manifests"] = partial(self._look_at_manifests, self._static_pods)
        for name, work in own.items():
            yield asyncio.create_task(self._loops.keep(name, work), name=name)
        for one in self._companions:
            for name, run in ((one.name, one.run), *one.also.items()):
                fatal = (PortError,) if one.must_start and run is one.run else ()
                kept = self._loops.keep(name, partial(run, stop), fatal=fatal)
                yield asyncio.create_task(kept, name=name)

    async def _reconcile_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._period)
            await self._repair()

    async def _repair(self) -> None:
        # In the tree of another agent all containers would be some that nobody knows.
        if await self._loops.attempt(CLAIM, self._claim.look):
            await self._loops.attempt("reconcile", reconcile, self._manager)

    async def _watch_for_ever(self, cgroups: Cgroups) -> None:
        """Repair at once what somebody else changes; the period does what is not noticed."""
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
        async for _ in cgroups.changes():
            await self._repair()
            # Somebody who writes all the time is answered ten times a second.
            await asyncio.sleep(0.1)

    @property
    def _period(self) -> float:
        return self._planner.config.cpu_manager_reconcile_period or 10.0

    async def _look_for_ever(self) -> None:
        while True:
            if await self._loops.attempt(CLAIM, self._claim.look):
                await self._loops.attempt("online CPUs", self._cpus.look)
            await self._loops.attempt("huge pages", self._pages.look)
            await asyncio.sleep(LOOK_PERIOD)

    async def _look_at_manifests(self, pods: StaticPods) -> None:
        """Apart from the other looks: a pod that left the folder may take long to end."""
        while True:
            if self._claim.is_had:
                await self._loops.attempt("manifests", pods.look)
            await asyncio.sleep(LOOK_PERIOD)

    async def _sign_of_life(self, notifier: Notifier) -> None:
        while True:
            notifier.alive()
            await asyncio.sleep(notifier.watchdog or 3600.0)
