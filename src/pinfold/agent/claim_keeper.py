"""Sees that what the agent claimed is still there and its own."""

from __future__ import annotations

import asyncio

import structlog

from pinfold.agent.parts import Claim
from pinfold.node.pods.manager import Manager
from pinfold.node.reconciler import reconcile
from pinfold.ports.errors import PortError

log = structlog.get_logger("pinfold")


class ClaimKeeper:
    """Makes the tree of cgroups anew where somebody has taken it away.

    ``again`` is set whenever that was done.
    """

    def __init__(self, manager: Manager, claim: Claim | None) -> None:
        self._manager = manager
        self._claim = claim
        self._looking = asyncio.Lock()
        self._returning = False
        self.again = asyncio.Event()

    @property
    def is_had(self) -> bool:
        """Whether what was claimed is there, and this agent's own."""
        return self._claim is None or not self._claim.missing()

    async def look(self) -> None:
        """Look once, and mend.

        Raises:
            PortError: what is missing cannot be had again; the next look tries.
        """
        claim = self._claim
        if claim is None or not (self._returning or claim.missing()):
            return
        async with self._looking:
            if missing := claim.missing():
                await self._take_again(claim, missing)
                log.warning("made anew", problem=f"{missing} was taken away")
            if self._returning:
                # Whoever removed it has moved those in there elsewhere.
                await reconcile(self._manager)
                self._returning = False

    async def _take_again(self, claim: Claim, missing: str) -> None:
        try:
            async with self._manager.lock:
                claim.take(patience=0.0)
                await self._manager.containers.cgroups.open(self._manager.pool)
        except PortError as error:
            problem = f"{missing} was taken away, and cannot be had again: {error.problem}"
            raise PortError(problem, error.remedy) from None
        self._returning = True
        self.again.set()
