"""What is gone without anybody having been told keeps no CPUs.

A runtime tells each event to the plugins that are registered at that moment, and a new plugin what
there is at another: containerd 1.7 tells nobody of what ends in between.  It also tells nobody that
a pod was stopped or removed which is older than containerd's own process.  So what is known is
compared with what exists, time and again, and what is missing twice in a row is over.

With a listing (over the CRI) the runtime itself says what exists.  Without one the kernel does: a
pod whose sandbox's process is gone is over, a container without its process has ended.  In both
cases a container whose cgroup has processes keeps its CPUs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Final

from msgspec import Struct

from pinfold.node.nri.events import PluginEvents
from pinfold.node.nri.lifecycle import ContainerLifecycle
from pinfold.node.nri.runtime_pod import RuntimePod
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.ports.nri import (
    Container,
    ContainerState,
    Existing,
    RuntimeListing,
)

PERIOD: Final = 5.0
"""Seconds between two looks; what is missing is let go of at the second."""


class _Fate(Enum):
    """What has become of a sandbox or a container."""

    REMOVED = "is gone"
    STOPPED = "has ended"
    UNTOLD = "is there"


class _Lost(Struct, frozen=True):
    """A sandbox or a container (by id), and what nobody was told of it.

    ``cgroups`` are the containers that have no processes any more when this is so.
    """

    id: str
    fate: _Fate
    cgroups: frozenset[ContainerKey] = frozenset()
    runtime_pod: RuntimePod | None = None
    container: Container | None = None

    @property
    def key(self) -> tuple[str, _Fate]:
        """What has to be found twice."""
        return self.id, self.fate


class LostRemovals:
    """Looks for what is gone, and tells those who were not told.

    Args:
        events: who keeps what is known, and is told in the runtime's place.
        containers: what is known.
        listing: what the runtime has; None: the kernel is asked.
        register_again: has the runtime tell of everything, as it has containers that it has not
            told of; returns whether that could be done.
        period: seconds between two looks.
    """

    def __init__(
        self,
        events: PluginEvents,
        containers: ContainerLifecycle,
        *,
        listing: RuntimeListing | None,
        register_again: Callable[[str], bool],
        period: float = PERIOD,
    ) -> None:
        self._events = events
        self._containers = containers
        self._listing = listing
        self._register_again = register_again
        self._period = period
        self._suspected: set[tuple[str, _Fate]] = set()
        self._began: dict[str, int] = {}
        self._untold: set[str] = set()
        self._problem = ""

    async def run(self) -> None:
        """Look, for ever."""
        while True:
            await asyncio.sleep(self._period)
            try:
                await self.look()
            except PortError as error:
                # While nobody says what exists, nothing is missing.
                self._suspected.clear()
                if self._problem != str(error):
                    self._problem = str(error)
                    self._report(None, f"what is gone cannot be looked for: {error}")
            else:
                self._problem = ""

    async def look(self) -> None:
        """Look once, and let go of what was missing the last time as well.

        Raises:
            PortError: nobody says what there is.
        """
        pods = list(self._containers.pods.by_uid.values())
        # Whoever comes while it is listed is not missing.
        known = {runtime_pod.sandbox.id: dict(runtime_pod.containers) for runtime_pod in pods}
        there = await self._existing(pods)
        lost = {
            one.key: one
            for runtime_pod in pods
            if runtime_pod.sandbox.id in known
            for one in self._lost(runtime_pod, known[runtime_pod.sandbox.id], there)
        }
        if self._listing is not None:
            lost |= {one.key: one for one in self._untold_of(there)}
        sure = [one for key, one in lost.items() if key in self._suspected]
        if sure:
            held = await self._held()
            sure = [one for one in sure if held.isdisjoint(one.cgroups)]
        self._suspected = lost.keys() - {one.key for one in sure}
        for one in sure:
            await self._tell(one)
        self._tell_of_untold([one.id for one in sure if one.fate is _Fate.UNTOLD])

    async def _held(self) -> set[ContainerKey]:
        """The containers in whose cgroups are processes."""
        observed = await self._containers.cgroups.observe()
        return {key for key, one in observed.containers.items() if one.populated}

    def _lost(
        self,
        runtime_pod: RuntimePod,
        containers: Mapping[str, Container],
        there: Existing,
    ) -> Iterator[_Lost]:
        uid, creating = runtime_pod.sandbox.uid, self._events.creating
        up = there.sandboxes.get(runtime_pod.sandbox.id)
        if not up and not any(
            one.id in creating or there.containers.get(one.id) for one in containers.values()
        ):
            cgroups = frozenset(ContainerKey(uid, name) for name in containers)
            if up is None:
                yield _Lost(runtime_pod.sandbox.id, _Fate.REMOVED, cgroups, runtime_pod)
            elif uid in self._containers.books.view.pods.active:
                yield _Lost(runtime_pod.sandbox.id, _Fate.STOPPED, cgroups, runtime_pod)
            return
        for name, one in containers.items():
            runs = there.containers.get(one.id)
            if one.id in creating or runs:
                continue
            cgroups = frozenset({ContainerKey(uid, name)})
            if runs is None:
                yield _Lost(one.id, _Fate.REMOVED, cgroups, runtime_pod, one)
            elif one.state is not ContainerState.STOPPED:
                yield _Lost(one.id, _Fate.STOPPED, cgroups, runtime_pod, one)

    def _untold_of(self, there: Existing) -> Iterator[_Lost]:
        known = {
            one.id
            for runtime_pod in self._containers.pods.by_uid.values()
            for one in runtime_pod.containers.values()
        }
        for container, runs in there.containers.items():
            if runs and container not in known:
                yield _Lost(container, _Fate.UNTOLD)

    async def _tell(self, lost: _Lost) -> None:
        runtime_pod, one = lost.runtime_pod, lost.container
        if runtime_pod is None:
            return
        what = "the pod" if one is None else f"container {one.name} ({one.id[:12]})"
        if runtime_pod.containers or one is not None:
            self._report(runtime_pod.name, f"{what} {lost.fate.value}, and nobody was told")
        if one is not None and lost.fate is _Fate.STOPPED:
            self._containers.stop(runtime_pod.sandbox, one)
        elif one is not None:
            await self._events.remove_container(runtime_pod.sandbox, one)
        elif lost.fate is _Fate.STOPPED:
            await self._events.stop_pod_sandbox(runtime_pod.sandbox)
        else:
            await self._events.remove_pod_sandbox(runtime_pod.sandbox)

    def _tell_of_untold(self, ids: list[str]) -> None:
        """Have the runtime tell of containers, once for each."""
        news = set(ids) - self._untold
        some = ", ".join(one[:12] for one in sorted(news)[:3])
        why = f"the runtime has {len(news)} containers that it has not told of, such as {some}"
        if news and self._register_again(why):
            self._untold |= news

    # ------------------------------------------------------------------------------- what exists

    async def _existing(self, pods: list[RuntimePod]) -> Existing:
        if self._listing is not None:
            return await self._listing.existing()
        sandboxes, containers = {}, {}
        began: dict[str, int] = {}
        for runtime_pod in pods:
            sandbox = runtime_pod.sandbox
            if not self._has_process(sandbox.id, sandbox.pid, began):
                continue  # nor has it containers, unless there are processes in their cgroups
            sandboxes[sandbox.id] = True
            for name, one in runtime_pod.containers.items():
                pid = self._containers.table.pid_of(ContainerKey(sandbox.uid, name))
                containers[one.id] = self._has_process(one.id, pid, began)
        self._began = began  # not where nobody says what there is
        return Existing(sandboxes, containers)

    def _has_process(self, owner: str, pid: int | None, began: dict[str, int]) -> bool:
        """Whether a process is still the one that it was at first; unknown ones are there."""
        if not pid:
            return True
        now = self._containers.cgroups.began(pid)
        at_first = self._began.get(owner, now)
        if at_first is not None:
            began[owner] = at_first
        return now is not None and now == at_first

    def _report(self, pod: str | None, problem: str) -> None:
        self._containers.books.observers.report(pod, problem)
