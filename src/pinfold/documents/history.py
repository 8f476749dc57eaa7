"""What entries of the history say, beside decisions, whose explanation it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinfold.documents.records import CPUs, Record


class Drifted(Record, frozen=True, kw_only=True):
    """``drifted``, ``repaired``: the kernel had something else than the record."""

    container: str | None
    """Null for the shared pool."""
    expected: str
    """In words."""
    found: str
    repaired: bool
    problem: str
    """Why it was not repaired."""


class Displaced(Record, frozen=True, kw_only=True):
    """``displaced``, ``returned``: where a container runs while CPUs are offline."""

    container: str
    cpus: CPUs
    """Its own; empty where it shares."""
    offline: CPUs
    """Those of them that are offline."""
    place: str
    """``shared``, ``frozen``, or ``own``."""
    problem: str
    """Why it is not there."""


class Controlled(Record, frozen=True, kw_only=True):
    """``controlled``: something was decided by load or by time."""

    rank: str
    """Who wished it: ``return``, ``suppression``, ``load-driven``, ``lending``, ``rebalance``,
    ``parking``."""
    why: str
    containers: list[str]
    """As ``namespace/pod/container``."""
    cpus: CPUs
    problem: str
    """Why it was not carried out; empty where it was."""
    unsaid: int
    """How many of that rank since the entry before have none: an hour has 60 of each at most."""


class TakenBack(Record, frozen=True, kw_only=True):
    """``taken-back``: the lease of what was lent was over, such as when the agent was killed."""

    cpus: CPUs
    """The CPUs of owners that were lent."""
    uncapped: bool
    """Whether a cap of best-effort containers was taken away."""
    why: str


class Resized(Record, frozen=True, kw_only=True):
    """``resized``, ``infeasible``: a running container was to have another number of CPUs."""

    container: str
    cpus: int | float
    """How many it asks for."""
    before: CPUs
    after: CPUs
    """What it is to have; as before where it is infeasible."""
    reason: str | None
    """Why it is infeasible, one word; null where it is feasible."""
    message: str | None


class SchedulingDomain(Record, frozen=True, kw_only=True):
    """``domain``: whether the kernel has made a partition of a container's CPUs."""

    container: str
    cpus: CPUs
    """Its own."""
    wished: str
    """``root`` or ``isolated``."""
    found: str
    """What the kernel says of it, such as ``isolated invalid (...)``; empty: it has none."""
    problem: str
    """Why it is not in force; empty where it is."""


class InterruptsKeptOff(Record, frozen=True, kw_only=True):
    """``interrupts``: some were moved, or are kept off other CPUs than before."""

    cpus: CPUs
    """The CPUs that are to have none."""
    others: CPUs
    """Where they go."""
    kept: int
    """How many are off these CPUs now because of the agent."""
    moved: Sequence[str]
    """Those that have just been moved, such as ``irq 24 eth0-rx-0``."""
    contested: Sequence[str]
    """Those that were moved again, since somebody else had moved them back."""
    fixed: Sequence[str]
    """Those that may come to these CPUs, and that nobody can move."""


class StaysShared(Record, frozen=True, kw_only=True):
    """``stays-shared``: a load-driven container should have CPUs of its own, and none fit it."""

    container: str
    problem: str
    """Why none do."""


class QuotaChanged(Record, frozen=True, kw_only=True):
    """``quota``: a quota beside the pods has come, is another one, or has gone."""

    quota: str
    """As ``namespace/name``."""
    change: str
    """``applied``, ``changed`` or ``deleted``."""
    source: str
    """``api``, or the file that has it."""
    hard: Mapping[str, str]
    """What it limits now; empty where it has gone."""
    exceeded: Sequence[str]
    """Of what more is in use already: nobody is ended for that, and nobody else let in."""


class CacheGiven(Record, frozen=True, kw_only=True):
    """``cache``: a container has a part of the caches, another one, or none although it asks."""

    container: str
    schemata: str
    """What it has, as the kernel writes it; empty where it shares what all others have."""
    reason: str | None
    """Why it has nothing of its own, one word; null where it has."""
    message: str | None


class Started(Record, frozen=True, kw_only=True):
    """At a start: what was ``repaired`` of a record, or ``configured`` otherwise than before."""

    start: str
    """In words."""
