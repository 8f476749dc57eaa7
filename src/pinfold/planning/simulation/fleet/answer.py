"""A node's answer to a pod of one shape, and how well that is placed."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from operator import sub
from typing import Final

from pinfold.admission.decision import Decision
from pinfold.core.memory.memory import Block, NUMANodeState
from pinfold.core.moves.objective import Objective
from pinfold.planning.simulation.fleet.shapes import CONTAINER, PodShape

BEYOND: Final = ("numaNodes", "sockets", "caches", "cores")
"""What :attr:`Answer.beyond` counts."""

NOT_BEYOND: Final = (0,) * len(BEYOND)


class Answer:
    """A node's answer to a pod of one shape; of a decision it has only what is needed later.

    Attributes:
        shape: what was asked for.
        admitted, reason, message: of the decision.
        claim: bitmask of the CPUs that nobody else can have then; 0: it shares.
        idle: bitmask of those of them that stay idle; None: it is not SMT-isolated.
        blocks: what the memory manager gave.
        memory: all memory of the node, with that.
        devices: resource -> ids.
        numa_nodes, sockets, caches: over how many of these the CPUs are.
        beyond: how many more NUMA nodes, sockets, caches, cores than so many CPUs need.
    """

    __slots__ = (
        "admitted",
        "beyond",
        "blocks",
        "caches",
        "claim",
        "devices",
        "idle",
        "memory",
        "message",
        "numa_nodes",
        "reason",
        "shape",
        "sockets",
    )

    memory: Mapping[int, NUMANodeState] | None
    numa_nodes: int
    sockets: int
    caches: int
    beyond: tuple[int, ...]

    def __init__(self, shape: PodShape, decision: Decision, objective: Objective) -> None:
        self.shape = shape
        self.admitted = decision.admitted
        self.reason = decision.reason or ""
        self.message = decision.message or ""
        given = decision.allocations.get(CONTAINER)
        self.claim = 0 if given is None else given.claim.mask
        self.idle = None if given is None or given.idle is None else given.idle.mask
        self.blocks: tuple[Block, ...] = decision.memory.get(CONTAINER, ())
        self.memory = None if decision.memory_state is None else decision.memory_state.machine
        self.devices: Mapping[str, tuple[str, ...]] = decision.devices.get(CONTAINER, {})
        _judge(self, objective)

    @property
    def is_spread(self) -> bool:
        """Whether it is on more groups of some kind than so many CPUs need."""
        return any(self.beyond)

    @property
    def is_split(self) -> bool:
        """Whether it is on more NUMA nodes than so many CPUs need."""
        return self.beyond[0] > 0

    def moved(self, claim: int, objective: Objective) -> Answer:
        """The same on other CPUs (a bitmask)."""
        other = copy(self)
        other.claim = claim
        _judge(other, objective)
        return other


def _judge(answer: Answer, objective: Objective) -> None:
    used = answer.claim & ~(answer.idle or 0)
    touched = objective.touched(used)
    answer.numa_nodes, answer.sockets, answer.caches, _ = touched
    least = objective.least(used.bit_count()) if used else touched
    # Nearly all are as well placed as can be, and need no tuple of their own.
    answer.beyond = NOT_BEYOND if touched == least else tuple(map(sub, touched, least))
