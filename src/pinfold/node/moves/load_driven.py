"""Containers that come from the shared pool when their load asks for it, and go back to it.

Each is a plan of moves like all others: written ahead, told to the container, undone where the
kernel refuses, and gone on with after a restart.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from pinfold.admission.admission import POOL_EMPTY, charged, place
from pinfold.core.controllers.load_driven import Demote, Promote
from pinfold.core.controllers.proposals import Proposal
from pinfold.core.moves.budget import MoveBudget
from pinfold.core.moves.owners import Owner
from pinfold.core.moves.promotion import demote, promote
from pinfold.core.pod.grace import grace_of
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.history import StaysShared
from pinfold.documents.move_plan import LOAD_DRIVEN
from pinfold.node.admitted_pod import AdmittedPod
from pinfold.node.books import Books
from pinfold.node.draft import Draft
from pinfold.node.moves.finishing import put_by_load
from pinfold.node.moves.mover import Mover
from pinfold.node.moves.room import MadeRoom
from pinfold.node.moves.stepping import NO_POOL

_ANOTHER: Final = "another plan of moves is under way"
_OVER: Final = "it is ended, or has ended"
_MOVED: Final = "it has been moved meanwhile"


class LoadDrivenMoves:
    """Carries out what :class:`~pinfold.core.controllers.load_driven.LoadDriven` proposes.

    Args:
        books: the node's.
        mover: makes the steps.
        rooms: what is kept for pods that others have moved for.
        budget: what is moved counts in it.
    """

    def __init__(self, books: Books, mover: Mover, rooms: MadeRoom, budget: MoveBudget) -> None:
        self._books = books
        self._mover = mover
        self._rooms = rooms
        self._budget = budget
        self._staying: dict[Owner, str] = {}

    async def carry_out(self, proposal: Proposal) -> str:
        """Begin what a proposal wishes; why it was not begun, "" where it was.

        Raises:
            StoreError: it cannot be written down; nothing was changed.
            MoveError: somebody else was quicker.
        """
        (owner,) = proposal.owners
        async with self._books.change() as draft:
            await draft.look_at_cpus()
            pod = draft.pod(owner.pod_uid)
            if draft.move is not None:
                return _ANOTHER
            if pod is None or pod.is_ending:
                return _OVER
            holds = draft.state.ledger.cpus_of(*owner) is not None
            if holds is not isinstance(proposal, Demote):
                return _MOVED
            ledger, mixed = draft.state.ledger, self._books.view.mixed
            if isinstance(proposal, Promote):
                cpus, problem = self._cpus_for(draft, pod, owner)
                if cpus is None:
                    self._stays(draft, pod, owner, problem)
                    return problem
                plan = promote(ledger, owner, cpus, mixed)
                known = replace(pod.record.load_driven[owner.container], used=proposal.used)
                put_by_load(draft, pod, owner, known)
            elif not self._books.view.pool:
                return NO_POOL
            else:
                node_grace = self._books.view.settings.scale_down_grace_period
                grace = grace_of(pod.workload.pod, owner.container, node_grace)
                plan = demote(ledger, owner, mixed, grace)
            await self._mover.begin(draft, plan, why=LOAD_DRIVEN)
            self._staying.pop(owner, None)
            self._budget.take(1)
        return ""

    def _cpus_for(self, draft: Draft, pod: AdmittedPod, owner: Owner) -> tuple[CPUSet | None, str]:
        """The CPUs that a container is given, or why it stays in the shared pool."""
        seen = self._rooms.seen_by(draft.state, pod.uid)
        # Others that share should fit as well as before; where they cannot, their number is left.
        states = (charged(draft.node, seen, owner), seen)
        for state in states:
            found = place(draft.node, state, pod.workload.pod, owner.container)
            given = found.allocations.get(owner.container)
            if given is not None:
                left = draft.state.ledger.default - given.claim - draft.state.offline
                # It has to have somewhere to go back to, even where nobody else shares.
                return (given.claim, "") if left else (None, POOL_EMPTY)
        return None, f"no CPUs fit it: {found.message}"

    def _stays(self, draft: Draft, pod: AdmittedPod, owner: Owner, problem: str) -> None:
        """Say once that it stays in the shared pool although its load asks for more."""
        self._staying = {
            one: why for one, why in self._staying.items() if draft.pod(one.pod_uid) is not None
        }
        if self._staying.get(owner) == problem:
            return
        self._staying[owner] = problem
        self._books.counters.stays_shared += 1
        if not self._books.store.problem:
            document = StaysShared(container=owner.container, problem=problem)
            draft.note("stays-shared", (pod.uid, pod.name), document)
