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
from collections.abc import Iterator
from typing import Final, Protocol

from pinfold.core.pod.pod import Container
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.history import Displaced
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.node_containers import NodeContainers, may_live
from pinfold.node.observers import Observers
from pinfold.node.view import Reader, View, Whereabouts
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.records import HistoryEntry
from pinfold.ports.runtime import ContainerState
from pinfold.retry.backoff import Backoff

_SHORTEST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 10.0
"""Seconds until a container that could not be brought where it belongs is tried again."""

BUSY: Final = "it is being started or ended"
"""Why a container that is in other hands was not moved."""


class Change(Protocol):
    """A change of the books that is being made; see :class:`pinfold.node.books.Draft`."""

    def take_offline(self, cpus: CPUSet) -> None:
        """These CPUs are offline."""

    async def grow_pool(self) -> None:
        """Let the shared containers have CPUs that came back."""

    def entry(self, kind: str, pod: tuple[str, str], document: Displaced) -> HistoryEntry:
        """An entry of the history."""

    async def tell(self, *entries: HistoryEntry) -> None:
        """Write into the history."""


class OfflineOwners:
    """Follows the CPUs that are online; each call that changes something is part of a change."""

    def __init__(self, books: Reader, containers: NodeContainers, observers: Observers) -> None:
        self._books = books
        self._containers = containers
        self._observers = observers
        self._changed = asyncio.Event()
        self.misplaced: dict[ContainerKey, str] = {}
        """Containers that could not be brought where they belong, with the reason."""
        self._tries: dict[ContainerKey, Backoff] = {}
        """Of those that were tried: the pause, and when it is over."""
        self._noted: dict[ContainerKey, Displaced] = {}
        """What the history was last told of a container."""

    # ------------------------------------------------------------------------------- questions

    def problems(self) -> Iterator[str]:
        """Who is not on his CPUs, a sentence for each container."""
        view, left = self._books.view, dict(self.misplaced)
        for pod, container, where in view.affected():
            problem = left.pop(pod.key(container), "")
            if where.place != "own" or problem:
                yield f"pod {pod.name}, container {container.name}: {told(where)}" + (
                    f"; this could not be done: {problem}" if problem else ""
                )
        containers = view.pods.containers()
        for key in left.keys() & containers.keys():
            name = containers[key][0].name
            yield f"pod {name}, container {key.name}: it is not where it belongs: {left[key]}"

    async def until_it_may_run(self, uid: str, container: Container) -> None:
        """Return when a container would not be frozen from its first instruction on."""
        while (view := self._books.view).where(view.pods.active[uid], container).frozen:
            await self._changed.wait()

    def due(self) -> list[ContainerKey]:
        """Who is to be tried again now, each the more rarely the longer it cannot be."""
        now = asyncio.get_running_loop().time()
        tries = self._tries
        return [key for key in self.misplaced if key not in tries or tries[key].due <= now]

    # --------------------------------------------------------------------------------- changes

    async def follow(self, change: Change, offline: CPUSet) -> None:
        """Take note of the CPUs that are offline, and bring everybody where he belongs.

        Who has to leave others' CPUs goes first, and who gets its own back goes last: those were
        in nobody's cpuset meanwhile.
        """
        old = self._books.view
        if offline == old.state.offline:
            return
        before = {key: _signature(old, *one) for key, one in old.pods.containers().items()}
        self._noted = {key: one for key, one in self._noted.items() if key in before}
        change.take_offline(offline)
        view = self._books.view
        self._changed.set()
        self._changed = asyncio.Event()
        changed = {
            key: (*one, view.where(*one))
            for key, one in view.pods.containers().items()
            if _signature(view, *one) != before[key]
        }
        if old.pool.isdisjoint(view.machine - offline):
            # Nobody can be moved into a pool that has lost all of its CPUs.
            await change.grow_pool()
        leaving = {key for key, (_, _, where) in changed.items() if where.place != "own"}
        for key in leaving:
            await self._bring(change, key, *changed[key])
        await change.grow_pool()
        for key in changed.keys() - leaving:
            await self._bring(change, key, *changed[key])

    async def _bring(
        self,
        change: Change,
        key: ContainerKey,
        pod: AdmittedPod,
        container: Container,
        where: Whereabouts,
    ) -> None:
        """Bring a container where it belongs, or take note that it is not there."""
        is_away = where.place != "own" or bool(where.offline)
        # Of who is only tried again, and never was away, there is no return to tell.
        is_told = is_away or key in self._noted or key not in self.misplaced
        seen = self._containers.seen
        status = seen.statuses.get(key)
        if status is None or status.state is ContainerState.EXITED:
            return self._drop(key)  # who starts it looks where it belongs
        if key in seen.busy:
            # Who starts it may have looked before.
            self._drop(key)
            return self.misplace(key, BUSY)
        try:
            now = self._books.view.where(pod, container)
            await self._containers.adopt(status, self._containers.placement(pod, container, now))
        except PortError as error:
            if not may_live(self._containers.cgroups, status):
                return self._drop(key)  # it has ended
            self._put_off(key)
            self._books.counters.cgroup_failures += 1
            if self.misplaced.get(key) != str(error):
                self._observers.report(pod.name, f"container {container.name}: {error}")
            self.misplace(key, str(error))
        else:
            self._drop(key)
        if is_told:
            await self._note(change, pod, container, where)
        return None

    async def settle(self, change: Change) -> None:
        """Try again what could not be done.

        An attempt may take seconds, in which nobody else can change the books.
        """
        view = self._books.view
        containers = view.pods.containers()
        for key in self.due():
            if key in containers:
                one = containers[key]
                await self._bring(change, key, *one, view.where(*one))
            else:
                self._drop(key)

    def misplace(self, key: ContainerKey, problem: str) -> None:
        """A container could not be brought where it belongs, and is tried again."""
        self.misplaced[key] = problem

    def _drop(self, key: ContainerKey) -> None:
        self.misplaced.pop(key, None)
        self._tries.pop(key, None)

    def _put_off(self, key: ContainerKey) -> None:
        self._tries.setdefault(key, Backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE)).failed()

    async def wake(self, change: Change, uid: str) -> None:
        """Let the containers of a pod that is to end go on, so that they hear of it."""
        pod = self._books.view.pods.active[uid]
        for container in pod.workload.pod.all_containers:
            where = self._books.view.where(pod, container)
            if where.is_displaced:
                await self._bring(change, pod.key(container), pod, container, where)

    async def _note(
        self, change: Change, pod: AdmittedPod, container: Container, where: Whereabouts
    ) -> None:
        """Tell the operator, and write it into the history, where it is anything new."""
        document = Displaced(
            container=container.name,
            cpus="" if where.own is None else str(where.own),
            offline=str(where.offline),
            place=where.place,
            problem=self.misplaced.get(pod.key(container), ""),
        )
        kind = "displaced" if where.offline or where.frozen else "returned"
        if self._noted.get(pod.key(container)) == document:
            return
        self._noted[pod.key(container)] = document
        self._observers.report(pod.name, f"container {container.name}: {told(where)}")
        await change.tell(change.entry(kind, (pod.uid, pod.name), document))


def _signature(view: View, pod: AdmittedPod, container: Container) -> object:
    where = view.where(pod, container)
    return where.place, where.offline


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
