"""A plan of moves: how owners of CPUs get other ones while they run, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.records import CPUs, Document, Record, Size

RESIZE: Final = "resize"
REBALANCE: Final = "rebalance"
MAKE_ROOM: Final = "make-room"
LOAD_DRIVEN: Final = "load-driven"
PARKING: Final = "parking"
UNDO: Final = "undo"
WHY: Final = (RESIZE, REBALANCE, MAKE_ROOM, LOAD_DRIVEN, PARKING, UNDO)
"""Why there is a plan; the last is the way back from any other."""

NUMANodes: TypeAlias = Annotated[
    str,
    Meta(
        extra_json_schema={
            "pattern": r"^(\d+(-\d+)?(,\d+(-\d+)?)*)?$",
            "description": "a set of NUMA nodes in the kernel's list format",
        }
    ),
]


class MoveOwner(Record, frozen=True, kw_only=True):
    """An owner of CPUs."""

    uid: str
    """Of the pod."""
    pod: str
    """``namespace/name``; empty where it is not known."""
    container: str | None
    """Null where the whole pod is the owner."""


class MovingOwner(MoveOwner, frozen=True, kw_only=True):
    """An owner that is part of the plan."""

    before: CPUs
    """Where it runs at the start; empty: in the shared pool, and so ``after``."""
    after: CPUs
    claims: CPUs
    """What it owns on record at the start; more than ``before`` on the way."""
    delay: float = 0.0
    """Seconds for which it is told before any of its CPUs is taken."""
    coming: CPUs | UnsetType = UNSET
    """What it was told at the start, where it was told anything."""
    memory_before: NUMANodes | UnsetType = UNSET
    """``cpuset.mems``, where the plan changes it."""
    memory_after: NUMANodes | UnsetType = UNSET


class ClaimedCPUs(MoveOwner, frozen=True, kw_only=True):
    """CPUs that an owner gets from the shared pool."""

    cpus: CPUs


class MovedMemory(Record, frozen=True, kw_only=True):
    """Bytes that an owner had on a NUMA node; a page that several processes map counts in parts."""

    node: int
    before: Size
    after: Size


class MemoryMoved(Record, frozen=True, kw_only=True):
    """What became of an owner's memory when it was to go to other NUMA nodes; bytes."""

    seconds: float
    moved: Size
    """What was elsewhere, and is not any more."""
    stayed: Size
    """What is elsewhere still; that is, for a part:"""
    huge: Size = 0
    """Of hugetlb."""
    locked: Size = 0
    """Locked by ``mlock(2)``."""
    pinned: Size = 0
    """At most so much is held for a device or by the kernel, and cannot be moved."""
    nodes: Sequence[MovedMemory] = ()


class MoveStep(Record, frozen=True, kw_only=True):
    """One step; it may be made more than once."""

    kind: Annotated[
        str,
        Meta(
            extra_json_schema={
                "enum": [
                    "shrink-pool",
                    "widen",
                    "announce",
                    "wait",
                    "narrow",
                    "migrate-memory",
                    "give-back",
                ]
            }
        ),
    ]
    owner: MoveOwner | UnsetType = UNSET
    """Whose it is; the pool's have none."""
    was: CPUs | UnsetType = UNSET
    now: CPUs | UnsetType = UNSET
    memory_was: NUMANodes | UnsetType = UNSET
    memory_now: NUMANodes | UnsetType = UNSET
    seconds: float | UnsetType = UNSET
    """How long the owner is told before anything is taken."""
    claims: Sequence[ClaimedCPUs] | UnsetType = UNSET
    """Who gets what of the pool."""
    cpus: CPUs | UnsetType = UNSET
    """What leaves the pool, or goes back to it."""
    memory: MemoryMoved | UnsetType = UNSET
    """What became of the memory, once it was moved."""


class MovePrice(Record, frozen=True, kw_only=True):
    """What a plan costs."""

    owners: int
    """How many get other CPUs."""
    cpus: int
    """How many CPUs they get that they did not have."""
    detours: int
    """How many times an owner goes aside first."""
    migrations: int
    """How many have their memory moved."""


class MoveObjective(Record, frozen=True, kw_only=True):
    """How good the placements are; less is better, and the first difference decides."""

    levels: Sequence[str]
    """What is counted, the most important first."""
    before: Sequence[int]
    after: Sequence[int]


class StayingOwner(MoveOwner, frozen=True, kw_only=True):
    """An owner that may not move, and whose place could be better."""

    reason: str
    """For people."""


class MovePlan(Document, frozen=True, kw_only=True):
    """How owners of CPUs get other ones while they run; no CPU has two owners at any instant."""

    why: Annotated[str, Meta(extra_json_schema={"enum": [*WHY]})]
    pool: CPUs
    """The shared pool at the start."""
    pool_after: CPUs
    owners: Sequence[MovingOwner]
    mixed: Sequence[MoveOwner]
    """Owners that run on the shared pool besides, those that do not move too."""
    steps: Sequence[MoveStep]
    written: int = 0
    """How many of the steps are on record; the last of these may not have been made yet."""
    problem: str | UnsetType = UNSET
    """Why it is the way back from another plan, and what of that could not be undone."""
    price: MovePrice
    objective: MoveObjective | UnsetType = UNSET
    stays: Sequence[StayingOwner] | UnsetType = UNSET
    """Who may not move, of those whose place could be better; only of a rebalance."""
    notes: Sequence[str] | UnsetType = UNSET
    """What else is to be known of the node that the plan is for."""
