"""Pods that come to a fleet over time: the records that readers of traces make."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from msgspec import Struct

from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.errors import PinfoldError


class TraceError(PinfoldError, ValueError):
    """A trace that cannot be read; the message names the file, the line and the remedy."""


class PodSize(Struct, frozen=True):
    """What a pod of one container asks for; pods that ask for the same share one.

    Attributes:
        cpu_milli: milli-CPUs.
        memory: bytes.
        extended: resource name -> count, sorted by name.
        qos: the class that the trace tells; None where it tells none.
    """

    cpu_milli: int
    memory: int
    extended: tuple[tuple[str, int], ...] = ()
    qos: QOSClass | None = None


class Arrival(NamedTuple):
    """A pod that comes.

    Attributes:
        at: seconds since the first moment of the trace.
        lifetime: seconds that it runs once it is placed; ``inf``: it stays.
        size: what it asks for.
    """

    at: float
    lifetime: float
    size: PodSize


class ArrivalSource(Protocol):
    """Where arrivals come from: a trace, or a process by chance."""

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """Yield the arrivals in the order of their time; what is drawn comes from the seed alone.

        Raises:
            TraceError: the trace cannot be read.
        """


@runtime_checkable
class OfFiles(Protocol):
    """A source that reads files: what is in them decides, as its own fields do."""

    def files(self) -> tuple[Path, ...]:
        """The files, packed as they are.

        Raises:
            TraceError: one of them is missing.
        """


@runtime_checkable
class OfClasses(Protocol):
    """A source that may tell of which class a pod was; others never do."""

    def tells_a_class(self) -> bool:
        """Whether it does of any pod, as far as can be read now; what cannot be is told later."""
