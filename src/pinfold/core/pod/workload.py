"""What a pod runs, beside its resources: commands, environment, restart policy, grace period.

Source: the Kubernetes API (``core/v1`` ``Container`` and ``PodSpec``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, TypeAlias

from msgspec import Struct, field

from pinfold.core.pod.hugepages import MEDIUM_MEMORY
from pinfold.core.pod.pod import Container, Pod
from pinfold.core.pod.security import Security
from pinfold.core.values.cpuset import CPUSet

DEFAULT_GRACE_PERIOD: Final = 30
"""Seconds between SIGTERM and SIGKILL unless the pod says otherwise."""


class RestartPolicy(Enum):
    """The API's ``RestartPolicy`` of a pod."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class PullPolicy(Enum):
    """The API's ``PullPolicy`` of an image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class HostPath(Struct, frozen=True):
    """The API's ``HostPathVolumeSource``; ``type`` "" checks and makes nothing."""

    path: str
    type: str = ""


class EmptyDir(Struct, frozen=True):
    """The API's ``EmptyDirVolumeSource``, with what it comes to in its pod.

    ``medium`` is "" (the disk), ``Memory``, ``HugePages`` or one like ``HugePages-2Mi``.  ``size``
    is the most that it can hold in bytes (in memory also the pod's memory limit), None where
    nothing says so; on the disk it is not enforced.  ``page_size`` is that of its huge pages.
    ``problem`` is why it cannot be made, in the kubelet's words.  ``group`` is the pod's
    ``fsGroup``; ``for_users`` says that who is not root has to get there by its path on the host.
    """

    medium: str = ""
    size: int | None = None
    page_size: int | None = None
    problem: str = ""
    group: int | None = None
    for_users: bool = False


ON_DISK: Final = EmptyDir()


class DownwardFile(Struct, frozen=True):
    """A file of a ``downwardAPI`` volume; marks in its text stand for what is not known yet.

    See :mod:`pinfold.core.pod.manifest.assigned_fields`.
    """

    path: str
    text: str
    mode: int


class DownwardAPI(Struct, frozen=True):
    """The API's ``DownwardAPIVolumeSource``; the others as of :class:`EmptyDir`."""

    files: tuple[DownwardFile, ...] = ()
    group: int | None = None
    for_users: bool = False


Source: TypeAlias = HostPath | EmptyDir | DownwardAPI
"""What a volume can be here."""


class VolumeMount(Struct, frozen=True):
    """A volume in a container, from the host's files or from the ``downward`` API.

    With neither it is ``empty_dir``.  Both of the latter are gone with the pod.
    """

    volume: str
    mount_path: str
    host_path: HostPath | None = None
    read_only: bool = False
    empty_dir: EmptyDir = ON_DISK
    downward: DownwardAPI | None = None

    @property
    def is_in_memory(self) -> bool:
        """Whether its files are ordinary memory: an ``emptyDir`` of medium ``Memory``."""
        others = self.host_path, self.downward
        return others == (None, None) and self.empty_dir.medium == MEDIUM_MEMORY


class Process(Struct, frozen=True):
    """What one container executes.

    ``argv`` is the API's ``command`` followed by ``args`` (empty: the image's own, which only a
    container runtime knows); ``command`` and ``args`` are the same words apart, because either
    alone replaces only the image's own.  ``working_dir`` None is the runtime's default.

    ``image_pull_policy`` matters to container runtimes only.
    """

    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    image: str | None = None
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    image_pull_policy: PullPolicy | None = None
    volume_mounts: tuple[VolumeMount, ...] = ()
    security: Security = Security()


class SandboxOptions(Struct, frozen=True):
    """What the containers of a pod share with each other, and with the host.

    ``privileged`` tells that one of them is; ``runtime_class`` is the runtime's handler, None its
    default one.
    """

    host_network: bool = False
    host_pid: bool = False
    host_ipc: bool = False
    runtime_class: str | None = None
    privileged: bool = False


def pull_policy(process: Process) -> PullPolicy:
    """The policy that holds: unless the manifest says one, ``Always`` for the tag ``latest``.

    Source: the API's defaulting of ``imagePullPolicy``.
    """
    if process.image_pull_policy is not None:
        return process.image_pull_policy
    image, _, digest = (process.image or "").partition("@")
    tag = image.rpartition("/")[2].partition(":")[2]
    if not digest and tag in ("", "latest"):
        return PullPolicy.ALWAYS
    return PullPolicy.IF_NOT_PRESENT


class Workload(Struct, frozen=True):
    """A pod and what its containers execute (by container name, init containers too)."""

    pod: Pod
    processes: Mapping[str, Process]
    restart_policy: RestartPolicy = RestartPolicy.ALWAYS
    grace_period: int = DEFAULT_GRACE_PERIOD
    sandbox: SandboxOptions = SandboxOptions()

    def restarts(self, container: Container, exit_code: int) -> bool:
        """Whether a container that ended with this status is started again.

        A sidecar always is; an init container that succeeded never is.
        """
        if container.is_sidecar:
            return True
        is_init = any(c.name == container.name for c in self.pod.init_containers)
        if exit_code == 0 and (is_init or self.restart_policy is not RestartPolicy.ALWAYS):
            return False
        return self.restart_policy is not RestartPolicy.NEVER


ASSIGNMENT_FOLDER: Final = "/run/pinfold"
"""Where a container with exclusive CPUs is told of them; a process has a folder of its own."""

ASSIGNMENT_VARIABLE: Final = "PINFOLD_ASSIGNMENT_DIR"
"""The variable with its path, for containers and processes."""

ACKNOWLEDGEMENT: Final = "ack/generation"
"""The file in there that it may write."""


ASSIGNMENT_HIDDEN: Final = (
    f"it has a mount at or below {ASSIGNMENT_FOLDER}, and is not told its CPUs there"
)
"""What is said of a container whose manifest is in the way."""


def assignment_mounts(
    folder: str, there: Collection[str] = ()
) -> tuple[tuple[str, str, bool], ...] | None:
    """How a container sees the ``folder`` on the machine in which it is told.

    ``there`` are the paths at which it has mounts already.

    Returns:
        ``(source, target, read only)`` each; None where something else is mounted in its place, or
        below it, where nothing can be made.
    """
    if any(f"{path}/".startswith(f"{ASSIGNMENT_FOLDER}/") for path in there):
        return None
    return (
        (folder, ASSIGNMENT_FOLDER, True),
        (f"{folder}/{ACKNOWLEDGEMENT}", f"{ASSIGNMENT_FOLDER}/{ACKNOWLEDGEMENT}", False),
    )


TOLD_PREFIX: Final = "PINFOLD_"
"""What begins so is told by Pinfold, or to its commands; device plugins may set none of it."""

FACTS: Final = frozenset(
    {
        "PINFOLD_POD",
        "PINFOLD_POD_UID",
        "PINFOLD_CONTAINER",
        "PINFOLD_CPUS",
        "PINFOLD_CPU_COUNT",
        "PINFOLD_EXCLUSIVE_CPUS",
        "PINFOLD_SHARED_CPUS",
        ASSIGNMENT_VARIABLE,
    }
)
"""Variables that tell what Pinfold has given: it alone sets them, or leaves them out."""


def environment_beside(
    told: Mapping[str, str], manifest: Collection[str], plugins: Mapping[str, str]
) -> tuple[dict[str, str], str]:
    """What a container's environment has beside what its manifest says, and who was passed over.

    What Pinfold tells (:func:`application_environment`) wins over what device plugins set.  A
    ``manifest``, whose names these are, may set anything but :data:`FACTS`, which the caller
    leaves out.  "" is nobody.
    """
    ours = {name: value for name, value in told.items() if name in FACTS or name not in manifest}
    refused = [n for n in plugins if n.startswith(TOLD_PREFIX) or (n in told and n in ours)]
    theirs = {n: v for n, v in plugins.items() if n not in manifest and n not in refused}
    facts = sorted(FACTS.intersection(manifest))
    parts = [
        f"only Pinfold sets {', '.join(names)}; what {who} says is passed over"
        for names, who in ((facts, "the manifest"), (sorted(refused), "a device plugin"))
        if names
    ]
    return {**theirs, **ours}, "; ".join(parts)


def application_environment(
    pod: str, pod_uid: str, container: str, cpus: CPUSet | None, shared: CPUSet | None = None
) -> dict[str, str]:
    """The variables that tell an application where it runs.

    CPUs of the shared pool change while it runs, so only exclusive ones are told this way (None:
    it is on the shared pool); but to who has some ``shared`` ones besides, both are told as they
    are when it is created.  ``pod`` is ``namespace/name``.
    """
    env = {"PINFOLD_POD": pod, "PINFOLD_POD_UID": pod_uid, "PINFOLD_CONTAINER": container}
    if cpus is not None:
        count = str(len(cpus))
        env |= {"PINFOLD_CPUS": str(cpus), "PINFOLD_CPU_COUNT": count}
        # What OpenMP and Go programs read by themselves.
        env |= {
            "GOMP_CPU_AFFINITY": " ".join(str(cpu) for cpu in cpus),
            "OMP_NUM_THREADS": count,
            "GOMAXPROCS": count,
        }
    if cpus is not None and shared is not None:
        env |= {"PINFOLD_EXCLUSIVE_CPUS": str(cpus), "PINFOLD_SHARED_CPUS": str(shared)}
    return env
