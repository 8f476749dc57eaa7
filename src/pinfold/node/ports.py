"""What the manager needs of the outside world: cgroups, a runtime, a store.

Adapters fulfil these protocols; ``pinfold.planning.fakes`` does so in memory.  Both pass the same
contract tests.  All methods are coroutines, because a container runtime answers over a socket; an
adapter that only writes files may do so without awaiting.  Only the manager calls them, never two
at a time for the same container.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from pinfold.core.cpuset import CPUSet
from pinfold.core.workload import DEFAULT_GRACE_PERIOD, Process, SandboxOptions
from pinfold.node.records import Batch, HistoryEntry, Record


class PortError(Exception):
    """The outside world refused or failed.

    ``problem`` names the place (a file, a pid, a socket) and what it said; ``remedy`` is what the
    administrator can do, "" where only waiting helps.
    """

    def __init__(self, problem: str, remedy: str = "") -> None:
        super().__init__(f"{problem} ({remedy})" if remedy else problem)
        self.problem = problem
        self.remedy = remedy


class CgroupError(PortError):
    """The kernel did not take what was written to a cgroup, or no cgroup could be written."""


class ProcessGoneError(CgroupError):
    """The process that was to be moved or looked at has ended."""


class RuntimeFailedError(PortError):
    """The runtime could not create, start, stop or remove a container."""


class StoreError(PortError):
    """The record could not be read or written durably; nothing was changed."""


@dataclass(frozen=True, slots=True, order=True)
class ContainerKey:
    """A container: the uid of its pod and its name in the pod."""

    pod_uid: str
    name: str

    def __str__(self) -> str:
        return f"{self.pod_uid}/{self.name}"


# ---------------------------------------------------------------------------------------- cgroups


class Partition(Enum):
    """The kernel's ``cpuset.cpus.partition`` (cgroup v2)."""

    MEMBER = "member"
    ROOT = "root"
    ISOLATED = "isolated"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a container's cgroup is set to beside its CPUs; None leaves the kernel's default.

    ``cpu_shares`` is in cgroup v1's unit (a v2 adapter converts with
    :func:`pinfold.core.cgroup_values.shares_to_weight`); ``cpu_quota`` and ``cpu_period`` are
    microseconds, a quota of -1 is no cap; ``memory`` is bytes; ``hugepages`` bytes by page size.
    """

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpu_period: int | None = None
    memory: int | None = None
    hugepages: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a container runs: on its own ``cpus``, or (None) in the shared pool.

    ``partition`` is what is wished for an exclusive set; the kernel may not grant it.
    """

    cpus: CPUSet | None = None
    mems: CPUSet | None = None
    limits: Limits = field(default_factory=Limits)
    pod_limits: Limits = field(default_factory=Limits)
    partition: Partition = Partition.MEMBER


@dataclass(frozen=True, slots=True)
class ObservedContainer:
    """What the kernel says of a container's cgroup.

    ``configured`` is what was written into the cpuset (None: it has none of its own), ``effective``
    what the kernel lets it use; ``exclusive`` tells whether it sits in the exclusive part of the
    tree; ``partition`` is the kernel's text, such as ``isolated invalid (...)``, None on cgroup v1.
    """

    key: ContainerKey
    exclusive: bool
    configured: CPUSet | None
    effective: CPUSet
    partition: str | None = None
    populated: bool = False


@dataclass(frozen=True, slots=True)
class ObservedCgroups:
    """What the kernel says of the whole subtree."""

    shared: CPUSet
    """The effective CPUs of the shared pool."""
    shared_configured: CPUSet
    containers: Mapping[ContainerKey, ObservedContainer]


class Cgroups(Protocol):
    """The subtree that holds the containers: one shared pool, and an own cpuset for each owner."""

    async def open(self, shared: CPUSet) -> None:
        """Find the hierarchies, make or adopt the subtree, set the shared pool.

        Raises:
            CgroupError: there is no cgroup tree that can be written.
        """

    async def set_shared(self, cpus: CPUSet) -> None:
        """Shrink or grow the shared pool, and return when no task of it can run elsewhere.

        Raises:
            CgroupError: the kernel still lets some task run outside of ``cpus``.
        """

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """Make or change a container's cgroup, and read back what the kernel made of it.

        Returns:
            What was granted in place of a wish that was not, for the record; "" when all was.

        Raises:
            CgroupError: the CPUs or limits are not in force.
        """

    async def enter(self, key: ContainerKey, pid: int) -> None:
        """Move a process, all its threads and all its descendants into the container's cgroup.

        Raises:
            CgroupError: some of them could not be moved.
        """

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """End every process in the container's cgroup with SIGKILL; return when it is empty.

        Raises:
            CgroupError: processes are left after ``wait`` seconds.
        """

    async def remove(self, key: ContainerKey) -> None:
        """Remove the container's cgroup, which is empty; one that is not there is no error.

        Raises:
            CgroupError: it is not empty, or the kernel holds on to it.
        """

    async def observe(self) -> ObservedCgroups:
        """What the kernel has now; foreign writes show here."""

    async def close(self, *, remove: bool) -> None:
        """Let go; with ``remove``, leave nothing behind (there is no container left)."""


class MadeCgroups(Cgroups, Protocol):
    """Cgroups that a runtime makes, and that are found by the processes in them."""

    def identify(self, key: ContainerKey, container_id: str) -> None:
        """Take note of the runtime's id of a container, which its cgroup's name has in it."""


class FoundCgroups(MadeCgroups, Protocol):
    """Cgroups that a runtime makes, and names by a path."""

    async def find(self, key: ContainerKey, cgroups_path: str) -> bool:
        """Look for the cgroup of a container that was placed, and place it there.

        Args:
            key: the container.
            cgroups_path: OCI's ``cgroupsPath``: a path from the hierarchy's root, or systemd's
                ``SLICE:PREFIX:NAME``.

        Returns:
            Whether it is there.

        Raises:
            CgroupError: it is there, and its CPUs are not in force.
        """


class GatedCgroups(MadeCgroups, Protocol):
    """Cgroups whose shared pool waits for containers that are just being started."""

    def starting(self) -> AbstractAsyncContextManager[None]:
        """Around what a runtime does with a container's CPUs by itself: the pool stays as it is.

        A container's cgroup exists and is known only some time after the runtime has begun to
        start it; were the pool to shrink in between, nobody would move it.
        """

    def remove_parent(self, cgroups_path: str) -> None:
        """Remove the cgroup that a runtime made to hold those of a pod, where it is empty."""


@runtime_checkable
class PodRuntime(Protocol):
    """A runtime that keeps something for a whole pod."""

    async def remove_pod(self, pod_uid: str) -> None:
        """Remove what is kept for a pod whose containers are gone; nothing there is no error.

        Raises:
            RuntimeFailedError: something is left; it can be tried again.
        """


@runtime_checkable
class Watchful(Protocol):
    """Cgroups that notice when somebody else changes them."""

    def changes(self) -> AsyncIterator[ContainerKey | None]:
        """Whose cpuset others changed (None: the shared pool's), as it happens, for ever.

        Raises:
            CgroupError: it cannot be watched.
        """


# ---------------------------------------------------------------------------------------- runtime


class ContainerState(Enum):
    """The CRI's container states."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    EXITED = "EXITED"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """What the runtime is asked to create; ``attempt`` counts the restarts from 0.

    ``env`` is added to the process's own environment and tells the application its CPUs.

    What follows ``oom_score_adj`` matters to a runtime that makes the cgroups itself: ``placement``
    is what the container is created with, ``cgroup_parent`` the pod's cgroup as the CRI names it
    ("": the runtime's setting), ``grace_period`` the seconds from SIGTERM to SIGKILL.
    """

    key: ContainerKey
    namespace: str
    pod_name: str
    process: Process
    attempt: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    oom_score_adj: int | None = None
    placement: Placement | None = None
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)
    cgroup_parent: str = ""
    grace_period: int = DEFAULT_GRACE_PERIOD


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """A container as the runtime knows it.

    ``id`` names one attempt and is never used again.  ``pid`` is the main process in the host's
    numbers, None before it is created and after it is gone.  ``exit_code`` is 128 + the signal
    where one ended it, None until then; ``started_at`` and ``finished_at`` are seconds since the
    epoch.
    """

    id: str
    key: ContainerKey
    attempt: int
    state: ContainerState
    pid: int | None = None
    exit_code: int | None = None
    started_at: float | None = None
    finished_at: float | None = None
    message: str = ""


class Runtime(Protocol):
    """Creates, starts, stops and removes containers, which outlive the caller."""

    async def create(self, spec: ContainerSpec) -> ContainerStatus:
        """Make a container whose main process exists and has not executed its first instruction.

        Raises:
            RuntimeFailedError: it cannot be created (no such command, no such directory).
        """

    async def start(self, container_id: str) -> ContainerStatus:
        """Let the main process of a created container go.

        Raises:
            RuntimeFailedError: the command could not be executed.
        """

    async def signal(self, container_id: str, signal: int) -> None:
        """Send a signal to the main process; one that is gone is no error."""

    async def remove(self, container_id: str) -> None:
        """Forget an exited container; a running one is ended first."""

    async def containers(self) -> Sequence[ContainerStatus]:
        """Every container that is not removed, with exit statuses from the caller's absence."""

    def exits(self) -> AsyncIterator[ContainerStatus]:
        """Containers as they exit, for ever; after a restart, those that run on as well."""

    async def close(self) -> None:
        """Let go of the containers; they run on."""


class ProcessAdopter(Protocol):
    """A runtime that can also look after a process that somebody else started and holds back."""

    async def attach(self, spec: ContainerSpec, pid: int) -> ContainerStatus:
        """Account for a process as a created container.

        Raises:
            RuntimeFailedError: there is no such process.
        """

    async def report_exit(self, container_id: str, exit_code: int) -> None:
        """Take the exit status from the one who waited for the process."""


# ------------------------------------------------------------------------------------------ store


class Store(Protocol):
    """The durable record: what was decided, and the history of decisions."""

    async def load(self) -> Record:
        """Read the whole record; an empty one at the first start.

        Raises:
            StoreError: it is corrupt, of an unknown version, or cannot be read.
        """

    async def commit(self, batch: Batch) -> None:
        """Make all of a batch durable, or none of it.

        Raises:
            StoreError: nothing was changed (disk full, read-only, another writer).
        """

    async def history(self, *, pod: str | None = None, limit: int = 100) -> Sequence[HistoryEntry]:
        """The newest entries first, of one pod (``namespace/name`` or uid) or of all.

        Raises:
            StoreError: it cannot be read.
        """

    async def close(self) -> None:
        """Close the record; nothing is pending."""


class PodFiles(Protocol):
    """The small files from which applications learn their CPUs."""

    async def publish(self, pod_uid: str, document: str) -> None:
        """Replace a pod's file atomically, if its content changes.

        Raises:
            PortError: it cannot be written.
        """

    async def retract(self, pod_uid: str) -> None:
        """Remove a pod's file; one that is not there is no error.

        Raises:
            PortError: it cannot be removed.
        """
