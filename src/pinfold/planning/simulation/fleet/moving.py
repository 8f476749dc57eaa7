"""What the policy ``dynamic`` moves by itself on the nodes of a fleet.

The plans are those that an agent makes (:mod:`pinfold.admission.rebalance`), from the node's whole
state, within the agent's own budget.  A plan is carried out at once: nobody is told beforehand, as
nobody's work is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from pinfold.admission.admission import NodeState
from pinfold.admission.moves import move_price, with_claims
from pinfold.admission.rebalance import make_room_for, rebalance
from pinfold.core.kubelet.own_policies import DynamicOptions
from pinfold.core.moves.budget import MoveBudget
from pinfold.core.moves.objective import NUMA_NODES
from pinfold.core.moves.owners import MoveError
from pinfold.core.moves.rebalance import Rebalance, RebalanceOptions
from pinfold.planning.simulation.fleet.answer import Answer
from pinfold.planning.simulation.fleet.nodes import FleetNode
from pinfold.planning.simulation.fleet.shapes import CONTAINER, PodShape

Why: TypeAlias = Literal["makeRoom", "rebalance"]
"""The option of the section ``pinfold`` that has somebody moved."""


class Moved(Struct, frozen=True):
    """A pod that moved: where it was, and where it is."""

    pod: int
    before: Answer
    after: Answer


class Moves(Struct, frozen=True):
    """A plan that was carried out on a node.

    Attributes:
        at: seconds from the first arrival.
        node: which has moved them already.
        why: what had them moved.
        moved: who moved, in the order of the plan.
        cpus: those that were new to their container.
        memory_bytes: of the pods that changed NUMA nodes, as they requested it.
    """

    at: float
    node: FleetNode
    why: Why
    moved: tuple[Moved, ...]
    cpus: int
    memory_bytes: int


class _Told(Protocol):
    def __call__(self, moves: Moves) -> None:
        """Somebody has moved."""


class Moving:
    """Moves on the nodes of one run.

    ``due`` is when nodes are looked at next, in seconds from the first arrival; ``changed`` are the
    numbers of those on which something is otherwise since their last plan.

    Args:
        dynamic: what the policy may do.
        nodes: the fleet.
        clock: the seconds from the first arrival.
        told: called for each plan that was carried out.
    """

    def __init__(
        self,
        dynamic: DynamicOptions,
        nodes: Sequence[FleetNode],
        clock: Callable[[], float],
        told: _Told,
    ) -> None:
        self._dynamic = dynamic
        self._nodes = nodes
        self._clock = clock
        self._told = told
        self._budgets: dict[int, MoveBudget] = {}
        self._period = dynamic.period_seconds
        self.due = self._period or inf
        self.changed: set[int] = set()

    def make_room(self, node: FleetNode, shape: PodShape) -> bool:
        """Move others for a pod that the node refuses; whether it admits one like it now."""
        budget = self._budget(node)
        if not self._dynamic.make_room or not (most := budget.left):
            return False
        state = node.state()
        options = replace(self._options(node, state), most_moved=most)
        try:
            found = make_room_for(node.model.node, state, shape.pod, options)
        except MoveError:
            return False
        self._carry_out(node, state, found, "makeRoom")
        return True

    def rebalance(self) -> None:
        """Have all that changed since, and have somebody on too many NUMA nodes, do better."""
        self.due += self._period
        looked_at, self.changed = sorted(self.changed), set()
        for number in looked_at:
            node = self._nodes[number]
            if any(answer.is_split for answer in node.pods.values()):
                self._rebalance(node)

    def _rebalance(self, node: FleetNode) -> None:
        budget = self._budget(node)
        most = budget.left
        if most < self._dynamic.most_moved:
            # There may be more to do once more may move again.
            self.changed.add(node.number)
        if not most:
            return
        state = node.state()
        options = replace(self._options(node, state), most_moved=most, levels=(NUMA_NODES,))
        try:
            found = rebalance(node.model.node, state, options)
        except MoveError:
            return
        if found.plan.moved:
            self._carry_out(node, state, found, "rebalance")

    def _options(self, node: FleetNode, state: NodeState) -> RebalanceOptions:
        pods = (
            replace(answer.shape.pod, uid=str(pod))
            for pod, answer in node.pods.items()
            if answer.claim
        )
        found = node.model.planner.who_may_move(state, pods)
        moves = replace(found.moves, pool_may_be_empty=not node.sharing)
        return replace(found, moves=moves)

    def _carry_out(self, node: FleetNode, state: NodeState, found: Rebalance, why: Why) -> None:
        plan = found.plan
        self._budget(node).take(len(plan.moved))
        after = with_claims(state.ledger, plan.end).assignments
        moved = []
        for owner in plan.moved:
            pod = int(owner.pod_uid)
            before = node.pods[pod]
            node.move(pod, after[owner.pod_uid][CONTAINER].mask)
            moved.append(Moved(pod, before, node.pods[pod]))
        node.settle_moves()
        self.changed.add(node.number)
        elsewhere = (
            one for one in moved if _nodes_of(node, one.before) != _nodes_of(node, one.after)
        )
        memory = sum(one.before.shape.size.memory for one in elsewhere)
        cpus = move_price(plan).cpus
        self._told(Moves(self._clock(), node, why, tuple(moved), cpus, memory))

    def _budget(self, node: FleetNode) -> MoveBudget:
        known = self._budgets.get(node.number)
        if known is None:
            known = self._budgets[node.number] = MoveBudget(self._dynamic, self._clock)
        return known


def _nodes_of(node: FleetNode, answer: Answer) -> tuple[int, ...]:
    groups = node.model.objective.topology.numa_nodes
    return tuple(one for one, mask in groups.items() if mask & answer.claim)
