"""The one loop: every controller is asked, one wish is made of it all, and that is carried out.

A controller is pure, and knows what it is shown; what is asked of the kernel is asked by whoever
carries a proposal out.  That only begins what takes long, so that nobody waits who has to be quick.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct

from pinfold.core.controllers.proposals import Proposal, Rank, Refused, arbitrate
from pinfold.core.controllers.seen import Controller, Seen
from pinfold.core.moves.owners import MoveError
from pinfold.node.moves.budget import MoveBudget
from pinfold.node.moves.moving import BusyError
from pinfold.node.observation.observer import Observation
from pinfold.ports.errors import PortError

M = TypeVar("M")

REMEMBERED: Final = 60
"""Decisions that are remembered, for whoever asks for the status."""

_LATE: Final = 2.0
"""Periods of the observation after which its failing is no reason to wait any longer."""

CarryOut = Callable[[Proposal], Awaitable[str]]
"""Carries a proposal out: why it was not ("": it was); raises PortError, MoveError, BusyError."""


class Control(Struct, Generic[M], frozen=True):
    """A controller, and who carries out what it proposes.

    Attributes:
        name: what it is called.
        controller: what decides.
        memory: what it remembers at first.
        carry_out: see :data:`CarryOut`; it begins what takes long, and does not wait for its end.
        period: seconds after which it is asked again; 0: whenever there are new figures.
    """

    name: str
    controller: Controller[M]
    memory: M
    carry_out: CarryOut
    period: float = 0.0


class Decision(Struct, frozen=True):
    """A proposal that was granted: when, and why it was not carried out ("" where it was)."""

    at: float
    proposal: Proposal
    problem: str = ""


class ControlLoop:
    """Asks, arbitrates and carries out, one look after another.

    Args:
        look: what the controllers are shown now.
        budget: of moves.
        controls: who is asked.
        observation: whose readings are waited for; None: nobody needs figures.
        decided: told of what was carried out, or failed.
    """

    def __init__(
        self,
        look: Callable[[], Seen],
        budget: MoveBudget,
        controls: Sequence[Control[Any]],
        observation: Observation | None = None,
        *,
        decided: Callable[[Decision], None] = lambda _: None,
    ) -> None:
        self._look = look
        self._budget = budget
        self.controls = controls
        self._observation = observation
        self._decided = decided
        self._memories: dict[str, Any] = {one.name: one.memory for one in controls}
        self._due: dict[str, float] = {}
        self._refused: dict[str, list[Refused]] = {}
        self.decisions: deque[Decision] = deque(maxlen=REMEMBERED)
        self.counted: Counter[tuple[Rank, str]] = Counter()
        """How often something was proposed, by rank and by what became of it: ``done``,
        ``nothing`` (there was nothing to do), ``failed``, ``refused``."""

    @property
    def memories(self) -> Mapping[str, Any]:
        """What the controllers remember, by their names."""
        return self._memories

    def waiting(self) -> list[Refused]:
        """What was proposed last, and has to wait."""
        return [one for refused in self._refused.values() for one in refused]

    async def go_on(self) -> None:
        """Look whenever there are new figures, or somebody is due; for ever."""
        now = asyncio.get_running_loop().time()
        self._due = {one.name: now + one.period for one in self.controls if one.period}
        while True:
            await self._pause()
            await self.tick()

    async def _pause(self) -> None:
        now = asyncio.get_running_loop().time()
        until = min(self._due.values(), default=float("inf"))
        if (watched := self._observation) is None:
            await asyncio.sleep(until - now)
            return
        try:
            # Whoever has given something to others on what was read has to hear that nothing is.
            async with asyncio.timeout(min(until - now, _LATE * watched.period)):
                await watched.until_read()
        except TimeoutError:
            pass

    async def tick(self) -> None:
        """Look once, and carry out what is wished."""
        seen, now = self._look(), asyncio.get_running_loop().time()
        asked: dict[int, Control[Any]] = {}
        proposals: list[Proposal] = []
        for control in self.controls:
            if control.period:
                if self._due.get(control.name, now) > now:
                    continue
                self._due[control.name] = now + control.period
            memory, wished = control.controller.step(self._memories[control.name], seen)
            self._memories[control.name] = memory
            self._refused[control.name] = []
            proposals.extend(wished)
            asked.update((id(proposal), control) for proposal in wished)
        verdict = arbitrate(proposals, seen.busy, self._budget.left)
        for one in verdict.refused:
            self._refused[asked[id(one.proposal)].name].append(one)
            self.counted[one.proposal.rank, "refused"] += 1
        for proposal in verdict.granted:
            control = asked[id(proposal)]
            if (reason := await self.carry_out(control, proposal)) is not None:
                self._refused[control.name].append(Refused(proposal, reason))

    async def carry_out(self, control: Control[Any], proposal: Proposal) -> str | None:
        """Carry out what was granted; why it was not, None where it was."""
        try:
            nothing = await control.carry_out(proposal)
        except (PortError, MoveError, BusyError) as error:
            return self._note(proposal, "failed", str(error))
        if nothing:
            self.counted[proposal.rank, "nothing"] += 1
            return nothing
        return self._note(proposal, "done")

    def _note(self, proposal: Proposal, outcome: str, problem: str = "") -> str | None:
        self.counted[proposal.rank, outcome] += 1
        decision = Decision(asyncio.get_running_loop().time(), proposal, problem)
        self.decisions.append(decision)
        self._decided(decision)
        return problem or None
