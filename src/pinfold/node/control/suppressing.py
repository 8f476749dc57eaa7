"""Suppression on a live node: the cap of the idle side, under the lease of what is lent."""

from __future__ import annotations

from pinfold.core.controllers.proposals import Proposal, Rank
from pinfold.core.controllers.suppression import Cap, Suppressed, Suppression
from pinfold.core.kubelet.node_allocatable import reservation
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.kubelet.own_policies import SuppressionOptions
from pinfold.core.pod.pod import CPU
from pinfold.core.values.quantity import ZERO
from pinfold.node.books import Books
from pinfold.node.control.loop import Control


def suppression_control(
    books: Books, options: SuppressionOptions, config: NodeConfig
) -> Control[Suppressed]:
    """The controller, and who caps what it says."""

    async def carry_out(proposal: Proposal) -> str:
        if isinstance(proposal, Cap):
            await books.lease.cap(proposal.quota)
        return ""

    reserved = reservation(config).get(CPU, ZERO).milli_value() / 1000
    controller = Suppression(options, reserved)
    return Control(Rank.SUPPRESSION.word, controller, Suppressed(), carry_out)
