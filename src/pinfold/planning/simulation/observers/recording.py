"""All events of a run, as rows for a file."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal

from pinfold.core.values.cpuset import CPUSet
from pinfold.planning.simulation.engine import UNSCHEDULABLE
from pinfold.planning.simulation.experiment.specification import RunSpec
from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.moving import Moves
from pinfold.planning.simulation.fleet.nodes import FleetNode, RefusedBy
from pinfold.planning.simulation.fleet.shapes import PodShape
from pinfold.planning.simulation.observers.observer import Observer
from pinfold.ports.events import EventWriter, RunEvent

_REMEMBERED: Final = 65_536
"""Sets of CPUs of which the text is known."""


class Recording(Observer):
    """An observer that writes all down.

    Args:
        spec: the run.
        writer: what takes the rows.
    """

    def __init__(self, spec: RunSpec, writer: EventWriter) -> None:
        self._configuration, self._seed = spec.configuration, spec.seed
        self._add = writer.add

    def placed(self, at: float, pod: int, attempt: int, node: FleetNode, answer: Answer) -> None:
        """A node let a pod in."""
        self._write(at, "placed", pod, answer.shape, node.name, answer.claim, attempt)

    def refused(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        """A node refused a pod, or none had room."""
        name, reason = (None, UNSCHEDULABLE) if by is None else (by[0].name, by[1].reason)
        self._write(at, "refused", pod, shape, name, 0, attempt, reason)

    def rejected(self, at: float, pod: int, shape: PodShape, reason: str) -> None:
        """A pod was given up."""
        self._write(at, "rejected", pod, shape, reason=reason)

    def ended(self, at: float, pod: int, node: FleetNode, answer: Answer) -> None:
        """A pod ended."""
        self._write(at, "ended", pod, answer.shape, node.name, answer.claim)

    def moved(self, moves: Moves) -> None:
        """A row for each that moved, with the CPUs that it has now."""
        for one in moves.moved:
            after = one.after
            self._write(
                moves.at,
                "moved",
                one.pod,
                after.shape,
                moves.node.name,
                after.claim,
                reason=moves.why,
            )

    def _write(  # noqa: PLR0913, PLR0917 - a row
        self,
        at: float,
        event: Literal["placed", "refused", "rejected", "ended", "moved"],
        pod: int,
        shape: PodShape,
        node: str | None = None,
        claim: int = 0,
        attempt: int | None = None,
        reason: str = "",
    ) -> None:
        cpus, qos = shape.size.cpu_milli / 1000, _qos(shape)
        given = _cpu_list(claim) if claim else ""
        self._add(
            RunEvent(
                self._configuration,
                self._seed,
                at,
                event,
                pod,
                attempt,
                node,
                cpus,
                qos,
                given,
                reason,
            )
        )


@lru_cache(maxsize=_REMEMBERED)
def _cpu_list(cpus: int) -> str:
    return str(CPUSet.from_mask(cpus))


@lru_cache(maxsize=1024)
def _qos(shape: PodShape) -> str:
    return shape.pod.qos.value
