"""What a node needs of what runs the containers.

Adapters fulfil these protocols; ``pinfold.planning.fakes`` does so in memory.  Both pass the same
contract tests.  All methods are coroutines, because a container runtime answers over a socket; an
adapter that only writes files may do so without awaiting.  They are never
called two at a time for the same container.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import Enum
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from pinfold.core.devices.devices import DeviceRunOptions
from pinfold.core.pod.workload import DEFAULT_GRACE_PERIOD, Process, SandboxOptions
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey


class ContainerState(Enum):
    """The CRI's container states."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    EXITED = "EXITED"


class ContainerSpec(Struct, frozen=True):
    """What the runtime is asked to create; ``attempt`` counts the restarts from 0.

    ``env`` is added to the process's own environment and tells the application its CPUs.

    What follows ``oom_score_adj`` matters to a runtime that makes the cgroups itself: ``placement``
    is what the container is created with, ``cgroup_parent`` the pod's cgroup as the CRI names it
    ("": the runtime's setting), ``grace_period`` the seconds from SIGTERM to SIGKILL.  ``devices``
    is what device plugins ask for the container.  ``keepsake`` is kept with the container
    (:mod:`pinfold.node.recovery.keepsake`).  ``image`` is what :meth:`ImageRuntime.pull` answered
    ("": its process's image is there).
    """

    key: ContainerKey
    namespace: str
    pod_name: str
    process: Process
    attempt: int = 0
    env: Mapping[str, str] = field(default_factory=dict)
    oom_score_adj: int | None = None
    placement: Placement | None = None
    sandbox: SandboxOptions = SandboxOptions()
    cgroup_parent: str = ""
    grace_period: int = DEFAULT_GRACE_PERIOD
    devices: DeviceRunOptions = DeviceRunOptions()
    keepsake: str = ""
    image: str = ""


class ContainerStatus(Struct, frozen=True):
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
        """Containers as they exit, for ever; after a restart, those that run on as well.

        One that is removed by then may be left out.
        """

    async def close(self) -> None:
        """Let go of the containers; they run on."""


@runtime_checkable
class ImageRuntime(Protocol):
    """A runtime whose containers are made of images, which may take very long to come."""

    async def pull(self, spec: ContainerSpec) -> str:
        """See that a container's image is there, as its pull policy says; returns what names it.

        Raises:
            RuntimeFailedError: it is not, and may not or could not be pulled, or its user is one
                that the container must not have.
        """


@runtime_checkable
class PodRuntime(Protocol):
    """A runtime that keeps something for a whole pod."""

    async def remove_pod(self, pod_uid: str) -> None:
        """Remove what is kept for a pod whose containers are gone; nothing there is no error.

        Raises:
            RuntimeFailedError: something is left; it can be tried again.
        """


@runtime_checkable
class MendingRuntime(Protocol):
    """A runtime that keeps its own record of the containers, which somebody may have damaged."""

    async def mended(self) -> Sequence[str]:
        """What was damaged when it was first used, and what was made of it, in sentences."""


@runtime_checkable
class KeepsakeRuntime(Protocol):
    """A runtime that keeps what :class:`ContainerSpec` gives it to keep."""

    async def keepsake(self, container_id: str) -> str:
        """What was given with a container; "" where it has nothing, or that is damaged."""


class ProcessAdopter(Protocol):
    """A runtime that can also look after a process that somebody else started and holds back."""

    async def attach(
        self, spec: ContainerSpec, pid: int, start: int | None = None
    ) -> ContainerStatus:
        """Account for a process as a created container.

        It has started at ``start`` (clock ticks since the boot), None where nobody knows.

        Raises:
            RuntimeFailedError: there is no such process.
        """


@runtime_checkable
class Watching(Protocol):
    """A runtime that needs something of this process for each container that lives."""

    def lack(self, containers: int) -> str:
        """Why it cannot watch so many more; "" when it can."""
