"""What a simulation counted: ``pinfold simulate -o json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from pinfold.documents.records import Document, Record

Count = Annotated[int, Meta(ge=0)]


class Fates(Record, frozen=True, kw_only=True, rename="camel"):
    """What became of the pods that came; arrived = running + ended + rejected + waiting."""

    arrived: Count
    running: Count
    """At the end of the run."""
    ended: Count
    rejected: Count
    """Given up: refused at every attempt that ``retry`` allows."""
    waiting: Count
    """Refused, and to be tried again when the run ended."""
    placed_at: Mapping[str, Count]
    """How many were let in at their first attempt ("1"), at their second, and so on."""
    rejected_by: Mapping[str, Count]
    """Of those given up: by the reason of their last attempt."""
    refusals: Mapping[str, Count]
    """All attempts that came to nothing, by reason; ``Unschedulable``: no node had room, or with
    ``TopologyAware`` none of those that were asked would let the pod in."""


class Averages(Record, frozen=True, kw_only=True, rename="camel"):
    """Means over time, from the end of the warm-up to the end of the run."""

    allocatable_cpus: float
    requested_cpus: float
    """Of all pods."""
    exclusive_cpus: float
    """Those that containers own."""
    free_cpus: float
    """Those that nobody owns, and somebody could."""
    stranded_cpus: float
    """Free, but the node's policy gives them to nobody, whatever he asks for."""
    idle_sockets: float
    """Sockets that could sleep: no CPU is owned there, and no pod of the node shares CPUs."""
    busy_nodes: float
    """Nodes on which some pod runs."""
    split_containers: float
    """Containers on more NUMA nodes than their number of CPUs needs on an empty machine."""


class Spread(Record, frozen=True, kw_only=True, rename="camel"):
    """Over how much of a machine the containers that own CPUs are spread, by container.

    Each is a number of groups -> how many containers; ``beyond`` counts those on more groups of the
    kind than their number of CPUs needs on an empty machine.
    """

    numa_nodes: Mapping[str, Count]
    sockets: Mapping[str, Count]
    caches: Mapping[str, Count]
    beyond: Mapping[str, Count]
    """``numaNodes``, ``sockets``, ``caches``, ``cores`` -> how many containers."""


class Fit(Record, frozen=True, kw_only=True, rename="camel"):
    """How much of what is free a pod of one size can use, on a sample of the nodes."""

    cpus: Count
    """The CPUs that the pod asks for, Guaranteed."""
    free_cpus: Count
    """Those that nobody owns and somebody could, of all nodes that were looked at: at most 100,
    drawn from the seed, at each of 24 moments; at one moment no more of them than those for which
    1000 answers of a kubelet had to be worked out."""
    usable_cpus: Count
    """Those that pods of this size would be given, one after the other until one is refused."""


class Moves(Record, frozen=True, kw_only=True, rename="camel"):
    """What the policy ``dynamic`` moved, and its price."""

    made_room: Count
    """Plans that moved others so that a pod could be let in."""
    rebalances: Count
    """Plans that made places better."""
    containers: Count
    """Containers that moved."""
    cpus: Count
    """CPUs that were new to their container."""
    memory_bytes: Count
    """Memory of the containers that moved to other NUMA nodes, as they requested it."""


class Replayed(Record, frozen=True, kw_only=True, rename="camel"):
    """A sample of the decisions, made once more by the planner from the node's whole state."""

    decisions: Count
    different: Count
    """Always 0, or there is a fault."""


class WorstDecision(Record, frozen=True, kw_only=True, rename="camel"):
    """A decision that somebody would want to look into."""

    at: float
    """Seconds of the run."""
    node: str
    pod: str
    cpus: Count
    """What it asked for."""
    admitted: bool
    reason: str | None
    free_cpus: Count
    """What the node had free then, of the CPUs that containers may own."""
    why_here: str
    """What makes it one of the worst."""
    explanation: Sequence[str]
    """Its reasons, as ``pinfold explain`` tells them."""


class Run(Record, frozen=True, kw_only=True, rename="camel"):
    """One configuration with one seed."""

    configuration: str
    """Its name; a point of a sweep has its options in it."""
    seed: int
    nodes: Mapping[str, Count]
    """Name of the kind -> how many."""
    complete: bool
    """False: it was interrupted at ``until``."""
    until: float
    """Seconds of the run at which it ended."""
    counted_from: float
    """Where the warm-up ended; fates, spread and moves count what came later."""
    fates: Fates
    averages: Averages
    spread: Spread
    fits: Sequence[Fit]
    moves: Moves
    replayed: Replayed
    series: Mapping[str, Sequence[int | float]]
    """Columns of equal length; ``time`` in seconds of the run, the others at that moment."""
    worst: Sequence[WorstDecision] = ()


class Needed(Record, frozen=True, kw_only=True, rename="camel"):
    """How many nodes a configuration needs to reject no more than another one does."""

    configuration: str
    seed: int
    acceptance: float
    """The share of pods that is to be let in."""
    nodes: Mapping[str, Count] | None
    """Kind -> how many; null: not even the most that was tried was enough."""
    factor: float | None
    """Times the nodes of the experiment."""
    tried: Sequence[tuple[float, float]]
    """Each factor that was tried, with the share that was let in."""


class Simulation(Document, frozen=True, kw_only=True, rename="camel"):
    """What a fleet would have done, each configuration beside the others."""

    kind: Literal["Simulation"] = "Simulation"
    name: str
    """Of the experiment."""
    experiment: Mapping[str, Any]
    """As it was read."""
    configurations: Sequence[str]
    """In the order of the experiment; the first is what the others are compared with."""
    runs: Sequence[Run]
    """By configuration, then by seed; interrupted ones and those that are missing say so."""
    missing: Sequence[tuple[str, int]] = ()
    """Configuration and seed of the runs that were not begun."""
    needed: Sequence[Needed] | UnsetType = UNSET
    notes: Sequence[str] = ()
    """What was passed over while reading, and what the figures do not tell."""
