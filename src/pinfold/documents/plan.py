"""A plan: what ``pinfold plan -o json`` prints, alone and with ``--compare``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.move_plan import MovePlan
from pinfold.documents.records import (
    Bubble,
    ContainerKind,
    CPUs,
    Document,
    Isolation,
    Kubelet,
    MemoryBlock,
    Policies,
    QOSClass,
    Record,
)

BY_KEP: Final = "KEP-5554"
BY_KUBELET: Final = "kubelet"
ResizeRules: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": [BY_KEP, BY_KUBELET]})]


class PlannedMachine(Record, frozen=True, kw_only=True):
    """The machine, as the kubelet sees it."""

    name: str
    cpus: CPUs
    sockets: int
    numa_nodes: int
    cores: int
    isolated: CPUs | UnsetType = UNSET
    """CPUs that the kernel was booted to isolate; these three only where there are some."""
    nohz_full: CPUs | UnsetType = UNSET
    rcu_nocbs: CPUs | UnsetType = UNSET
    notes: Sequence[str]
    """Where the kubelet's view differs from the hardware."""


class PlannedConfig(Policies, frozen=True, kw_only=True):
    """The settings in force, named as in a KubeletConfiguration."""

    memory_manager_policy: str


class CgroupMemory(Record, frozen=True, kw_only=True):
    """What is written for the memory of a cgroup by the feature gate MemoryQoS, in bytes.

    Null: the file is left alone.  They are files of cgroup v2.
    """

    min: int | None
    """``memory.min``: the kernel never reclaims that much."""
    low: int | None
    """``memory.low``: it is reclaimed last."""
    high: int | None
    """``memory.high``: beyond it the container is slowed down."""


class ClassMemory(Record, frozen=True, kw_only=True):
    """The cgroups of QoS classes, with all pods that were admitted."""

    kubepods: CgroupMemory | UnsetType = UNSET
    """Of all pods; those that are Guaranteed are directly in it."""
    burstable: CgroupMemory | UnsetType = UNSET


class InForce(Record, frozen=True, kw_only=True):
    """Something that is wished of a node or a container, and what becomes of it."""

    feature: str
    """Its name, which is that of the setting or of the annotation."""
    value: str | None
    """What would be in force; null: nothing."""
    source: str
    """Who wished it: ``annotation KEY``, ``setting NAME``, or ``field NAME`` of the pod."""
    reason: str | None
    """Why nothing would be in force."""
    provided: str | UnsetType = UNSET
    """What has to be so on the machine, where a plan cannot know."""


class PlannedContainer(Record, frozen=True, kw_only=True):
    """A container; one without exclusive CPUs runs on the shared pool as it is at the end."""

    name: str
    kind: ContainerKind
    cpus: CPUs
    """The CPUs that it may run on; of a mixed one those that are its own."""
    exclusive: bool
    """Whether they are its own."""
    shared: CPUs | UnsetType = UNSET
    """The CPUs of the shared pool that a mixed container may use besides; no other has this."""
    idle: CPUs | UnsetType = UNSET
    """The siblings of these that stay idle and belong to nobody; only where it is SMT-isolated."""
    isolation: Isolation | UnsetType = UNSET
    """From whom the container is apart, the kubelet's word; only in a pod with a bubble.
    ``container``: it has ``cpus`` to itself; ``pod``: it shares these with others of the pod;
    ``host``: they are the node's shared pool."""
    numa_nodes: Sequence[int]
    """Where its memory comes from (``cpuset.mems``); empty: from anywhere."""
    memory: Sequence[MemoryBlock]
    """What the memory manager gave it; empty under policy None."""
    devices: Mapping[str, Sequence[str]]
    """The ids of its devices by extended resource."""
    classes: Mapping[str, Sequence[str]] | UnsetType = UNSET
    """Those of its devices that it has for a ResourceClass, by class."""
    memory_qos: CgroupMemory | UnsetType = UNSET
    """How its memory is protected and throttled, with the feature gate MemoryQoS."""
    in_force: Sequence[InForce] | UnsetType = UNSET
    """What is wished of it besides, on a node with a section ``pinfold``."""


class PlannedPod(Record, frozen=True, kw_only=True):
    """A pod, and what became of it; the containers of a rejected one have nothing."""

    namespace: str
    name: str
    uid: str
    """A missing one is derived from the name."""
    qos: QOSClass
    admitted: bool
    reason: str | None
    """Why it was rejected, the kubelet's word; ``Forbidden`` is that of a quota."""
    message: str | None
    kubelet_fault: str | None
    """The fault of the kubelet that decided."""
    notes: Sequence[str]
    """Wishes that were not binding and could not be met."""
    bubble: Bubble | UnsetType = UNSET
    """What it has as a whole; only of a pod that the managers serve so."""
    not_whole: str | UnsetType = UNSET
    """Why it has no CPUs as a whole, although it has resources of its own."""
    shares: str | UnsetType = UNSET
    """Why it has no exclusive CPUs, although it is Guaranteed."""
    memory_qos: CgroupMemory | UnsetType = UNSET
    """How the memory of the pod's cgroup is protected, with the feature gate MemoryQoS."""
    containers: Sequence[PlannedContainer]
    moves: MovePlan | UnsetType = UNSET
    """Under policy ``dynamic``: moves of others after which a rejected pod would be admitted."""


class MemoryUse(Record, frozen=True, kw_only=True):
    """One kind of memory of a NUMA node, in bytes; null where nobody counts by NUMA node."""

    type: str
    total: int
    """All of it; that of ``memory`` has the huge pages in it."""
    reserved: int | None
    """What ``reservedMemory`` keeps from pods."""
    allocatable: int | None
    used: int | None
    free: int | None


class DeviceCounts(Record, frozen=True, kw_only=True):
    """How many devices there are of a resource."""

    total: int
    allocatable: int
    """The healthy ones."""
    used: int
    free: int


class PlannedNUMANode(Record, frozen=True, kw_only=True):
    """A NUMA node, as it is with all pods that were admitted."""

    id: int
    group: Sequence[int]
    """The nodes that containers have memory of together with this one, itself among them."""
    memory: Sequence[MemoryUse]
    devices: Mapping[str, DeviceCounts]
    """By extended resource: those near this node."""


class PlannedResize(Record, frozen=True, kw_only=True):
    """A resize of a running container, and whether it can be done."""

    pod: str
    """``namespace/name``."""
    container: str
    cpus: int | float
    """How many CPUs were asked for; only a whole number is feasible, but for a mixed container."""
    feasible: bool
    """One that is not changes nothing."""
    reason: str | None
    """Why it is infeasible, one of KEP-5554's names: ``prohibitedCPUAllocationError``,
    ``inconsistentCPUAllocationError``, ``getBaselineCPUSetError``, ``resizeAllocateCPUsError``;
    or ``Forbidden``, where a quota refuses it.  The answer of a kubelet that was asked for is
    ``Infeasible``, the reason of an admission that fails, or ``Invalid``, the API server's."""
    message: str | None
    before: CPUs
    """Its exclusive CPUs; empty where it has none of its own."""
    after: CPUs
    """The same where it is infeasible, and with a kubelet in any case."""
    moves: MovePlan | UnsetType = UNSET
    """The steps in which a running one gets there; where it is feasible; a kubelet has none."""


class QuotaUse(Record, frozen=True, kw_only=True):
    """A ResourceQuota, and what is in use of it."""

    namespace: str
    name: str
    scopes: Sequence[str]
    """What a pod has to meet to be counted: ``Terminating``, ``PriorityClass In [batch]``."""
    hard: Mapping[str, str]
    """The most, by name, as quantities."""
    used: Mapping[str, str]
    """What is in use; names that are not about pods are left out."""
    notes: Sequence[str] | UnsetType = UNSET
    """Which of the names are left out, and why; only where there are some."""


class Plan(Document, frozen=True, kw_only=True):
    """Where a kubelet would place some pods on a machine."""

    machine: PlannedMachine
    kubelet: Kubelet
    config: PlannedConfig
    pods: Sequence[PlannedPod]
    """In the order of their admission."""
    shared: CPUs
    """The shared pool at the end, the kubelet's default CPU set."""
    pool: CPUs | UnsetType = UNSET
    """Where its containers run, where that leaves isolated CPUs out."""
    reserved: CPUs
    """CPUs that are never given exclusively."""
    allocatable: CPUs
    """CPUs that may be given exclusively, or are; empty under policy none, and without siblings
    that stay idle."""
    numa: Sequence[PlannedNUMANode]
    devices: Mapping[str, DeviceCounts]
    """By extended resource: all of ``--devices``."""
    classes: Mapping[str, DeviceCounts] | UnsetType = UNSET
    """By ResourceClass: the devices of this node that may be given for it."""
    memory_qos: ClassMemory | UnsetType = UNSET
    """How the memory of the cgroups above the pods is protected, with the feature gate MemoryQoS;
    an agent that runs the containers itself has none of them."""
    in_force: Sequence[InForce] | UnsetType = UNSET
    """What is wished of the node besides, where it has a section ``pinfold``."""
    resizes: Sequence[PlannedResize] | UnsetType = UNSET
    """The answers to ``--resize``, in its order; all else is as it is after them."""
    resize_rules: ResizeRules | UnsetType = UNSET
    """By whose rules they are answered: those of KEP-5554, as Pinfold resizes, or those of the
    kubelet."""
    quotas: Sequence[QuotaUse] | UnsetType = UNSET
    """The ResourceQuotas among the manifests, as they are with all pods that were admitted."""
    notes: Sequence[str] | UnsetType = UNSET
    """What was passed over while reading; a comparison has them in one place for both plans."""


class PodName(Record, frozen=True, kw_only=True):
    """Which pod."""

    namespace: str
    name: str


class Comparison(Document, frozen=True, kw_only=True):
    """Two plans of the same pods: what ``pinfold plan`` prints with ``--compare`` and the like."""

    changed: Sequence[PodName]
    """The pods whose admission, exclusive CPUs, memory or devices differ."""
    before: Plan
    after: Plan
    refused: Sequence[str] | UnsetType = UNSET
    """With what words the kubelet of ``--compare-kubelet-version`` does not start; ``after`` is
    without what it refuses."""
    differences: Sequence[str] | UnsetType = UNSET
    """What the two kubelets have or do otherwise under these settings, whether it matters to these
    pods or not; only where they are of two versions."""
    notes: Sequence[str]
    """What was passed over while reading."""
