"""From a plan of moves and the node that it is for to what the renderers draw."""

from __future__ import annotations

from pinfold.documents.move_plan import MovePlan
from pinfold.render.moves import MovesView, placed_afterwards
from pinfold.render.node_map import with_owners
from pinfold.render.plan_view import PlanView


def moves_view(plan: MovePlan, node: PlanView) -> MovesView:
    """The moves on a node that is drawn as it is before them."""
    before = node.node_map
    owners = placed_afterwards(before.owners.values(), plan)
    return MovesView(node.title, plan, (before, with_owners(before, owners)), node.subtitle)
