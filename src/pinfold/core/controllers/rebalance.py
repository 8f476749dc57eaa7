"""Containers on fewer NUMA nodes, every period: whoever carries it out finds out who moves."""

from __future__ import annotations

from msgspec import Struct

from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.seen import Seen


class PeriodicRebalance(Struct, frozen=True):
    """Wishes it each time that it is asked, which is every ``period`` in words, such as ``5m``."""

    period: str

    def step(self, memory: None, seen: Seen) -> tuple[None, tuple[Proposal, ...]]:
        """See :class:`pinfold.core.controllers.seen.Controller`; one move at least."""
        del seen
        why = f"every {self.period}: fewer NUMA nodes"
        return memory, (Proposal(rank=Rank.REBALANCE, why=why, moves=1),)
