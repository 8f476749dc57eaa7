"""What happens in simulated runs, one row an event: for whoever wants all of it in a file."""

from __future__ import annotations

from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self


class EventsError(Exception):
    """A file of events that cannot be written; the message names it and the remedy."""


class RunEvent(NamedTuple):
    """Something that happened to a pod; the names are those of the columns.

    Attributes:
        configuration: of the run.
        seed: of the run.
        at_seconds: from the first arrival.
        event: ``placed``, ``refused`` (by a node, or by the scheduler), ``rejected`` (given up
            after its last attempt), ``ended``, or ``moved`` to other CPUs.
        pod: its number, by arrival, from 0.
        attempt: counted from 1; None where it is over.
        node: name of the node; None where none had room, and for what is given up.
        cpus: that the pod requests.
        qos: its class.
        given: the CPUs that it owns, or did, as a list (``2-3,18``); "" where it shares.
        reason: why it was refused or rejected, or what had it moved; "" for the rest.
    """

    configuration: str
    seed: int
    at_seconds: float
    event: Literal["placed", "refused", "rejected", "ended", "moved"]
    pod: int
    attempt: int | None
    node: str | None
    cpus: float
    qos: str
    given: str
    reason: str


class EventWriter(Protocol):
    """Takes the events of one run, in their order; what it took is kept where nothing fails."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Keep what was taken; nothing of it after an error.

        Raises:
            EventsError: it cannot be written.
        """

    def add(self, event: RunEvent) -> None:
        """Take one more.

        Raises:
            EventsError: it cannot be written.
        """


class EventParts(Protocol):
    """Where each run leaves its events; it can be sent to other processes."""

    def part(self, number: int) -> EventWriter:
        """The writer for a run, by its place among all runs, counted from 0.

        Raises:
            EventsError: it cannot be written.
        """
