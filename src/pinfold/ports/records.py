"""What the agent writes down: pods with their CPUs, and the history of decisions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from pinfold.core.memory.memory import Block
from pinfold.core.moves.gone import renamed
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.steps import MovePlan, MoveState, after
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved

CANNOT_RUN: Final = "ContainerCannotRun"
"""The reason of a pod that failed because a container of it could not be started."""

UNHEALTHY_DEVICE: Final = "UnhealthyDevice"
"""The reason of a pod that was ended because a device of it failed."""


class PodPhase(Enum):
    """How far a pod is.  The first three own their CPUs, the others hold nothing.

    ADMITTED: decided and written down; nothing in the kernel yet has to be true.  RUNNING: its
    containers were started.  TERMINATING: it is to go, its containers may still run.  SUCCEEDED,
    FAILED: the API's phases, of pods that were admitted.  REJECTED: it never was, and none of its
    containers has run.
    """

    ADMITTED = "Admitted"
    RUNNING = "Running"
    TERMINATING = "Terminating"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    REJECTED = "Rejected"

    @property
    def is_active(self) -> bool:
        """Whether the pod owns its CPUs."""
        return self in (PodPhase.ADMITTED, PodPhase.RUNNING, PodPhase.TERMINATING)


class DeviceGrant(Struct, frozen=True):
    """Devices of one resource that a container has, by id.

    ``response`` is the plugin's serialized ``ContainerAllocateResponse``, from which the container
    is started again without asking the plugin.
    """

    ids: tuple[str, ...]
    response: bytes = b""


DeviceGrants = Mapping[str, DeviceGrant]
"""Resource name -> the devices that a container has of it."""


class ByLoad(Struct, frozen=True):
    """What has to be known later of a container that has its CPUs by load.

    Attributes:
        used: the CPUs that it used when it was last promoted; None where nobody knows, or it never
            was.
        at: when it came to where it is now, CPUs of its own or the shared pool, in seconds since
            the epoch; 0 where it is where it began.
        uptime: the same in seconds of ``CLOCK_BOOTTIME``; no change of the clock moves them.
        boot: the boot that they are of.
    """

    used: float | None = None
    at: float = 0.0
    uptime: float = 0.0
    boot: str = ""

    def seconds(self, uptime: float, boot: str) -> float:
        """For how long it is known to be where it is: a boot begins anew."""
        return max(0.0, uptime - self.uptime) if self.at and boot == self.boot else 0.0


class PodRecord(Struct, frozen=True):
    """One pod as the agent remembers it.

    ``manifest`` is the pod as JSON, enough to decide and start anew; ``source`` says who asked
    (``api``, ``run``, ``nri``, or a folder); ``assignments`` holds the exclusive CPUs by
    container, ``idle`` those of them on which nothing runs, of containers that are SMT-isolated,
    ``baselines`` those that it was admitted with where it has others now, ``memory`` the memory
    manager's blocks, ``devices`` what plugins gave; ``load_driven`` are the containers that have
    CPUs of their own by load, with what is known of each; ``restarts`` counts attempts by
    container; times are seconds since the epoch.

    ``bubble`` are the CPUs of the pod as a whole, which include all those of its containers, and
    ``bubble_memory`` are its blocks; empty: it has no bubble.
    """

    uid: str
    namespace: str
    name: str
    manifest: str
    phase: PodPhase
    source: str = "api"
    reason: str | None = None
    message: str | None = None
    admitted_at: float = 0.0
    assignments: Mapping[str, CPUSet] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, tuple[Block, ...]] = field(default_factory=dict)
    devices: Mapping[str, DeviceGrants] = field(default_factory=dict)
    baselines: Mapping[str, CPUSet] = field(default_factory=dict)
    idle: Mapping[str, CPUSet] = field(default_factory=dict)
    load_driven: Mapping[str, ByLoad] = field(default_factory=dict)
    bubble: CPUSet = CPUSet()
    bubble_memory: tuple[Block, ...] = ()

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    def baseline(self, container: str) -> CPUSet | None:
        """The CPUs that a container was admitted with, as far as it has them; None: it has none."""
        claim = self.assignments.get(container)
        if claim is not None and container in self.idle:
            claim -= self.idle[container]
        return self.baselines.get(container, claim)

    def memory_nodes(self, container: str) -> CPUSet | None:
        """The NUMA nodes that a container's memory comes from; None where it may be any."""
        blocks = self.memory.get(container, ())
        return CPUSet(node for block in blocks for node in block.numa_affinity or ()) or None

    def without_resources(self) -> PodRecord:
        """The record of a pod that has given everything back."""
        return replace(
            self,
            assignments={},
            memory={},
            devices={},
            baselines={},
            idle={},
            load_driven={},
            bubble=CPUSet(),
            bubble_memory=(),
        )


_MOMENT: Final = 1e-6
"""Seconds that a pause is too coarse for."""


class PendingResize(Struct, frozen=True):
    """The resize that moves carry out: from ``was`` CPUs to ``now``."""

    owner: Owner
    was: int
    now: int


class PendingMove(Struct, frozen=True, dict=True):
    """The plan of moves that is in flight on a node; there is one at most.

    Attributes:
        plan: where owners go, step by step.
        why: ``resize``, ``rebalance``, ``make-room`` or ``load-driven``.
        written: how many of its steps are on record; any of the last that have the same claims may
            not have been made yet.
        began_at: seconds since the epoch.
        deadlines: until when nothing is taken from those that were told, in seconds of
            ``CLOCK_BOOTTIME``; no change of the clock moves them.
        boot: the boot that they are of.
        resize: what it is made for, where that is a resize.
        problem: why it is undone, on the way back.
        held_up: why it does not go on at the moment; as ``made`` and ``widens`` not on record.
        made: how many of its steps this agent has made, or is making; what is written, for whoever
            reads a record: he puts everybody there, and makes the last of them again before others.
        memory: what became of the memory in the steps of these numbers.
        widens: whether the last of those made gives an owner more, and the kernel has not confirmed
            it so far.
    """

    plan: MovePlan
    why: str
    written: int = 0
    began_at: float = 0.0
    deadlines: Mapping[Owner, float] = field(default_factory=dict)
    boot: str = ""
    resize: PendingResize | None = None
    problem: str = ""
    made: int = 0
    memory: Mapping[int, MemoryMoved] = field(default_factory=dict)
    widens: bool = False
    held_up: str = ""

    @cached_property
    def on_record(self) -> MoveState:
        """What holds once all that is written is made: everybody's claims."""
        return after(self.plan, self.written)

    @cached_property
    def holds(self) -> MoveState:
        """Where everybody who moves is to run now, and what was announced."""
        return after(self.plan, self.made)

    @property
    def confirmed(self) -> PendingMove:
        """The same without what an owner is only being given: it cannot use that so far.

        Nor, on the way back, with what it may never have got, or is about to lose.
        """
        plan = self.plan
        if plan.back:
            end = plan.end.placed
            kept = {
                owner: cpus & end[owner] or (cpus if end[owner] else end[owner])
                for owner, cpus in plan.start.placed.items()
            }
            plan = replace(plan, start=replace(plan.start, placed=kept))
        return replace(self, plan=plan, made=self.made - self.widens, widens=False)

    @property
    def start_over(self) -> PendingMove:
        """The same as whoever reads it from a record has it."""
        return replace(self, made=self.written)

    def renamed(self, names: Mapping[Owner, Owner]) -> PendingMove:
        """The same, with other names for owners that have ended; nobody's resize is over then."""
        return replace(
            self,
            plan=renamed(self.plan, names),
            deadlines={names.get(owner, owner): at for owner, at in self.deadlines.items()},
            resize=None if self.resize is None or self.resize.owner in names else self.resize,
        )

    def seconds_left(self, owner: Owner, uptime: float, boot: str) -> float:
        """For how long nothing is taken from an owner; a boot ends all deadlines."""
        deadline = self.deadlines.get(owner)
        if deadline is None or boot != self.boot or deadline - uptime < _MOMENT:
            return 0.0
        return deadline - uptime


class ObjectKey(NamedTuple):
    """Which object; ``namespace`` is "" for one that is of none."""

    kind: str
    namespace: str
    name: str


class ObjectRecord(Struct, frozen=True):
    """An object beside the pods, such as a ResourceQuota.

    ``manifest`` is it as JSON; ``source`` says who asked: ``api``, or the file that it is from.
    """

    key: ObjectKey
    manifest: str
    source: str = "api"


class AppliedObject(NamedTuple):
    """An object that was taken, and what in it may not be meant so."""

    key: ObjectKey
    warnings: tuple[str, ...] = ()


class NodeRecord(Struct, frozen=True):
    """The node at the last commit, for the checks at the next start.

    ``runtime`` is what runs the containers of its pods, ``cgroups`` the tree that they are in; ""
    where an older program wrote it, or where there is none.  ``kubelet_version`` is the kubelet as
    which is decided, such as ``1.36``.
    """

    policy_name: str
    default: CPUSet
    reserved: CPUSet
    machine: CPUSet
    memory_policy: str = "None"
    runtime: str = ""
    cgroups: str = ""
    kubelet_version: str = ""


class HistoryEntry(Struct, frozen=True):
    """One thing that happened: ``kind`` is a word such as ``admitted`` or ``repaired``.

    ``document`` is JSON (for a decision what ``pinfold explain`` prints); ``number`` grows, and is
    given by the store.
    """

    at: float
    kind: str
    pod_uid: str | None
    pod: str | None
    """The pod as ``namespace/name``; None for what concerns the node."""
    document: str
    number: int = 0


class Record(Struct, frozen=True):
    """Everything that a restarted agent knows; ``node`` is None at the first start.

    ``generation`` counts the batches that were ever committed.  ``promised`` is what the count was
    known to be: where that is more, the record has lost batches, such as to a damaged disk.  Two
    records that say the same of node and pods are equal, whatever their counts.
    """

    node: NodeRecord | None = None
    pods: Mapping[str, PodRecord] = field(default_factory=dict)
    """By uid, oldest first."""
    generation: int = 0
    promised: int = 0
    move: PendingMove | None = None
    objects: Mapping[ObjectKey, ObjectRecord] = {}

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        ours = (self.node, self.pods, self.move, self.objects)
        return ours == (other.node, other.pods, other.move, other.objects)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment] # mappings have none


class Batch(Struct, frozen=True):
    """One transaction: pods to write and to forget, the node, entries of the history.

    ``above`` is a generation that the record's is to be above afterwards; ``move`` None: no plan of
    moves is in flight any more.  Of ``objects`` those that are None are forgotten.
    """

    node: NodeRecord | None = None
    put: tuple[PodRecord, ...] = ()
    drop: tuple[str, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    above: int = 0
    move: PendingMove | UnsetType | None = UNSET
    objects: Mapping[ObjectKey, ObjectRecord | None] = {}

    def then(self, later: Batch) -> Batch:
        """Both in one transaction; what is to be forgotten is forgotten before anything is put."""
        gone = {*later.drop, *(pod.uid for pod in later.put)}
        return Batch(
            self.node if later.node is None else later.node,
            (*(pod for pod in self.put if pod.uid not in gone), *later.put),
            tuple(dict.fromkeys((*self.drop, *later.drop))),
            (*self.history, *later.history),
            max(self.above, later.above),
            self.move if later.move is UNSET else later.move,
            {**self.objects, **later.objects},
        )
