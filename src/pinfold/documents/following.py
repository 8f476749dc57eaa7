"""What follows who owns which CPUs, and is no cpuset: interrupts and scheduling domains."""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.documents.records import CPUs, Record


class Irqbalance(Record, frozen=True, kw_only=True):
    """An ``irqbalance`` that runs beside the agent."""

    pid: int
    banned: CPUs
    """The CPUs that it keeps off of."""
    problem: str
    """Why it could not be told; empty where it was."""


class Interrupts(Record, frozen=True, kw_only=True):
    """Interrupts that are kept off exclusive CPUs."""

    cpus: CPUs
    """The CPUs that are to have none."""
    others: CPUs
    """Where they go."""
    kept: int
    """How many are off these CPUs because of the agent."""
    fixed: Sequence[str]
    """Those that may come to these CPUs, and that nobody can move, such as ``irq 36 nvme0q2``."""
    pending: Sequence[str]
    """Those that were moved, and stay until they come the next time."""
    moved: int
    """How often one was moved since the agent started."""
    contested: int
    """How often of these since somebody else had moved it back."""
    irqbalance: Sequence[Irqbalance]
    problem: str
    """Why not all are kept off; empty where they are."""


class Domain(Record, frozen=True, kw_only=True):
    """A container whose CPUs are to be a scheduling domain of their own."""

    pod: str
    """``namespace/name``."""
    container: str
    cpus: CPUs
    wished: str
    """``root`` or ``isolated``."""
    found: str
    """What the kernel says, such as ``isolated invalid (...)``; empty: it has no partitions."""
    problem: str
    """Why it is not in force; empty where it is."""


class SchedulingDomains(Record, frozen=True, kw_only=True):
    """The containers whose CPUs are to be partitions."""

    containers: Sequence[Domain]

    @property
    def problem(self) -> str:
        """What is not in force, in a sentence each; empty where all are."""
        return "; ".join(
            f"container {one.container} of pod {one.pod}: partition {one.wished} is not in force: "
            f"{one.problem}"
            for one in self.containers
            if one.problem
        )
