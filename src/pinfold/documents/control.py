"""What is decided by load and by time, and what is not, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinfold.documents.records import CPUs, Record


class Proposed(Record, frozen=True, kw_only=True):
    """Something that a controller wishes."""

    rank: str
    """Who wishes it, the earlier the more it counts: ``return``, ``suppression``, ``load-driven``,
    ``lending``, ``rebalance``, ``parking``."""
    why: str
    """In words and figures."""
    containers: Sequence[str] = ()
    """Whose CPUs change, as ``namespace/pod/container``."""
    cpus: CPUs = ""
    """Those that change hands; empty where it is none, or which is open."""


class Waiting(Proposed, frozen=True, kw_only=True):
    """What was wished last, and is not carried out."""

    reason: str


class Decided(Proposed, frozen=True, kw_only=True):
    """What was carried out."""

    at: float
    """Seconds since the epoch."""
    problem: str = ""
    """Why it could not be; empty where it was."""


class Lent(Record, frozen=True, kw_only=True):
    """CPUs of a container on which others run while it does not want to."""

    container: str
    """Whose they are, as ``namespace/pod/container``."""
    cpus: CPUs
    since: float
    """Since when any of its CPUs are lent, in seconds since the epoch."""


class Lending(Record, frozen=True, kw_only=True):
    """What is lent, and what is not."""

    lent: Sequence[Lent]
    borrowers: Sequence[str]
    """Who runs there, as ``namespace/pod/container``."""
    not_lent: Mapping[str, str]
    """Of containers that allow it: why no more of their CPUs are lent."""
    problem: str = ""
    """Why something that is to be given back is not; it is tried again."""


class LoadDrivenContainer(Record, frozen=True, kw_only=True):
    """A container that has CPUs of its own while its load asks for it."""

    container: str
    """As ``namespace/pod/container``."""
    cpus: CPUs
    """Its own; empty while it shares."""
    charged: int
    """How many others are not admitted on while it shares; which ones is open."""
    why: str
    """What its load asks for, and what that waits for; empty where it is as it should be."""
    since: float | None = None
    """Since when it is where it is, in seconds since the epoch; null: since it began."""
    because: str = ""
    """Why it is where it is."""
    until: str = ""
    """What would bring it to the other side, with the options that say so."""


class Parked(Record, frozen=True, kw_only=True):
    """CPUs that work has left so that they idle; they are online, and free."""

    cpus: CPUs
    cores: int
    """How many cores have no work at all."""
    packages: int
    """How many packages (sockets) have none."""


class Control(Record, frozen=True, kw_only=True):
    """What controllers decide; only where one is configured."""

    controllers: Sequence[str]
    waiting: Sequence[Waiting]
    decided: Sequence[Decided]
    """The newest last; in the history, too."""
    moves_left: int
    """How many containers may be moved now unasked."""
    refused: Mapping[str, str] = {}
    """What the configuration asks for and cannot be had here, by group, and why."""
    lending: Lending | None = None
    """Null where lending is not configured."""
    load_driven: Sequence[LoadDrivenContainer] | None = None
    """Null where nobody has CPUs by load."""
    nice: int = 0
    """The agent's own nice value; its guardian has the same, and containers have 0."""
    parked: Parked | None = None
    """Null where parking is not configured."""
