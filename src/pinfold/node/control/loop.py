"""The one loop: every controller is asked, one wish is made of it all, and that is carried out.

A controller is pure, and knows what it is shown; what is asked of the kernel is asked by whoever
carries a proposal out.  That only begins what takes long, so that nobody waits who has to be quick.

While something is given that has to be taken back at once, its controller looks quickly besides;
and as long as this loop goes on, and no longer, the lease of what was given is renewed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from pinfold.core.controllers.proposals import Proposal, Rank, Refused, arbitrate
from pinfold.core.controllers.seen import Controller, Seen
from pinfold.core.moves.budget import MoveBudget
from pinfold.core.moves.owners import MoveError
from pinfold.node.leases.lease import Lease
from pinfold.node.moves.moving import BusyError
from pinfold.node.observation.observer import Observation
from pinfold.ports.errors import PortError
from pinfold.ports.guardian import LeaseError

M = TypeVar("M")

REMEMBERED: Final = 60
"""Decisions that are remembered, for whoever asks for the status."""

_LATE: Final = 2.0
"""Periods of the observation after which its failing is no reason to wait any longer."""

_RENEWED: Final = 0.4
"""Seconds between two renewals of the lease where nobody looks more often."""

CarryOut = Callable[[Proposal], Awaitable[str]]
"""Carries a proposal out: why it was not ("": it was); raises PortError, MoveError, BusyError."""


class Quick(Protocol[M]):
    """Looks of a controller between two ticks: what they wish is carried out at once.

    They may only take back what was given: nobody arbitrates.
    """

    @property
    def period(self) -> float:
        """Seconds between two of them, while there are any."""

    def is_needed(self) -> bool:
        """Whether there is anything that may have to be taken back at once."""

    def look(self, memory: M) -> tuple[M, Sequence[Proposal]]:
        """What is to be remembered from now on, and what is to be taken back."""


class Control(Struct, Generic[M], frozen=True):
    """A controller, and who carries out what it proposes.

    Attributes:
        name: what it is called.
        controller: what decides.
        memory: what it remembers at first.
        carry_out: see :data:`CarryOut`; it begins what takes long, and does not wait for its end.
        period: seconds after which it is asked again; 0: whenever there are new figures.
        quick: its looks in between, where it has any.
    """

    name: str
    controller: Controller[M]
    memory: M
    carry_out: CarryOut
    period: float = 0.0
    quick: Quick[M] | None = None


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
        lease: what is renewed as long as this goes on; None: nothing is given for a time.
        spent: seconds of CPU time that this thread has used, for what quick looks cost.
        decided: told of what was carried out, or failed.
    """

    def __init__(  # noqa: PLR0913 - the parts, one each
        self,
        look: Callable[[], Seen],
        budget: MoveBudget,
        controls: Sequence[Control[Any]],
        observation: Observation | None = None,
        *,
        lease: Lease | None = None,
        spent: Callable[[], float] = time.thread_time,
        decided: Callable[[Decision], None] = lambda _: None,
    ) -> None:
        self._look = look
        self.budget = budget
        self.controls = controls
        self._observation = observation
        self._lease = lease
        self._spent = spent
        self._decided = decided
        self._given = asyncio.Event()
        self._is_carrying_out = False
        self.quick_looks = 0
        self.quick_seconds = 0.0
        """How many quick looks there were, and the CPU time that they have taken."""
        self._memories: dict[str, Any] = {one.name: one.memory for one in controls}
        self._due: dict[str, float] = {}
        self._refused: dict[str, list[Refused]] = {}
        self.decisions: deque[Decision] = deque(maxlen=REMEMBERED)
        self.counted: Counter[tuple[Rank, str]] = Counter()
        """How often something was proposed, by rank and by what became of it: ``done``,
        ``nothing`` (there was nothing to do), ``failed``, ``refused``."""

    @property
    def wait_source(self) -> str:
        """Where waits are from, see :class:`~pinfold.core.controllers.seen.Seen`."""
        return "" if self._observation is None else self._observation.wait_source

    @property
    def memories(self) -> Mapping[str, Any]:
        """What the controllers remember, by their names."""
        return self._memories

    def waiting(self) -> list[Refused]:
        """What was proposed last, and has to wait."""
        return [one for refused in self._refused.values() for one in refused]

    async def go_on(self) -> None:
        """Look whenever there are new figures, or somebody is due; for ever."""
        if not self.controls:
            await asyncio.Event().wait()
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

    async def go_on_quickly(self) -> None:
        """Look quickly while anything was given that may have to be taken back; for ever."""
        due = asyncio.get_running_loop().time()
        while True:
            self._given.clear()
            needed = [(one, one.quick) for one in self.controls if one.quick is not None]
            needed = [(one, quick) for one, quick in needed if quick.is_needed()]
            if not needed and not self._has_lease and not self._is_carrying_out:
                await self._given.wait()
                due = asyncio.get_running_loop().time()
                continue
            for control, quick in needed:
                await self._look_quickly(control, quick)
            await self._renew()
            period = min((quick.period for _, quick in needed), default=_RENEWED)
            now = asyncio.get_running_loop().time()
            # What was missed is not made up for.
            due = min(max(due + period, now), now + period)
            if needed:
                await asyncio.sleep(due - now)
                continue
            with suppress(TimeoutError):
                # What is given meanwhile is looked at from then on, and not a renewal later.
                async with asyncio.timeout(due - now):
                    await self._given.wait()
                due = asyncio.get_running_loop().time()

    async def _look_quickly(self, control: Control[Any], quick: Quick[Any]) -> None:
        began = self._spent()
        memory, proposals = quick.look(self._memories[control.name])
        self._memories[control.name] = memory
        self.quick_looks += 1
        self.quick_seconds += self._spent() - began
        for proposal in proposals:
            await self.carry_out(control, proposal)

    @property
    def cap(self) -> float | None:
        """CPUs' worth of time that all who borrow have together; None: any."""
        return None if self._lease is None else self._lease.quota

    @property
    def _has_lease(self) -> bool:
        return self._lease is not None and self._lease.is_had

    async def _renew(self) -> None:
        if (lease := self._lease) is None or not lease.is_had:
            return
        try:
            lease.renew()
            await lease.rest()
        except LeaseError:
            await lease.recover()

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
        verdict = arbitrate(proposals, seen.busy, self.budget.left)
        for one in verdict.refused:
            self._refused[asked[id(one.proposal)].name].append(one)
            self.counted[one.proposal.rank, "refused"] += 1
        # A lease may begin within one that takes long, and what was given is watched meanwhile.
        self._is_carrying_out = bool(verdict.granted)
        self._given.set()
        try:
            for proposal in verdict.granted:
                control = asked[id(proposal)]
                if (reason := await self.carry_out(control, proposal)) is not None:
                    self._refused[control.name].append(Refused(proposal, reason))
                self._given.set()
        finally:
            self._is_carrying_out = False

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
