"""CPUs that are lent, and taken back: what is wished is done, and looked at quickly meanwhile."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from pinfold.core.controllers.lending import (
    Lend,
    Lending,
    LendingMemory,
    Return,
    owner_gone,
)
from pinfold.core.controllers.proposals import Proposal
from pinfold.core.controllers.quick_look import Holding, QuickLook, holdings
from pinfold.core.moves.owners import Owner
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents import control as documents
from pinfold.node.books import Books
from pinfold.node.control.telling import full_name
from pinfold.node.observation.observer import Observation
from pinfold.node.view import View
from pinfold.ports.errors import ContainerKey, PortError
from pinfold.retry.backoff import Backoff

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 1.0
"""Seconds between two tries to take CPUs back that the kernel does not give."""
FIRST_REFUSAL: Final = 2.0
LONGEST_REFUSAL: Final = 300.0
"""Seconds between two tries to lend CPUs of an owner that the kernel does not let be lent."""


class Lender:
    """Carries out what the controller wishes, and looks quickly while anything is lent.

    Args:
        books: the node's.
        controller: what decides.
        observation: what reads.
    """

    def __init__(self, books: Books, controller: Lending, observation: Observation) -> None:
        self._books = books
        self._controller = controller
        self._observation = observation
        self._clock = books.observers.clock
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._refused: defaultdict[Owner, Backoff] = defaultdict(
            lambda: Backoff(FIRST_REFUSAL, LONGEST_REFUSAL)
        )
        self._view: View | None = None
        self._holdings: dict[Owner, Holding] = {}
        self._looks: tuple[QuickLook, ...] = ()
        self.since: dict[Owner, float] = {}
        """Since when each owner has lent something, in seconds since the epoch."""

    async def carry_out(self, proposal: Proposal) -> str:
        """Lend or take back; see :data:`pinfold.node.control.loop.CarryOut`."""
        books = self._books
        if isinstance(proposal, Lend):
            return await self._lend(proposal)
        if not proposal.cpus & books.view.lent:
            return "they are back"
        try:
            await books.give_back(proposal.cpus)
        except PortError as error:
            self._backoff.failed(f"CPUs {proposal.cpus} that were lent are not back: {error}")
            raise
        self._backoff.well()
        self.since = {owner: at for owner, at in self.since.items() if owner in self.held()}
        return ""

    async def _lend(self, proposal: Lend) -> str:
        (owner,) = proposal.owners
        there = self._books.view.state.ledger.assignments
        for one in list(self._refused):
            if one.container not in there.get(one.pod_uid, {}):
                del self._refused[one]
        refused = self._refused[owner]
        if (left := refused.due - asyncio.get_running_loop().time()) > 0.0:
            return f"it is tried again in {left:.0f} s: {refused.problem}"
        try:
            await self._books.lend(proposal.cpus)
        except PortError as error:
            refused.failed(str(error))
            raise
        del self._refused[owner]
        self.since.setdefault(owner, self._clock())
        self._looks = ()
        return ""

    def problem(self) -> str:
        """Why something that is to be back is not; "" where nothing is."""
        return self._backoff.problem

    def held(self) -> Mapping[Owner, Holding]:
        """Who has lent what now."""
        if (view := self._books.view) is not self._view:
            policy = view.node.cpu_policy
            owners = (
                (Owner(uid, name), cpus)
                for uid, containers in view.state.ledger.assignments.items()
                for name, cpus in containers.items()
            )
            topology = None if policy is None else policy.topology
            self._holdings, self._view = holdings(owners, view.lent, topology), view
        return self._holdings

    def document(self, memory: LendingMemory) -> documents.Lending:
        """What ``status`` says of it."""
        books, held = self._books, self.held()
        pods = books.view.pods.containers()
        return documents.Lending(
            lent=[
                documents.Lent(
                    container=full_name(books, owner),
                    cpus=str(holding.lent),
                    since=self.since.get(owner, self._clock()),
                )
                for owner, holding in sorted(held.items())
            ],
            borrowers=sorted(
                full_name(books, Owner(key.pod_uid, key.name))
                for key, one in pods.items()
                if books.view.where(*one).idle
            ),
            not_lent={
                full_name(books, owner): one.why_not
                for owner, one in sorted(memory.owners.items())
                if one.why_not
            },
            problem=self.problem(),
        )

    # ----------------------------------------------------------------------------- the quick look

    @property
    def period(self) -> float:
        """See :class:`pinfold.node.control.loop.Quick`."""
        return self._controller.options.look_period

    def is_needed(self) -> bool:
        """See :class:`pinfold.node.control.loop.Quick`."""
        return bool(self._books.view.lent)

    def look(self, memory: LendingMemory) -> tuple[LendingMemory, Sequence[Proposal]]:
        """See :class:`pinfold.node.control.loop.Quick`."""
        if self._backoff.problem and asyncio.get_running_loop().time() < self._backoff.due:
            return memory, ()
        held = self.held()
        keys = {owner: ContainerKey(*owner) for owner in held}
        others = CPUSet.union_of(holding.own - holding.lent for holding in held.values())
        try:
            at, used, idle = self._observation.now_used(list(keys.values()), others)
        except PortError as error:
            return memory, (Return.of(self._books.view.lent, str(error)),)
        found = {owner: used[key] for owner, key in keys.items() if key in used}
        self._looks = self._controller.remembered(self._looks, QuickLook(at, found, idle))
        returns = self._controller.returns(self._looks, held)
        for proposal in returns:
            owner = next(one for one in held if held[one].lent == proposal.cpus)
            memory = self._controller.taken_back(memory, owner, proposal.why, at)
        strangers = self._books.view.lent - CPUSet.union_of(one.lent for one in held.values())
        return memory, (*returns, *((owner_gone(strangers),) if strangers else ()))
