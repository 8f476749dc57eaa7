"""One look at a node, as every controller is given it: who is where, and what was observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from msgspec import Struct, field

from pinfold.core.controllers.proposals import Proposal
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet

M = TypeVar("M")


class SeenContainer(Struct, frozen=True):
    """A container that runs.

    ``cpus`` are its own, empty where it shares; ``load`` is that of the last interval, None where
    it is not known; ``annotations`` are its pod's.
    """

    cpus: CPUSet
    qos: QOSClass
    load: Load | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)


class Seen(Struct, frozen=True):
    """A node at one moment.

    Attributes:
        at: seconds of a clock that nobody sets and that rests while the machine does.
        online: the CPUs that are online.
        pool: those on which the containers run that share.
        idle: the share of the last interval, 0 to 1, for which each CPU had nothing to do; one that
            is not known is left out.
        containers: all that run.
        busy: those of them that are being moved, resized, started or ended: nobody else's now.
        lent: CPUs of owners on which best-effort containers run, too.
    """

    at: float
    online: CPUSet
    pool: CPUSet
    idle: Mapping[int, float] = field(default_factory=dict)
    containers: Mapping[Owner, SeenContainer] = field(default_factory=dict)
    busy: frozenset[Owner] = frozenset()
    lent: CPUSet = CPUSet()


class Controller(Protocol[M]):
    """Options, and what they make of a look; what it has to remember is given back to it."""

    def step(self, memory: M, seen: Seen) -> tuple[M, tuple[Proposal, ...]]:
        """What is to be remembered from now on, and what is wished now; it changes nothing.

        A look may come late, twice, or after a long time; what is proposed may be refused.
        """
