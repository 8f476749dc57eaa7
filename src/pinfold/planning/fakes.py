"""The node's ports in memory, for simulations and tests; cgroups have a module beside.

They pass the same contract tests as the adapters for the real world.  A simulation runs the same
node code on them; faults can be put in front of any call.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.fake_cgroups import FakeCgroups, Faults
from pinfold.ports.errors import (
    ContainerKey,
    RuntimeFailedError,
    StoreError,
)
from pinfold.ports.records import (
    Batch,
    HistoryEntry,
    NodeRecord,
    ObjectKey,
    ObjectRecord,
    PendingMove,
    PodRecord,
    Record,
)
from pinfold.ports.runtime import ContainerSpec, ContainerState, ContainerStatus
from pinfold.ports.tellers import Assignment, TellingError

KILLED = 137


class FakeRuntime:
    """Containers that are rows; ``exit`` ends one as a process would end by itself.

    It is a :class:`pinfold.ports.runtime.ProcessAdopter`, too: of rows of the fake cgroups.
    """

    def __init__(self, cgroups: FakeCgroups) -> None:
        self._cgroups = cgroups
        self._known: dict[str, ContainerStatus] = {}
        self._exits: asyncio.Queue[ContainerStatus] = asyncio.Queue()
        self._number = 0
        self.specs: dict[str, ContainerSpec] = {}
        self.faults = Faults()
        self.ignores_sigterm: set[str] = set()
        self.is_away = False
        """While it is, it starts and lists nothing."""
        self.is_late = False
        """While it is, it does not notice that main processes have ended."""
        self.ran_on: list[tuple[ContainerKey, CPUSet]] = []
        """Where each first instruction ran."""

    def reconnect(self) -> FakeRuntime:
        """The same containers, as another agent finds them."""
        again = FakeRuntime(self._cgroups)
        again._known = self._known
        again._number = self._number
        again.ran_on = self.ran_on
        again.ignores_sigterm = self.ignores_sigterm
        again.specs = dict(self.specs)
        return again

    async def create(self, spec: ContainerSpec) -> ContainerStatus:
        """See :class:`pinfold.ports.runtime.Runtime`."""
        self._fault(str(spec.key))
        self._number += 1
        pid = 1000 + self._number
        status = ContainerStatus(
            f"c{self._number}", spec.key, spec.attempt, ContainerState.CREATED, pid
        )
        self._known[status.id] = status
        self.specs[status.id] = spec
        self._cgroups.processes[pid] = None
        return status

    async def attach(
        self, spec: ContainerSpec, pid: int, start: int | None = None
    ) -> ContainerStatus:
        """See :class:`pinfold.ports.runtime.ProcessAdopter`."""
        del start
        self._fault(str(spec.key))
        status = ContainerStatus(f"p{pid}", spec.key, spec.attempt, ContainerState.RUNNING, pid)
        self._known[status.id] = status
        self.specs[status.id] = spec
        self._cgroups.processes[pid] = None
        return status

    async def start(self, container_id: str) -> ContainerStatus:
        """See :class:`pinfold.ports.runtime.Runtime`."""
        status = self._status(container_id)
        self._fault(str(status.key))
        if status.pid is None or status.pid not in self._cgroups.processes:
            raise RuntimeFailedError(f"{status.key}: the process is gone")
        self.ran_on.append((status.key, self._cgroups.allowed(status.pid)))
        status = replace(status, state=ContainerState.RUNNING, started_at=0.0)
        self._known[container_id] = status
        return status

    async def signal(self, container_id: str, signal: int) -> None:
        """See :class:`pinfold.ports.runtime.Runtime`."""
        status = self._known.get(container_id)
        if status is None:
            return
        self._fault(str(status.key))
        if container_id not in self.ignores_sigterm:
            self.exit(container_id, 128 + signal)

    async def remove(self, container_id: str) -> None:
        """See :class:`pinfold.ports.runtime.Runtime`."""
        status = self._known.get(container_id)
        if status is None:
            return
        self._fault(str(status.key))
        self.exit(container_id, KILLED)
        del self._known[container_id]

    async def containers(self) -> Sequence[ContainerStatus]:
        """See :class:`pinfold.ports.runtime.Runtime`."""
        self._be_there()
        return self.known()

    async def keepsake(self, container_id: str) -> str:
        """See :class:`pinfold.ports.runtime.KeepsakeRuntime`."""
        return self.specs[container_id].keepsake

    async def exits(self) -> AsyncIterator[ContainerStatus]:
        """See :class:`pinfold.ports.runtime.Runtime`; of one that was removed nobody is told."""
        while True:
            status = await self._exits.get()
            if status.id in self._known:
                yield status

    async def close(self) -> None:
        """See :class:`pinfold.ports.runtime.Runtime`."""

    def known(self) -> tuple[ContainerStatus, ...]:
        """Every container that is not removed."""
        self._notice()
        return tuple(self._known.values())

    def forget(self, container_id: str) -> None:
        """Lose what is known of a container; its process runs on."""
        del self._known[container_id]

    def exit(self, container_id: str, exit_code: int | None, *, at: float = 0.0) -> None:
        """Let the main process of a container end, ``at`` a time of the machine's clock."""
        status = self._known[container_id]
        if status.state is ContainerState.EXITED:
            return
        if status.pid is not None:
            self._cgroups.processes.pop(status.pid, None)
        status = replace(
            status, state=ContainerState.EXITED, pid=None, exit_code=exit_code, finished_at=at
        )
        self._known[container_id] = status
        self._exits.put_nowait(status)

    def _notice(self) -> None:
        """Main processes that were killed by way of their cgroup have exited."""
        if self.is_late:
            return
        for status in list(self._known.values()):
            if status.pid is not None and status.pid not in self._cgroups.processes:
                self.exit(status.id, KILLED)

    def _status(self, container_id: str) -> ContainerStatus:
        if container_id not in self._known:
            raise RuntimeFailedError(f"no container {container_id}")
        return self._known[container_id]

    def _be_there(self) -> None:
        if self.is_away:
            raise RuntimeFailedError("the runtime does not answer", is_away=True)

    def _fault(self, where: str) -> None:
        self._be_there()
        if self.faults.due():
            raise RuntimeFailedError(f"{where}: the runtime refused", "injected")


class MemoryStore:
    """A record that is gone with the process."""

    def __init__(self, *, history_limit: int = 10_000) -> None:
        self.node: NodeRecord | None = None
        self.pods: dict[str, PodRecord] = {}
        self.move: PendingMove | None = None
        self.objects: dict[ObjectKey, ObjectRecord] = {}
        self.entries: list[HistoryEntry] = []
        self.problem = ""
        self.faults = Faults()
        self.generation = 0
        self.promised = 0
        self._limit = history_limit
        self._number = 0

    async def load(self) -> Record:
        """See :class:`pinfold.ports.store.Store`."""
        return Record(
            self.node,
            dict(self.pods),
            self.generation,
            self.promised,
            self.move and self.move.start_over,
            dict(self.objects),
        )

    async def commit(self, batch: Batch) -> None:
        """See :class:`pinfold.ports.store.Store`."""
        if self.faults.due():
            raise StoreError("the record: no space left on device", "injected")
        self.generation = self.promised = max(self.generation, self.promised, batch.above) + 1
        if batch.node is not None:
            self.node = batch.node
        if batch.move is not UNSET:
            self.move = batch.move
        for key, one in batch.objects.items():
            if one is None:
                self.objects.pop(key, None)
            else:
                self.objects[key] = one
        for uid in batch.drop:
            self.pods.pop(uid, None)
        for pod in batch.put:
            self.pods[pod.uid] = pod
        for entry in batch.history:
            self._number += 1
            self.entries.append(replace(entry, number=self._number))
        del self.entries[: max(len(self.entries) - self._limit, 0)]

    async def check(self) -> None:
        """See :class:`pinfold.ports.store.Store`."""

    async def history(
        self,
        *,
        pod: str | None = None,
        namespace: str | None = None,
        kinds: Collection[str] = (),
        limit: int = 100,
    ) -> Sequence[HistoryEntry]:
        """See :class:`pinfold.ports.store.Store`."""
        found = [e for e in reversed(self.entries) if pod is None or pod in (e.pod, e.pod_uid)]
        if namespace is not None:
            found = [e for e in found if (e.pod or "").startswith(f"{namespace}/")]
        return [e for e in found if not kinds or e.kind in kinds][:limit]

    async def close(self) -> None:
        """See :class:`pinfold.ports.store.Store`."""


class MemoryPodFiles:
    """Files that are rows."""

    def __init__(self) -> None:
        self.documents: dict[str, str] = {}

    async def publish(self, pod_uid: str, document: str) -> None:
        """See :class:`pinfold.ports.podfiles.PodFiles`."""
        self.documents[pod_uid] = document

    async def retract(self, pod_uid: str) -> None:
        """See :class:`pinfold.ports.podfiles.PodFiles`."""
        self.documents.pop(pod_uid, None)


class MemoryTeller:
    """Containers that are told by a row each; ``acknowledge`` is what an application does."""

    def __init__(self) -> None:
        self.assignments: dict[ContainerKey, Assignment] = {}
        self.history: list[tuple[ContainerKey, Assignment]] = []
        """All that was ever told."""
        self.faults = Faults()
        self._acknowledged: dict[ContainerKey, int] = {}
        self._news = asyncio.Condition()

    def folder(self, owner: ContainerKey) -> str:
        """See :class:`pinfold.ports.tellers.Teller`."""
        return f"/assignments/{owner}"

    async def told(self, owner: ContainerKey) -> Assignment | None:
        """See :class:`pinfold.ports.tellers.Teller`."""
        return self.assignments.get(owner)

    def is_told(self, owner: ContainerKey) -> bool:
        """See :class:`pinfold.ports.tellers.Teller`."""
        return owner in self.assignments

    async def tell(self, owner: ContainerKey, news: Assignment) -> None:
        """See :class:`pinfold.ports.tellers.Teller`."""
        if self.faults.due():
            raise TellingError(f"{owner}: no space left on device", "injected")
        if self.assignments.get(owner) != news:
            self.assignments[owner] = news
            self.history.append((owner, news))

    async def acknowledged(self, owner: ContainerKey, generation: int) -> None:
        """See :class:`pinfold.ports.tellers.Teller`."""
        async with self._news:
            await self._news.wait_for(lambda: self._acknowledged.get(owner) == generation)

    async def forget(self, pod_uid: str) -> None:
        """See :class:`pinfold.ports.tellers.Teller`."""
        for owner in [one for one in self.assignments if one.pod_uid == pod_uid]:
            del self.assignments[owner]
            self._acknowledged.pop(owner, None)

    async def retain(self, pod_uids: Collection[str]) -> Sequence[str]:
        """See :class:`pinfold.ports.tellers.Teller`."""
        for uid in {owner.pod_uid for owner in self.assignments} - set(pod_uids):
            await self.forget(uid)
        return ()

    async def acknowledge(self, owner: ContainerKey, generation: int) -> None:
        """Let a container acknowledge a generation."""
        async with self._news:
            self._acknowledged[owner] = generation
            self._news.notify_all()
