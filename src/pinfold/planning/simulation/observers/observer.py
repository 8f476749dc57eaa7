"""Who is told of each event of a run."""

from __future__ import annotations

from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.moving import Moves
from pinfold.planning.simulation.fleet.nodes import FleetNode, RefusedBy
from pinfold.planning.simulation.fleet.shapes import PodShape


class Observer:
    """Whoever wants to know what happens in a run; times are seconds from the first arrival.

    Who derives from it says only what he wants to know.
    """

    def placed(self, at: float, pod: int, attempt: int, node: FleetNode, answer: Answer) -> None:
        """A node let a pod in; it has it already."""

    def refused(
        self, at: float, pod: int, attempt: int, shape: PodShape, by: RefusedBy | None
    ) -> None:
        """A node refused a pod; None: none had room for it."""

    def rejected(self, at: float, pod: int, shape: PodShape, reason: str) -> None:
        """A pod was given up, after as many attempts as it may have."""

    def ended(self, at: float, pod: int, node: FleetNode, answer: Answer) -> None:
        """A pod ended; its node has it no more."""

    def moved(self, moves: Moves) -> None:
        """A node has moved pods to other CPUs; only the policy ``dynamic`` does."""
