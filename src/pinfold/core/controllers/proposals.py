"""What controllers wish, and the one wish that is made of it.

Whoever comes first by :class:`Rank` has the containers and CPUs that he needs; who comes later and
needs one of them is refused until the next look, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from msgspec import Struct

from pinfold.core.moves.owners import Owner
from pinfold.core.values.cpuset import CPUSet


class Rank(IntEnum):
    """Who comes first.  The first three are no controllers: they hold what they work on."""

    REPAIR = 0
    RESIZE = 1
    ADMISSION = 2
    RETURN = 3
    SUPPRESSION = 4
    LOAD_DRIVEN = 5
    LENDING = 6
    REBALANCE = 7
    PARKING = 8

    @property
    def word(self) -> str:
        """As people read it: ``load-driven``."""
        return self.name.lower().replace("_", "-")


class Proposal(Struct, frozen=True, kw_only=True):
    """Something that a controller wishes; its kinds say what.

    Attributes:
        rank: who wishes it.
        why: the reason in words and figures, for the history.
        owners: the containers that are changed.
        cpus: the CPUs that change hands.
        moves: how many containers are moved for it; they count against the budget of moves.
    """

    rank: Rank
    why: str
    owners: frozenset[Owner] = frozenset()
    cpus: CPUSet = CPUSet()
    moves: int = 0


class Refused(Struct, frozen=True):
    """A proposal that has to wait, and why."""

    proposal: Proposal
    reason: str


class Verdict(Struct, frozen=True):
    """The one wish: what is to be carried out now, in this order, and what has to wait."""

    granted: tuple[Proposal, ...]
    refused: tuple[Refused, ...]


def arbitrate(proposals: Iterable[Proposal], busy: frozenset[Owner], budget: int) -> Verdict:
    """Make one wish of many.

    Args:
        proposals: of all controllers; those of one rank in the order in which they matter to it.
        busy: containers that repair, a resize or an admission works on.
        budget: how many containers may be moved now.
    """
    granted: list[Proposal] = []
    refused: list[Refused] = []
    for proposal in sorted(proposals, key=lambda one: one.rank):
        if reason := _in_the_way(proposal, granted, busy, budget):
            refused.append(Refused(proposal, reason))
        else:
            granted.append(proposal)
            budget -= proposal.moves
    return Verdict(tuple(granted), tuple(refused))


def _in_the_way(
    proposal: Proposal, granted: Iterable[Proposal], busy: frozenset[Owner], budget: int
) -> str:
    if taken := proposal.owners & busy:
        return f"{min(map(str, taken))} is being moved, resized, started or ended"
    for before in granted:
        if common := proposal.owners & before.owners:
            return f"{before.rank.word} changes {min(map(str, common))} now"
        if both := proposal.cpus & before.cpus:
            return f"{before.rank.word} changes CPUs {both} now"
    if proposal.moves > max(budget, 0):
        return f"{proposal.moves} moves are more than the {max(budget, 0)} that are left"
    return ""
