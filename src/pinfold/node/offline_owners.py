"""Where containers run while CPUs are offline, and that they get their own back.

When all CPUs of a cpuset go offline, the kernel lets its processes run on those of a cpuset above
it: on other owners' CPUs.  So an owner that has lost all of its CPUs goes to the shared pool, or is
frozen (:class:`OwnerOffline`), until one of them is back.  In the ledger they stay its own.  Who
shares, and has no CPU left to share, is frozen as well.

Sources: the kernel's ``kernel/cgroup/cpuset.c`` (``hotplug_update_tasks``,
``hotplug_update_tasks_legacy``), cpuset(7).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import CPUSet
from pinfold.node.active_pod import ActivePod
from pinfold.node.recovery.survivors import may_live
from pinfold.node.settings import OwnerOffline
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.records import Batch, HistoryEntry
from pinfold.ports.runtime import ContainerState
from pinfold.retry.backoff import Backoff

if TYPE_CHECKING:
    from pinfold.node.bookkeeper import Bookkeeper

_SHORTEST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 10.0
"""Seconds until a container that could not be brought where it belongs is tried again."""


BUSY: Final = "it is being started or ended"
"""Why a container that is in other hands was not moved."""


class Whereabouts(Struct, frozen=True):
    """Where a container runs now.

    ``own`` are the CPUs that it owns, None where it owns none; ``offline`` are those of them that
    are offline; ``frozen`` tells that it does not run at all.
    """

    own: CPUSet | None
    offline: CPUSet
    frozen: bool

    @property
    def cpus(self) -> CPUSet | None:
        """Its own CPUs, None for the shared pool."""
        return None if self.is_displaced else self.own

    @property
    def is_displaced(self) -> bool:
        """Whether it owns CPUs, and none of them is online."""
        return self.own is not None and self.own == self.offline

    @property
    def place(self) -> str:
        """In words: ``shared``, ``frozen``, or ``own``."""
        if self.frozen:
            return "frozen"
        return "shared" if self.cpus is None else "own"


class OfflineOwners:
    """Follows the CPUs that are online; the books' lock is held in each call that changes.

    Args:
        books: the node's state.
    """

    def __init__(self, books: Bookkeeper) -> None:
        self._books = books
        self._changed = asyncio.Event()
        self.misplaced: dict[ContainerKey, str] = {}
        """Containers that could not be brought where they belong, with the reason."""
        self._tries: dict[ContainerKey, Backoff] = {}
        """Of those that were tried: the pause, and when it is over."""
        self._noted: dict[ContainerKey, str] = {}
        """What the history was last told of a container."""

    # ------------------------------------------------------------------------------- questions

    def of(self, pod: ActivePod, container: Container) -> Whereabouts:
        """Where a container of an active pod is to run now."""
        books = self._books
        offline = books.state.offline
        own = pod.exclusive_cpus(books.state.ledger, container)
        gone = CPUSet() if own is None else own & offline
        if own is not None and own != gone:
            return Whereabouts(own, gone, frozen=False)
        # Who is to end has to run to hear of it.
        freezes = books.settings.owner_offline is OwnerOffline.FREEZE and not pod.ending
        frozen = not books.pool or (own is not None and freezes)
        return Whereabouts(own, gone, frozen)

    def placement(self, pod: ActivePod, container: Container) -> Placement:
        """What the kernel is told about a container now."""
        where = self.of(pod, container)
        placement = self._books.containers.placement(pod, container, where.cpus)
        return replace(placement, frozen=where.frozen)

    def affected(self) -> Iterator[tuple[ActivePod, Container, Whereabouts]]:
        """The containers that own CPUs of which some are offline, or that are frozen."""
        if not self._books.state.offline:
            return
        for pod, container in self._books.pods.containers().values():
            where = self.of(pod, container)
            if where.offline or where.frozen:
                yield pod, container, where

    def problems(self) -> Iterator[str]:
        """Who is not on his CPUs, a sentence for each container."""
        for pod, container, where in self.affected():
            problem = self.misplaced.get(pod.key(container))
            if where.place != "own" or problem:
                yield f"pod {pod.name}, container {container.name}: {told(where)}" + (
                    f"; this could not be done: {problem}" if problem else ""
                )

    async def until_it_may_run(self, pod: ActivePod, container: Container) -> None:
        """Return when a container would not be frozen from its first instruction on."""
        while self.of(pod, container).frozen:
            await self._changed.wait()

    # --------------------------------------------------------------------------------- changes

    async def follow(self, offline: CPUSet) -> None:
        """Take note of the CPUs that are offline, and bring everybody where he belongs.

        Who has to leave others' CPUs goes first, and who gets its own back goes last: those were
        in nobody's cpuset meanwhile.
        """
        books = self._books
        if offline == books.state.offline:
            return
        before = {key: self._signature(*one) for key, one in books.pods.containers().items()}
        self._noted = {key: text for key, text in self._noted.items() if key in before}
        has_pool = not books.pool.isdisjoint(books.machine - offline)
        books.state = replace(books.state, offline=offline)
        self._changed.set()
        self._changed = asyncio.Event()
        changed = {
            key: (*one, self.of(*one))
            for key, one in books.pods.containers().items()
            if self._signature(*one) != before[key]
        }
        if not has_pool:
            # Nobody can be moved into a pool that has lost all of its CPUs.
            await books.grow_pool()
        leaving = {key for key, (_, _, where) in changed.items() if where.place != "own"}
        for key in leaving:
            await self._bring(key, *changed[key])
        await books.grow_pool()
        for key in changed.keys() - leaving:
            await self._bring(key, *changed[key])

    def _signature(self, pod: ActivePod, container: Container) -> object:
        where = self.of(pod, container)
        return where.place, where.offline

    async def _bring(
        self, key: ContainerKey, pod: ActivePod, container: Container, where: Whereabouts
    ) -> None:
        """Bring a container where it belongs, or take note that it is not there."""
        books = self._books
        status = pod.statuses.get(container.name)
        if status is None or status.state is ContainerState.EXITED:
            return self._drop(key)  # who starts it looks where it belongs
        if pod.busy == container.name:
            # Who starts it may have looked before.
            self._drop(key)
            self.misplaced[key] = BUSY
            return None
        try:
            await books.containers.adopt(status, self.placement(pod, container))
        except PortError as error:
            if not may_live(books.containers.cgroups, status):
                return self._drop(key)  # it has ended
            self._put_off(key)
            books.counters.cgroup_failures += 1
            if self.misplaced.get(key) != str(error):
                books.observers.report(pod.name, f"container {container.name}: {error}")
            self.misplaced[key] = str(error)
        else:
            self._drop(key)
        return await self._note(pod, container, where)

    async def settle(self) -> None:
        """Try again what could not be done, each the more rarely the longer it cannot be.

        An attempt may take seconds, in which nobody else can change the books.
        """
        now = asyncio.get_running_loop().time()
        due = [
            key for key in self.misplaced if key not in self._tries or self._tries[key].due <= now
        ]
        if not due:
            return
        async with self._books.lock:
            containers = self._books.pods.containers()
            for key in due:
                if key in containers:
                    await self._bring(key, *containers[key], self.of(*containers[key]))
                else:
                    self._drop(key)

    def _drop(self, key: ContainerKey) -> None:
        self.misplaced.pop(key, None)
        self._tries.pop(key, None)

    def _put_off(self, key: ContainerKey) -> None:
        self._tries.setdefault(key, Backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE)).failed()

    async def wake(self, pod: ActivePod) -> None:
        """Let the containers of a pod that is to end go on, so that they hear of it."""
        for container in pod.workload.pod.all_containers:
            if self.of(pod, container).is_displaced:
                await self._bring(pod.key(container), pod, container, self.of(pod, container))

    async def _note(self, pod: ActivePod, container: Container, where: Whereabouts) -> None:
        """Tell the operator, and write it into the history, where it is anything new."""
        books = self._books
        document = {
            "container": container.name,
            "cpus": "" if where.own is None else str(where.own),
            "offline": str(where.offline),
            "place": where.place,
            "problem": self.misplaced.get(pod.key(container), ""),
        }
        kind = "displaced" if where.offline or where.frozen else "returned"
        text = json.dumps(document)
        if self._noted.get(pod.key(container)) == text:
            return
        self._noted[pod.key(container)] = text
        books.observers.report(pod.name, f"container {container.name}: {told(where)}")
        entry = HistoryEntry(books.observers.clock(), kind, pod.uid, pod.name, text)
        try:
            await books.store.commit(Batch(history=(entry,)))
        except PortError as error:
            books.observers.report(pod.name, str(error))


def told(where: Whereabouts) -> str:
    """Where a container runs, as a sentence."""
    if where.own is None:
        if where.frozen:
            return "every CPU of the shared pool is offline; it is frozen until one is back"
        return "it runs in the shared pool again"
    if not where.offline:
        return f"its CPUs {where.own} are online again, and it runs on them"
    if not where.is_displaced:
        left = where.own - where.offline
        return f"of its CPUs {where.own}, {where.offline} are offline; it runs on {left}"
    what = "is frozen" if where.frozen else "runs in the shared pool"
    return f"its CPUs {where.own} are offline; it {what} until one of them is back"
