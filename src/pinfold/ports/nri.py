"""What a container runtime tells about pods and containers that it runs itself, and is told back.

The other way round from :class:`pinfold.ports.runtime.Runtime`: here somebody else (the kubelet)
creates and starts containers, and the runtime asks before each step.  Source: the Node Resource
Interface, ``v1alpha1``; the values are free of its wire types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace


class ContainerState(Enum):
    """NRI's container states."""

    UNKNOWN = "UNKNOWN"
    CREATED = "CREATED"
    PAUSED = "PAUSED"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class Resources(Struct, frozen=True):
    """What a runtime has recorded for a container; None and "" where nothing was said.

    ``cpu_shares`` is cgroup v1's unit, ``cpu_quota`` and ``cpu_period`` microseconds (a quota of
    -1 or 0 is no cap), ``cpus`` and ``mems`` the kernel's list format as the runtime has it,
    ``memory`` bytes, ``hugepages`` bytes by the runtime's name of the page size (``2MB``).
    """

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpu_period: int | None = None
    cpus: str = ""
    mems: str = ""
    memory: int | None = None
    hugepages: Mapping[str, int] = field(default_factory=dict)
    unified: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes_requests(self) -> bool:
        """Whether, as a change, it says anything of what a container asks for.

        No cap alone is none: that is what is told of a container that owns its CPUs.
        """
        return any((self.cpu_shares, self.is_capped, self.cpu_period, self.memory))

    @property
    def is_capped(self) -> bool:
        """Whether there is a quota."""
        return (self.cpu_quota or 0) > 0

    def changed_by(self, wanted: Resources) -> Resources:
        """What is on record after a change; what stays is left out of it, or 0 by containerd."""
        return replace(
            self,
            cpu_shares=wanted.cpu_shares or self.cpu_shares,
            cpu_quota=wanted.cpu_quota or self.cpu_quota,
            cpu_period=wanted.cpu_period or self.cpu_period,
            memory=wanted.memory or self.memory,
        )


class PodSandbox(Struct, frozen=True):
    """A pod as the runtime sees it; ``id`` is the sandbox's, ``uid`` the pod's."""

    id: str
    uid: str
    name: str
    namespace: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    cgroup_parent: str = ""
    pid: int | None = None

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class Container(Struct, frozen=True):
    """A container as the runtime sees it; ``pid`` is its main process in the host's numbers."""

    id: str
    sandbox_id: str
    name: str
    state: ContainerState = ContainerState.UNKNOWN
    annotations: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = Resources()
    cgroups_path: str = ""
    pid: int | None = None
    variables: frozenset[str] = frozenset()
    """The names in its environment; what they are set to is nobody's business."""
    mounted: frozenset[str] = frozenset()
    """The paths at which it has mounts."""


class Mount(Struct, frozen=True):
    """A path of the machine that a container sees."""

    source: str
    target: str
    read_only: bool


class ContainerAdjustment(Struct, frozen=True):
    """What a container that is being created gets beside what was asked for."""

    resources: Resources = Resources()
    env: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that it has so, whatever was asked for; None: that it does not have."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


class ContainerUpdate(Struct, frozen=True):
    """What an existing container is changed to; what is None or "" stays as it is.

    With ``ignore_failure`` one that is gone already spoils nothing.
    """

    container_id: str
    resources: Resources
    ignore_failure: bool = False


class RefusedError(Exception):
    """A container may not be created or changed; the text is what its creator is told."""


class RuntimeEvents(Protocol):
    """Who is asked and told what a runtime does; never two calls at a time.

    A method that raises :class:`RefusedError` refuses the step where the runtime allows that
    (``create_container`` and ``update_container``).
    """

    async def synchronize(
        self, pods: Sequence[PodSandbox], containers: Sequence[Container]
    ) -> None:
        """Take over everything that exists; called first after each registration."""

    async def run_pod_sandbox(self, pod: PodSandbox) -> None:
        """A pod's sandbox is being started."""

    async def stop_pod_sandbox(self, pod: PodSandbox) -> None:
        """A pod's sandbox was stopped; none of its containers runs any more."""

    async def remove_pod_sandbox(self, pod: PodSandbox) -> None:
        """A pod is forgotten."""

    async def create_container(self, pod: PodSandbox, container: Container) -> ContainerAdjustment:
        """Decide about a container that is being created.

        Raises:
            RefusedError: it may not be created.
        """

    async def post_create_container(self, pod: PodSandbox, container: Container) -> None:
        """A container was created and has not executed its first instruction."""

    async def start_container(self, pod: PodSandbox, container: Container) -> None:
        """A container is about to be started."""

    async def post_start_container(self, pod: PodSandbox, container: Container) -> None:
        """A container was started."""

    async def update_container(
        self, pod: PodSandbox, container: Container, wanted: Resources
    ) -> Sequence[ContainerUpdate]:
        """Somebody changes a container's resources; the answer may change them further.

        Raises:
            RefusedError: it may not be changed so.
        """

    async def post_update_container(self, pod: PodSandbox, container: Container) -> None:
        """A container was changed: what was asked for, and answered, is written."""

    async def stop_container(
        self, pod: PodSandbox, container: Container
    ) -> Sequence[ContainerUpdate]:
        """A container has ended; its CPUs can go to others."""

    async def remove_container(self, pod: PodSandbox, container: Container) -> None:
        """A container is forgotten."""


class Existing(Struct, frozen=True):
    """What a runtime has at a moment, by id.

    ``sandboxes``: whether each is up; ``containers``: whether each runs or can still be started.
    """

    sandboxes: Mapping[str, bool]
    containers: Mapping[str, bool]


class RuntimeListing(Protocol):
    """Everything that a runtime has, whether it has told of it or not."""

    async def existing(self) -> Existing:
        """What there is now.

        Raises:
            RuntimeFailedError: the runtime does not answer.
        """


class RuntimeRecord(Protocol):
    """Changes what a runtime has recorded for containers, and thereby their cgroups."""

    async def update(self, updates: Sequence[ContainerUpdate]) -> Sequence[str]:
        """Change several containers.

        Returns:
            The ids that the runtime says it could not change.

        Raises:
            RuntimeFailedError: the runtime does not answer or took none of them.
        """
