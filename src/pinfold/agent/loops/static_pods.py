"""The pods of the watched manifests folder: those that run are those that are in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Iterator, Mapping
from operator import is_
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from pinfold.adapters.kubernetes.manifest_folder import ManifestFolder, StaticPod
from pinfold.admission.quota import FORBIDDEN
from pinfold.agent.claims import ClaimKeeper
from pinfold.agent.loops.folder_objects import FolderObjects
from pinfold.agent.loops.runnables import Runnable
from pinfold.core.classes.names import with_class_resources
from pinfold.core.devices.devices import DeviceInventory
from pinfold.core.pod.api import PodError
from pinfold.core.pod.manifest.workload_api import workload_from_api
from pinfold.core.pod.pod import Pod, container_limits
from pinfold.node.pod_table import NameTakenError, UnknownPodError
from pinfold.node.pods.manager import Manager
from pinfold.node.pods.quotas import let_in
from pinfold.ports.errors import PortError
from pinfold.ports.records import UNHEALTHY_DEVICE, PodPhase, PodRecord
from pinfold.retry.loops import Loops

LOOK_PERIOD: Final = 0.25
"""Seconds between looks at the manifests."""

PATIENCE: Final = 1.0
"""Seconds that the others wait for one pod, whose device plugin may take its time."""

log = structlog.get_logger("pinfold")


class Apply(Protocol):
    """Admits the pod of a manifest."""

    def __call__(self, manifest: Mapping[str, Any], *, source: str) -> Awaitable[PodRecord]:
        """See :meth:`pinfold.agent.pods.Pods.apply`."""


class StaticPods:
    """Follows one folder (or one file), and lets ``apply`` admit the pod of each manifest."""

    def __init__(self, path: Path, manager: Manager, apply: Apply) -> None:
        self._folder = ManifestFolder(path)
        self.objects = FolderObjects(self._folder, manager.books)
        self._manager = manager
        self._apply = apply
        self._source = str(path)
        self._admitting: dict[str, asyncio.Task[None]] = {}
        self._behind = False
        self._unread: frozenset[Path] | None = None
        self._unknown: frozenset[str] = frozenset()
        self._refused: list[PortError] = []
        self._inventory: DeviceInventory | None = None
        self._offered: Mapping[str, int] = {}
        self._looked_at: tuple[object, object] | None = None

    async def look(self) -> None:
        """Make the pods of the folder those that run, and end those that left it.

        Raises:
            ManifestError: nobody knows what is in the folder; its pods stay.
            PortError: a pod could not be admitted or released; the next look tries again.
            UnknownPodError: it has gone by itself.
        """
        self._refused.clear()
        for uid, task in list(self._admitting.items()):
            if self._is_over(uid, task) and uid not in self._folder.pods:
                await self._manager.release(uid)
        if self._folder.changes():
            problems = await asyncio.to_thread(self._folder.read)
            self._behind = True
            for file, problem in problems.items():
                log.error("manifest", file=str(file), problem=problem)
            if self._unread is None:
                self._begin_with(frozenset(problems))
        if self._behind or self.objects.is_behind:
            await self._follow()
            self._behind = False
        for pod in (*self._served(), *self._let_in()):
            if not self.objects.holds_back(pod):
                await self._begin(pod)
        if self._refused:
            # What is in the way is none of the manifest's: it is tried again.
            self._behind = True
            raise self._refused[0]

    def _begin_with(self, unread: frozenset[Path]) -> None:
        """Of a file that cannot be used when the agent starts, nobody knows which pods it had."""
        self._unread = unread
        if unread:
            self._unknown = frozenset(self._ours() - self._folder.pods.keys())

    def _ours(self) -> set[str]:
        return {r.uid for r in self._manager.books.view.pods.records() if r.source == self._source}

    async def _follow(self) -> None:
        # Quotas come first: no pod of the folder may slip in before the one that limits it.
        all_known = all(self._folder.is_known(file) for file in self._unread or ())
        await self.objects.follow(all_known=all_known)
        wanted, ours = self._folder.pods, self._ours()
        if all_known:
            self._unknown = frozenset()
        for uid in ours - wanted.keys() - self._unknown:
            await self._manager.release(uid)
        for uid, pod in wanted.items():
            if uid not in ours and not self.objects.holds_back(pod):
                await self._begin(pod)

    def _let_in(self) -> list[StaticPod]:
        """Pods that a quota refused, and would no more."""
        view, looked_at = self._manager.books.view, self._looked_at
        self._looked_at = (view.objects, view.pods)
        if looked_at is not None and all(map(is_, looked_at, self._looked_at)):
            return []
        classes = view.state.devices.classes.names
        refused = {
            record.uid: _pod_of(self._folder.pods[record.uid], classes)
            for record in view.pods.ended.values()
            if record.reason == FORBIDDEN
            and record.phase is PodPhase.REJECTED
            and record.uid in self._folder.pods
        }
        if not refused:
            return []
        found = let_in(view, refused.values(), self._manager.books.observers.clock)
        again = [self._folder.pods[pod.uid] for pod in found]
        for pod in again:
            log.info("again", pod=refused[pod.uid].name, reason=FORBIDDEN)
        return again

    def _served(self) -> Iterator[StaticPod]:
        """Yield pods that came before the plugin of a device did."""
        devices = self._manager.books.view.state.devices
        if devices.inventory is self._inventory:
            return
        before, classes = self._offered, devices.classes.names
        self._inventory = devices.inventory
        self._offered = {**devices.allocatable(), **devices.class_allocatable()}
        more = {name for name, count in self._offered.items() if count > before.get(name, 0)}
        for record in self._manager.books.view.pods.records():
            pod = self._folder.pods.get(record.uid)
            if (
                pod is not None
                and _never_ran(record)
                and not more.isdisjoint(_wishes(pod, classes))
            ):
                log.info("again", pod=record.name, reason=record.reason)
                yield pod

    async def _begin(self, pod: StaticPod) -> None:
        """Admit a pod; the order of the files counts, but not for ever."""
        if pod.uid not in self._admitting:
            task = asyncio.create_task(self._admit(pod), name=f"admit {pod.uid}")
            self._admitting[pod.uid] = task
            await asyncio.wait({task}, timeout=PATIENCE)
            self._is_over(pod.uid, task)

    def _is_over(self, uid: str, task: asyncio.Task[None]) -> bool:
        """Whether an admission has ended; why it has to be tried again is kept."""
        if not task.done():
            return False
        del self._admitting[uid]
        error = task.exception()
        if isinstance(error, PortError):
            self._refused.append(error)
        elif error is not None:
            raise error
        return True

    async def close(self) -> None:
        """Admit nobody any more; returns when those who were to be are let go of."""
        tasks = list(self._admitting.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _admit(self, pod: StaticPod) -> None:
        try:
            record = await self._apply(pod.manifest, source=self._source)
        except (PodError, NameTakenError, UnknownPodError) as error:
            log.error("manifest", file=str(pod.file), problem=str(error))
            return
        if record.message:
            log.warning("rejected", pod=record.name, reason=record.reason, message=record.message)


def static_pods(
    path: Path | None, manager: Manager, apply: Apply, claim: ClaimKeeper, loops: Loops
) -> Iterator[Runnable]:
    """Keeps the pods those of the folder, if there is one, while the containers are ours.

    Apart from the other looks: a pod that left the folder may take long to end.
    """
    if path is None:
        return
    pods = StaticPods(path, manager, apply)

    async def run() -> None:
        while True:
            if claim.is_had:
                await loops.attempt("manifests", pods.look)
            await asyncio.sleep(LOOK_PERIOD)

    yield Runnable("looks at manifests", run, problem=pods.objects.problem, close=pods.close)


def _never_ran(record: PodRecord) -> bool:
    """Whether a pod was rejected, or ended before any of it ran; what it lacked may be a device."""
    if record.phase is PodPhase.REJECTED:
        return True
    has_run = record.exit_codes or record.restarts or record.reason == UNHEALTHY_DEVICE
    return record.phase is PodPhase.FAILED and record.message is not None and not has_run


def _wishes(pod: StaticPod, classes: Collection[str]) -> Iterable[str]:
    """The resources that it asks for."""
    return container_limits(_pod_of(pod, classes))


def _pod_of(pod: StaticPod, classes: Collection[str]) -> Pod:
    manifest = with_class_resources(pod.manifest, classes)
    return workload_from_api(manifest, admitted=True).pod
