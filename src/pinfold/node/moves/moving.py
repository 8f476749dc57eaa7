"""A plan in flight, as whoever asked for it has it."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from pinfold.core.moves.steps import MovePlan


class BusyError(Exception):
    """A plan of moves is in flight, and there is one at a time."""


class Ended(Struct, frozen=True):
    """How a plan ended: ``problem`` is why it was undone, "" where it was done.

    One that was ``replaced`` was given up for another plan of the same owner.
    """

    plan: MovePlan
    problem: str = ""
    replaced: bool = False

    @property
    def done(self) -> bool:
        """Whether everybody is where he was to be."""
        return not self.problem and not self.replaced


class Moving:
    """A plan in flight, for whoever asked for it."""

    def __init__(self, plan: MovePlan) -> None:
        self.plan = plan
        self._ended: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    async def ended(self) -> Ended:
        """Return when it is done, undone, or another one has taken its place.

        Whoever is cancelled meanwhile stops nothing.
        """
        return await asyncio.shield(self._ended)

    def end(self, problem: str = "", *, replaced: bool = False) -> None:
        """It is over."""
        if not self._ended.done():
            self._ended.set_result(Ended(self.plan, problem, replaced))
