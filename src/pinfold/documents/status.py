"""The status of a running agent, its pods and their containers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, UnsetType, field

from pinfold.documents.cache import CacheClasses
from pinfold.documents.control import Control
from pinfold.documents.following import Interrupts, SchedulingDomains
from pinfold.documents.move_plan import MovePlan
from pinfold.documents.observation import Load, Observed
from pinfold.documents.plan import QuotaUse
from pinfold.documents.records import (
    Bubble,
    ContainerKind,
    CPUs,
    DecidesAs,
    Document,
    Isolation,
    MemoryBlock,
    Policies,
    Record,
)

Phase: TypeAlias = Annotated[
    str,
    Meta(
        extra_json_schema={
            "enum": ["Admitted", "Running", "Terminating", "Succeeded", "Failed", "Rejected"]
        }
    ),
]
Place: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": ["own", "shared", "frozen"]})]
State: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["Waiting", "CREATED", "RUNNING", "EXITED"]})
]


class Container(Record, frozen=True, kw_only=True):
    """A container of a pod."""

    name: str
    kind: ContainerKind
    cpus: CPUs
    """The CPUs that it may run on; of a mixed one those that are its own."""
    exclusive: bool
    """Whether they are its own."""
    shared: CPUs | UnsetType = UNSET
    """The CPUs of the shared pool that a mixed container may use besides, without a CPU quota; no
    other has this."""
    idle: CPUs | UnsetType = UNSET
    """The siblings of these that stay idle and belong to nobody; only where it is SMT-isolated."""
    isolation: Isolation | UnsetType = UNSET
    """From whom the container is apart, the kubelet's word; only in a pod with a bubble.
    ``container``: it has ``cpus`` to itself; ``pod``: it shares these with others of the pod;
    ``host``: they are the node's shared pool."""
    lent: CPUs | UnsetType = UNSET
    """Those of its own that are lent: best-effort containers run there while it does not."""
    offline: CPUs = ""
    """Those of its own that are offline."""
    place: Place = "own"
    """Whether it runs on its own CPUs, in the shared pool, or not at all."""
    numa_nodes: Sequence[int]
    """Where its memory comes from (``cpuset.mems``); empty: from anywhere."""
    memory: Sequence[MemoryBlock]
    """What the memory manager gave it."""
    devices: Mapping[str, Sequence[str]]
    """The ids of its devices by resource; of a kubelet's containers it is empty."""
    state: State
    """Waiting: not created yet, or between two attempts."""
    pid: int | None
    """The main process, while there is one."""
    restarts: int
    exit_code: int | None
    """Of the last attempt, 128 + the signal where one ended it; null while it runs."""
    ran_shared_seconds: float | None = None
    """How long an owner of CPUs, created while no agent was there, ran before it had them to
    itself; null where it never did."""
    load: Load | UnsetType = UNSET
    """What it did in the last interval; only where the agent observes, and has seen it twice."""


class Pod(Record, frozen=True, kw_only=True):
    """A pod that the agent was asked for."""

    namespace: str
    name: str
    uid: str
    qos: Annotated[
        str, Meta(extra_json_schema={"enum": ["Guaranteed", "Burstable", "BestEffort", ""]})
    ]
    """Empty for an unreadable record."""
    phase: Phase
    reason: str | None
    """Why it was rejected or ended, the kubelet's word."""
    message: str | None
    source: str
    """Who asked: ``api``, ``run``, or the folder of its manifest."""
    admitted_at: float
    """When it was decided about, in seconds since the epoch."""
    containers: Sequence[Container]
    bubble: Bubble | UnsetType = UNSET
    """What it has as a whole; only of a pod that the managers serve so."""

    @property
    def is_rejected(self) -> bool:
        """Whether it was not admitted; an agent of before that phase calls it ``Failed``."""
        return self.phase == "Rejected" or (
            self.phase == "Failed"
            and all(c.state == "Waiting" and c.exit_code is None for c in self.containers)
        )


class WrittenLimits(Record, frozen=True, kw_only=True):
    """What a cgroup of a pod is limited to, or that of all who borrow."""

    pod_uid: str
    """Empty for that of all who borrow."""
    container: str
    """Empty for the pod's own cgroup."""
    folder: str
    files: Mapping[str, str]
    """What each file was given, as the kernel shows it; those that were left alone are not here."""


class CgroupTree(Record, frozen=True, kw_only=True):
    """How the agent confines containers."""

    version: int | UnsetType = UNSET
    """Of the kernel's cgroups."""
    path: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    """``runtime``: a container runtime makes them; ``affinity``: there are none."""
    controllers: Sequence[str] | UnsetType = UNSET
    limitations: Sequence[str] | UnsetType = UNSET
    """What does not hold without cgroups."""
    limits: Sequence[WrittenLimits] | UnsetType = UNSET
    """What the agent has limited containers and pods to; not where a runtime does so."""


class Problem(Record, frozen=True, kw_only=True):
    """What is out of order."""

    problem: str


class ContainerRuntime(Record, frozen=True, kw_only=True):
    """The container runtime that is told what to run (CRI)."""

    name: str
    version: str
    endpoint: str
    behind: int
    """Containers of which it has other CPUs on record than they have."""
    problem: str
    """Why it does not answer; empty while it does."""


class KubeletPodResources(Record, frozen=True, kw_only=True):
    """Questions to the kubelet, for the devices of pods."""

    socket: str
    asked: int
    unanswered: int
    problem: str


class PodSpecifications(Record, frozen=True, kw_only=True):
    """Questions to the API server, for what pods ask for as a whole."""

    server: str = ""
    """The API server; empty: there is none."""
    asked: int = 0
    unread: int = 0
    """Pods that share, as their specification could not be read."""
    problem: str = ""


class Gates(Record, frozen=True, kw_only=True):
    """The cpusets above a kubelet's containers that hold everybody below them (cgroup v2)."""

    held: Mapping[str, CPUs] = {}
    """What was written into each, by its folder."""
    rewritten: int = 0
    """How often somebody else had written one, and it was written again."""


class NRI(Record, frozen=True, kw_only=True, rename="camel"):
    """The connection to the container runtime of a kubelet."""

    socket: str
    connected: bool
    runtime: str
    kubelet_policy: str
    """The kubelet's CPU manager policy, as far as it is known."""
    audits_only: bool
    """The kubelet pins containers itself, so this agent leaves them alone."""
    problem: str
    behind: int
    """Containers of which the runtime has other CPUs on record than they have."""
    gates: Gates = Gates()
    kubelet_pod_resources: KubeletPodResources
    pod_specifications: PodSpecifications = PodSpecifications()


class Events(Record, frozen=True, kw_only=True):
    """Events of the Kubernetes API."""

    sent: int
    pending: int
    dropped: int


class Kubernetes(Record, frozen=True, kw_only=True, rename="camel"):
    """The API server of the cluster."""

    server: str
    node: str
    events: Events
    pods_compared: int
    pods_differing: int
    problems: Mapping[str, str]


class OfferedDevices(Record, frozen=True, kw_only=True):
    """What device plugins offer of one resource."""

    capacity: int
    allocatable: int
    in_use: int
    connected: bool


class DevicePlugins(Record, frozen=True, kw_only=True):
    """The device plugins of the agent."""

    folder: str | None
    resources: Mapping[str, OfferedDevices]


class PodResources(Record, frozen=True, kw_only=True):
    """The podresources API that the agent serves."""

    socket: str


Part: TypeAlias = (
    ContainerRuntime
    | NRI
    | Kubernetes
    | DevicePlugins
    | PodResources
    | Interrupts
    | SchedulingDomains
    | Control
    | CacheClasses
)
"""What a part of an agent says of itself."""


class Agent(
    Record,
    frozen=True,
    kw_only=True,
    rename={
        "container_runtime": "containerRuntime",
        "device_plugins": "devicePlugins",
        "pod_resources": "podResources",
        "scheduling_domains": "schedulingDomains",
    },
):
    """What an agent says of itself."""

    version: str
    node: str = ""
    """What its cluster calls this node, the name of the host where there is none; empty where an
    agent of before this field tells it."""
    pid: int
    started_at: float
    """Seconds since the epoch."""
    state_dir: str
    config_file: str | None
    runtime: str
    """``process``, ``cri`` or ``nri``."""
    kubelet: DecidesAs | UnsetType = UNSET
    problems: Sequence[str] = ()
    """What fails in the background now, and is tried again."""
    cgroups: CgroupTree = CgroupTree()
    hugepages: Problem | UnsetType = UNSET
    """Pages that were given and are gone."""
    cpus: Problem | UnsetType = UNSET
    """The online CPUs cannot be followed."""
    container_runtime: ContainerRuntime | UnsetType = UNSET
    """Only with ``runtime: cri``."""
    nri: NRI | UnsetType = UNSET
    """Only with ``runtime: nri``."""
    kubernetes: Kubernetes | UnsetType = UNSET
    """Only where the agent talks to an API server."""
    device_plugins: DevicePlugins | UnsetType = UNSET
    pod_resources: PodResources | UnsetType = UNSET
    interrupts: Interrupts | UnsetType = UNSET
    """Only where interrupts are to be kept off the CPUs of some container."""
    control: Control | UnsetType = UNSET
    """Only where something is decided by load or by time."""
    cache: CacheClasses | UnsetType = UNSET
    """Only where caches are to be divided."""
    scheduling_domains: SchedulingDomains | UnsetType = UNSET
    """Only where the CPUs of some container are to be a partition."""


class AgentConfig(Policies, frozen=True, kw_only=True):
    """The settings in force, named as in a KubeletConfiguration."""

    reserved_system_cpus: CPUs = field(name="reservedSystemCPUs")


class Times(Record, frozen=True, kw_only=True):
    """How often something was done, and the seconds that it took in all."""

    count: int
    seconds: float


class Counters(Record, frozen=True, kw_only=True):
    """Totals since the agent started; times are seconds."""

    admissions: int
    rejections: Mapping[str, int]
    """By reason."""
    quota_refusals: Mapping[str, int] | UnsetType = UNSET
    """Pods and resizes, by ``namespace/name`` of the quota; of those that there are."""
    pinning_requests: int
    pinning_errors: int
    memory_pinning_requests: int
    memory_pinning_errors: int
    resource_allocations: Mapping[str, int] | UnsetType = UNSET
    """By resource and source, as in ``cpu/node``, and ``memory/pod`` of a pod as a whole."""
    resource_allocation_errors: Mapping[str, int] | UnsetType = UNSET
    container_assignments: Mapping[str, int] | UnsetType = UNSET
    alignment_requests: int
    alignment_errors: int
    aligned: Mapping[str, int]
    """By scope and boundary, as in ``container/numa_node``."""
    alignment_failures: Mapping[str, int]
    device_allocations: Mapping[str, Times]
    """By resource, those that failed too."""
    container_starts: int
    container_start_seconds: float
    container_start_buckets: Mapping[str, int]
    """How many starts took no longer than so many seconds."""
    container_exits: int
    reconciles: int
    reconcile_seconds: float
    repairs: int
    escapes: int
    cgroup_failures: int
    stays_shared: int
    """How often a load-driven container should have had CPUs of its own, and none fitted it."""
    moves: Mapping[str, Times]
    """Plans of moves that are over, by why and outcome, as in ``resize/done``."""


class Status(Document, frozen=True, kw_only=True):
    """The agent, its CPUs and its pods."""

    agent: Agent
    config: AgentConfig
    pods: Sequence[Pod]
    """In the order of their admission, the ended ones too."""
    shared: CPUs
    """The shared pool, the kubelet's default CPU set."""
    pool: CPUs
    """Where the containers of the shared pool really run: without offline CPUs, and without
    ``reservedSystemCPUs`` while there is any other."""
    reserved: CPUs
    """CPUs that are never given exclusively."""
    allocatable: CPUs
    """CPUs that may be given exclusively, or are; empty under policy none, and without siblings
    that stay idle."""
    offline: CPUs
    """CPUs of the machine that are offline."""
    unhealthy_in_use: Mapping[str, Mapping[str, int]] = {}
    """By resource and NUMA node (``none`` where none is known): how many devices containers have
    that are unhealthy, or whose plugin is gone."""
    move: MovePlan | None = None
    """The plan of moves that is in flight."""
    quotas: Sequence[QuotaUse] | UnsetType = UNSET
    """The ResourceQuotas, and what is in use of them; only where there are any."""
    observation: Observed | UnsetType = UNSET
    """Only where the agent observes."""
    counters: Counters
