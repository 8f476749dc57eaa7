"""What a worker does: one run, told as the bytes of its record."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

import pinfold
from pinfold.documents.simulation.results import Run
from pinfold.planning.simulation.campaign.parcel import unpacked
from pinfold.planning.simulation.campaign.watch import Place, Stage, Told
from pinfold.planning.simulation.engine import Arrivals, StoppedError, simulate
from pinfold.planning.simulation.experiment.specification import RunSpec
from pinfold.planning.simulation.observers.recording import Recording
from pinfold.planning.simulation.observers.worst import MOST
from pinfold.ports.events import EventParts

_KEPT: Final = 3
"""Arrivals that a worker keeps: those of as many seeds, 24 bytes each."""


class OtherVersionError(Exception):
    """A worker has another version of the program."""


class EventsOf(Struct, frozen=True):
    """Where the events of one run go: ``number`` is its place among all runs."""

    parts: EventParts
    number: int


class Order(Struct, frozen=True):
    """A run to be carried out, by any process on any machine.

    Attributes:
        run: its values, or these packed.
        arrivals: what decides which pods come.
        is_tried: whether it is one of a search for a fleet, of which only the fates are wanted.
        place, cell: where to tell how far it is.
        events: where its events go; None: nobody wants them.
        version: of the program that asks.
    """

    run: RunSpec | bytes
    arrivals: str
    is_tried: bool
    place: Place | None
    cell: int
    events: EventsOf | None = None
    version: str = pinfold.__version__


def carry_out(order: Order) -> bytes | None:
    """The record of the run as JSON; None: it shall end, and had not begun.

    Raises:
        OtherVersionError: this worker has another version of the program.
        NodeError, MachineError, TraceError: as :func:`.simulate`.
        EventsError: its events cannot be written.
    """
    if order.version != pinfold.__version__:
        raise OtherVersionError(
            f"a worker has version {pinfold.__version__} of the program, and {order.version} asks; "
            "install the same on all machines"
        )
    told = Told(order.place, order.cell)
    try:
        if told.stopped:
            return None
        spec = unpacked(order.run) if isinstance(order.run, bytes) else order.run
        arrivals = _arrivals(_Of(order.arrivals, spec, lambda: not told.stopped))
        with ExitStack() as using:
            observers = []
            if order.events is not None:
                writer = order.events.parts.part(order.events.number)
                observers.append(Recording(spec, using.enter_context(writer)))
            ended = simulate(
                spec,
                observers,
                told.go_on,
                worst=0 if order.is_tried else MOST,
                fits=not order.is_tried,
                arrivals=arrivals,
            )
        return msgspec.json.encode(ended.run)
    except StoppedError:
        return None
    finally:
        told.tell(Stage.ENDED)
        told.close()


def read_run(data: bytes) -> Run:
    """The record of a run; the same on every way that it came.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: it is none.
    """
    return msgspec.json.decode(data, type=Run, strict=True)


class _Of(Struct, frozen=True, eq=False):
    """Arrivals by what decides them."""

    identity: str
    spec: RunSpec
    go_on: Callable[[], bool]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Of) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


@lru_cache(maxsize=_KEPT)
def _arrivals(which: _Of) -> Arrivals:
    return Arrivals.of(which.spec, which.go_on)
