"""Who owns CPUs, who wishes for others, and why a wish is refused."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple, Protocol

from msgspec import Struct

from pinfold.core.machine.topology import CPUTopology
from pinfold.core.values.cpuset import CPUSet
from pinfold.core.values.errors import PinfoldError

WHOLE_POD: Final = ""
"""In place of a container's name: the pod as a whole is the owner."""


class Owner(NamedTuple):
    """A container, or with :data:`WHOLE_POD` a whole pod, that owns CPUs."""

    pod_uid: str
    container: str = WHOLE_POD

    @property
    def is_pod(self) -> bool:
        """Whether it is a whole pod; the CPUs of its containers are then among its own."""
        return self.container == WHOLE_POD

    def __str__(self) -> str:
        """For messages."""
        whom = f"pod {self.pod_uid!r}"
        return whom if self.is_pod else f"{whom}, container {self.container!r}"


class Reserving(Protocol):
    """What may be given at all."""

    @property
    def reserved(self) -> CPUSet:
        """CPUs that are never anybody's own."""


class Holdings(Protocol):
    """Who has what: :class:`pinfold.state.ledger.Ledger` is one."""

    @property
    def default(self) -> CPUSet:
        """The shared pool."""

    @property
    def assignments(self) -> Mapping[str, Mapping[str, CPUSet]]:
        """Exclusive CPUs by pod uid and container."""

    @property
    def limits(self) -> Reserving:
        """What may be given at all."""


class Wish(Struct, frozen=True):
    """An owner's next CPUs, and where its memory is to come from.

    Attributes:
        owner: who moves; it has CPUs already.
        cpus: all that it is to have then.
        keep: CPUs that it must have before and afterwards (the baseline of a resize).
        mems: NUMA nodes of its memory afterwards; None leaves ``cpuset.mems`` alone.
        mems_before: those of now; needed with ``mems``.
        migrate: move its memory there; else ``cpuset.mems`` only becomes wider.
        delay: seconds for which it is told, before any of its CPUs is taken.
    """

    owner: Owner
    cpus: CPUSet
    keep: CPUSet = CPUSet()
    mems: CPUSet | None = None
    mems_before: CPUSet = CPUSet()
    migrate: bool = False
    delay: float = 0.0


class MoveOptions(Struct, frozen=True):
    """How moves are made.

    Attributes:
        topology: lets detours be near, and be of whole cores.
        whole_cores: nobody may share a core meanwhile (``full-pcpus-only``); needs the topology.
        avoid: CPUs that nobody is brought to, such as those that are offline.
        mixed: owners that may use the shared pool besides their own CPUs.
        pool_may_be_empty: nobody shares, so that the last CPU of the pool may be given, too.
    """

    topology: CPUTopology | None = None
    whole_cores: bool = False
    avoid: CPUSet = CPUSet()
    mixed: frozenset[Owner] = frozenset()
    pool_may_be_empty: bool = False


class Refusal(Enum):
    """Why moves are not planned."""

    UNKNOWN_OWNER = "unknown-owner"
    TWICE = "twice"
    NO_CPU = "no-cpu"
    NOT_KEPT = "not-kept"
    OUTSIDE = "outside"
    TAKEN = "taken"
    POOL_EMPTY = "pool-empty"
    NO_FREE_CPU = "no-free-cpu"
    FINISHED = "finished"
    MEMORY = "memory"


class MoveError(PinfoldError, ValueError):
    """Moves that cannot be made; ``refusal`` says why, ``remedy`` what would help."""

    def __init__(self, refusal: Refusal, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.refusal = refusal
        self.problem = problem
        self.remedy = remedy
