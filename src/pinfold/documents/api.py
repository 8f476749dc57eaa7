"""What else the local API answers, and what it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.plan import PlannedResize
from pinfold.documents.records import CPUs, Document, Record
from pinfold.documents.status import Pod

Code: TypeAlias = Annotated[
    str,
    Meta(
        extra_json_schema={
            "enum": [
                "AlreadyExists",
                "BadRequest",
                "Forbidden",
                "InternalError",
                "MethodNotAllowed",
                "NotFound",
                "RequestEntityTooLarge",
                "RequestTimeout",
                "ServiceUnavailable",
                "TooManyRequests",
                "Unauthorized",
            ]
        }
    ),
]


class PodList(Document, frozen=True, kw_only=True):
    """The pods in the order of their admission, the ended ones too."""

    pods: Sequence[Pod]


class PodDocument(Pod, Document, frozen=True, kw_only=True):
    """One pod."""


class DecidedPod(PodDocument, frozen=True, kw_only=True):
    """A pod that was just decided about."""

    warnings: Sequence[str] = ()
    """Fields of the manifest that are not in force here, each with its path and why."""
    unchanged: bool | UnsetType = UNSET
    """It ran already as this manifest says, and runs on; only where it is so."""


class ObjectName(Document, frozen=True, kw_only=True):
    """An object that is kept beside the pods."""

    kind: str
    """``ResourceQuota``; a ``Namespace`` is checked, and not kept."""
    namespace: str
    """Empty for an object that is of none."""
    name: str
    warnings: Sequence[str] | UnsetType = UNSET
    """What may not be meant so; only where there is something."""


class AppliedPods(Document, frozen=True, kw_only=True):
    """What ``pinfold apply -o json`` prints: the pods that were decided about."""

    pods: Sequence[DecidedPod]
    objects: Sequence[ObjectName] | UnsetType = UNSET
    """The objects beside them that were applied; only where there were any."""


class AnyObject(Record, frozen=True, kw_only=True):
    """A ResourceQuota as the Kubernetes API has it."""


class Manifest(Record, frozen=True, kw_only=True):
    """A Pod as the Kubernetes API has it, whose containers have a command."""


class Run(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process that waits to become the only container of a pod."""

    manifest: dict[str, Any]
    """A Pod as the Kubernetes API has it, with one container and ``restartPolicy: Never``."""
    pid: Annotated[int, Meta(ge=2, lt=1 << 31)]
    """The process, which waits before its first instruction."""


class CPUResources(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many CPUs a container asks for; what stands there is the same in both."""

    requests: Mapping[str, str | int] = {}
    """``cpu`` only, as the Kubernetes API writes quantities."""
    limits: Mapping[str, str | int] = {}


class ContainerResize(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which container is to have how many CPUs."""

    name: str | None = None
    """Needed where the pod has several."""
    resources: CPUResources


class ResizeSpec(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be other in a pod."""

    containers: Annotated[Sequence[ContainerResize], Meta(min_length=1, max_length=1)]
    """One at a time."""


class Resize(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another number of CPUs for a running container, as a patch of its pod."""

    spec: ResizeSpec


class ResizeAnswer(PlannedResize, Document, frozen=True, kw_only=True):
    """What became of a resize."""


class Exit(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How such a process has ended."""

    code: Annotated[int, Meta(ge=0, le=255)]
    """128 + the signal where one ended it."""


class HistoryEntry(Record, frozen=True, kw_only=True):
    """One thing that happened."""

    number: int
    """Grows with each entry."""
    at: float
    """Seconds since the epoch."""
    kind: str
    """Such as ``admitted``, ``rejected``, ``released``, ``ended``, ``drifted``, ``repaired``; the
    reference of the API lists them."""
    pod_uid: str | None
    pod: str | None
    """``NAMESPACE/NAME``; null for what concerns the node."""
    document: Mapping[str, Any] | None
    """For a decision what ``/v1/explain`` answers."""
    words: str | UnsetType = UNSET
    """The same in a line of words; only from ``pinfold serve``."""


class History(Document, frozen=True, kw_only=True):
    """What was decided and repaired, newest first."""

    entries: Sequence[HistoryEntry]


class Drift(Record, frozen=True, kw_only=True):
    """Where the kernel had something else than the record."""

    pod_uid: str | None
    """Null for the shared pool."""
    container: str | None
    expected: str
    """In words."""
    found: str
    repaired: bool
    problem: str
    """Why it was not repaired."""


class Drifts(Document, frozen=True, kw_only=True):
    """What a comparison of the kernel with the record has found."""

    drifts: Sequence[Drift]


class Fault(Record, frozen=True, kw_only=True):
    """What is wrong, and what helps."""

    code: Code
    """The word of the Kubernetes API."""
    message: str
    """What is wrong, and where."""
    remedy: str
    """What to do about it; may be empty."""


class Error(Record, frozen=True, kw_only=True):
    """Every answer from 400 on."""

    error: Fault


class OpenAPI(Record, frozen=True, kw_only=True):
    """An OpenAPI document."""

    openapi: str
    info: Mapping[str, Any]
    paths: Mapping[str, Any]
    components: Mapping[str, Any]


class ContainerFacts(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a container may know of itself."""

    cpus: CPUs
    """Where it may run now."""
    exclusive: bool
    """Whether they are its own."""
    offline: CPUs = ""
    """Those of its own that are offline; only where there are any."""
    shared: CPUs = ""
    """Those of the shared pool that it may use besides, where it is mixed."""


class PodFacts(Document, frozen=True, kw_only=True):
    """The small file from which an application learns its CPUs."""

    pod: str
    """``NAMESPACE/NAME``."""
    uid: str
    containers: Mapping[str, ContainerFacts]
    """By name."""
