"""A pod that owns its CPUs, while the agent runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct, field

from pinfold.core.pod.pod import Container, guaranteed_cpus
from pinfold.core.pod.workload import Workload
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import ContainerKey
from pinfold.ports.held_process import HeldProcess
from pinfold.ports.records import CANNOT_RUN, PodRecord
from pinfold.ports.runtime import ContainerStatus
from pinfold.state.ledger import Ledger


class ActivePod(Struct):
    """What is held of a pod that was admitted and is not gone.

    What it is and has (``workload``, ``record``) only :mod:`pinfold.node.books` writes; the rest is
    its life.  ``statuses`` are the containers as last seen, by name; ``lock`` is held while a
    container is being started or everything is being ended; ``gone`` is set when nothing of the pod
    is left.
    """

    _workload: Workload
    _record: PodRecord
    statuses: dict[str, ContainerStatus] = field(default_factory=dict)
    silent: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Containers, by name, that were found without a process while their runtime says that they
    run: the container's id, and since when (the event loop's time)."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    busy: str = ""
    """The container that is being started or ended, by name; see :meth:`at_work`."""
    ending: bool = False
    """Somebody ends the pod; nobody else does it again."""
    retracted: bool = False
    """Applications are told nothing of the pod any more."""
    failure: str = ""
    """Why a container could not be started, the last time that one could not, or why the pod was
    ended."""
    failure_reason: str = CANNOT_RUN
    """The reason that goes with it."""
    attached: HeldProcess | None = None
    """The process of a pod that wraps one which somebody else started."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    reported_exit: int | None = None
    """The exit code of that process, from the one who waited for it."""

    @asynccontextmanager
    async def at_work(self, container: Container) -> AsyncIterator[None]:
        """Hold the lock to start or end a container: nobody else places this one meanwhile."""
        async with self.lock:
            self.busy = container.name
            try:
                yield
            finally:
                self.busy = ""

    def has_process(self, process: HeldProcess) -> bool:
        """Whether this is the main process of one of its containers, or is to be."""
        return self.attached == process or any(
            status.pid == process.pid for status in self.statuses.values()
        )

    @property
    def workload(self) -> Workload:
        """What it is to run."""
        return self._workload

    @property
    def record(self) -> PodRecord:
        """What is written down of it."""
        return self._record

    def write(self, workload: Workload, record: PodRecord) -> None:
        """Take what was written down; the books alone do this."""
        self._workload, self._record = workload, record

    @property
    def uid(self) -> str:
        """The pod's uid."""
        return self._record.uid

    @property
    def name(self) -> str:
        """``namespace/name``."""
        return f"{self._record.namespace}/{self._record.name}"

    def key(self, container: Container) -> ContainerKey:
        """The container's key."""
        return ContainerKey(self.uid, container.name)

    def exclusive_cpus(self, ledger: Ledger, container: Container) -> CPUSet | None:
        """Where a container runs: its own CPUs, None for the shared pool.

        An init container that ended gave its CPUs back; started again after a reboot, it runs on
        those that its pod still has.
        """
        cpus = ledger.cpus_of(self.uid, container.name)
        if cpus is not None:
            return cpus
        if any(container is init for init in self.workload.pod.init_containers) and (
            guaranteed_cpus(self.workload.pod, container)
        ):
            return ledger.cpus_of_pod(self.uid) or None
        return None
