"""What containers and CPUs do: rates over the last seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.records import Document, Record

WaitSource: TypeAlias = Annotated[
    str, Meta(extra_json_schema={"enum": ["cpu.pressure", "schedstat", ""]})
]


class Pressure(Record, frozen=True, kw_only=True):
    """Shares of the time, 0 to 1, for which tasks were stalled for want of something (PSI)."""

    some: float
    """Some task was."""
    full: float | None
    """All were; null where the kernel does not tell."""


class Load(Record, frozen=True, kw_only=True):
    """What a container did on average; null is what this kernel does not tell."""

    seconds: float
    """The time over which it was measured."""
    usage: float | None
    """CPUs in use: seconds of CPU time in a second."""
    wait: float | None
    """Seconds in a second for which it was ready to run and no CPU was free for it.  From
    ``cpu.pressure`` it is the share of the time in which some task waited, 1 at most; from
    ``schedstat`` the sum of its threads', as far as each was seen at both ends of an interval."""
    throttled: float | None
    """Seconds in a second for which its quota kept it from running."""
    throttled_periods: float | None
    """The share of its quota periods in which that happened; null also where there were none."""
    pressure: Mapping[str, Pressure]
    """By what there was too little of: ``cpu``, ``memory``, ``io``; empty on cgroup v1."""


class Interval(Record, frozen=True, kw_only=True):
    """One interval between two readings."""

    ago: float
    """Seconds from its end to the newest reading."""
    load: Load


class ContainerLoad(Record, frozen=True, kw_only=True):
    """What a container did: in the last interval, and in about the last 10 and 60 seconds."""

    pod_uid: str
    pod: str
    """``namespace/name``."""
    container: str
    last: Load
    ten_seconds: Load
    minute: Load
    history: Sequence[Interval] | UnsetType = UNSET
    """Every interval that is remembered, the oldest first; only where it is asked for."""


class CPULoad(Record, frozen=True, kw_only=True):
    """The share of the time, 0 to 1, for which a CPU had nothing to do."""

    cpu: int
    last: float
    ten_seconds: float
    minute: float


class Cost(Record, frozen=True, kw_only=True):
    """What observing costs."""

    readings: int
    """Since the agent started."""
    share: float | None
    """Of one core, over the readings that are remembered; null before the second."""


class Observed(Record, frozen=True, kw_only=True):
    """How the node is observed, and what it did in the last interval."""

    period: float
    """Seconds between two readings."""
    wait_source: WaitSource
    """Where the waits are from; empty: this kernel does not tell them."""
    lacks: Sequence[str]
    """What cannot be told here, and why."""
    cost: Cost
    idle: Mapping[str, float]
    """The share of the time for which each CPU that is online had nothing to do."""
    pressure: Mapping[str, Pressure]
    """Of the whole machine."""


class Observation(Observed, Document, frozen=True, kw_only=True):
    """What the node's containers and CPUs do."""

    cpus: Sequence[CPULoad]
    containers: Sequence[ContainerLoad]
    """Those that run and were read twice."""
