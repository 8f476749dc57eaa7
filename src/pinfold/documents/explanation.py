"""An explanation: why a pod got what it has, or was rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET, UnsetType

from pinfold.documents.control import LoadDrivenContainer
from pinfold.documents.move_plan import MovePlan
from pinfold.documents.records import (
    Bubble,
    ContainerKind,
    CPUs,
    Document,
    Kubelet,
    MemoryBlock,
    QOSClass,
    Record,
)

MEMORY_MANAGER: Final = "memory manager"
"""The provider whose hints say nothing where nothing fits."""


class Hint(Record, frozen=True, kw_only=True):
    """A hint of the topology manager."""

    numa_nodes: Sequence[int] | None
    """Null for any."""
    preferred: bool


class Hints(Record, frozen=True, kw_only=True):
    """What one provider of hints answered."""

    provider: str
    """``device manager``, ``cpu manager``, ``memory manager`` or ``nearness``."""
    resources: Mapping[str, Sequence[Hint] | None] | None
    """By resource; null where there is no preference, an empty list where it cannot be had.  An
    empty object is no preference, too; the memory manager answers so when nothing fits."""


class Step(Record, frozen=True, kw_only=True):
    """One step in which CPUs were taken."""

    kind: str
    """Such as ``core``."""
    id: int | None
    cpus: CPUs


class ExplainedContainer(Record, frozen=True, kw_only=True):
    """A container: what it asked for, what was offered, and what bound the outcome."""

    name: str
    request: str
    hints: Sequence[Hints]
    """One entry for each provider that was asked, in the kubelet's order."""
    merged: Hint | None
    constraint: str
    """What bound the outcome, with what is left at each NUMA node of what is short."""
    cpus: CPUs | None
    """Its exclusive CPUs."""
    steps: Sequence[Step]
    """How they were taken."""
    memory: Sequence[MemoryBlock] = ()
    """What it was given beside CPUs, as in a plan."""
    devices: Mapping[str, Sequence[str]] = {}
    """The ids of its devices by extended resource."""
    kind: ContainerKind | UnsetType = UNSET
    """Only of one that is ``init`` or ``sidecar``."""
    idle: CPUs | UnsetType = UNSET
    """The siblings of its CPUs that stay idle; only where it is SMT-isolated."""
    by_load: LoadDrivenContainer | UnsetType = UNSET
    """Only of a pod that an agent runs: how a container that has its CPUs by load has them now."""


class ExplainedBubble(Bubble, frozen=True, kw_only=True):
    """What a pod has as a whole: what it asked for, and how it was taken."""

    request: str
    steps: Sequence[Step]
    """How its CPUs were taken."""


class Ended(Record, frozen=True, kw_only=True):
    """How a pod has ended."""

    phase: str
    reason: str | None
    message: str | None


class Explanation(
    Document,
    frozen=True,
    kw_only=True,
    rename={
        "topology_manager_policy": "topologyManagerPolicy",
        "memory_manager_policy": "memoryManagerPolicy",
    },
):
    """The decision about a pod, container by container."""

    namespace: str
    name: str
    qos: QOSClass
    admitted: bool
    reason: str | None
    """Why it was rejected, the kubelet's word."""
    message: str | None
    kubelet_fault: str | None = None
    """The fault of the kubelet that decided."""
    notes: Sequence[str] = ()
    """Wishes that were not binding and could not be met."""
    kubelet: Kubelet | UnsetType = UNSET
    """Whose answer it is; only from ``pinfold explain MANIFEST...``."""
    topology_manager_policy: str
    memory_manager_policy: str = "None"
    bubble: ExplainedBubble | UnsetType = UNSET
    """What it has as a whole; of a rejected pod what it keeps by a fault of the kubelet."""
    containers: Sequence[ExplainedContainer]
    """In the kubelet's order."""
    remedies: Sequence[str]
    """Changes that would admit a rejected pod, each of them tried."""
    moves: MovePlan | UnsetType = UNSET
    """Moves of those who run, after which a rejected pod is admitted; only where there are some."""
    ended: Ended | UnsetType = UNSET
    """Only from ``pinfold explain pod/NAME``, where a pod that was admitted has ended since."""


class AlikeExplained(Record, frozen=True, kw_only=True):
    """Pods about which was decided alike, such as replicas; the first of them is explained."""

    pods: Sequence[str]
    """``namespace/name`` of each, in the order of admission."""
    explanation: Explanation


class Explanations(Document, frozen=True, kw_only=True):
    """The decisions about several pods: those asked for, or all that were rejected."""

    admitted: int
    """How many of all pods run; of an agent of those that were asked for."""
    rejected: int
    explanations: Sequence[AlikeExplained]
    notes: Sequence[str] = ()
    """What was passed over while reading, as in a plan."""
