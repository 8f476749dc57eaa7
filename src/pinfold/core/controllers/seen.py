"""One look at a node, as every controller is given it: who is where, and what was observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol, TypeVar

from msgspec import Struct, field

from pinfold.core.controllers.proposals import Proposal
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet

M = TypeVar("M")

_GAP: Final = 10.0
"""Seconds between two looks beyond which nobody knows what was in between."""

_MISSED: Final = 3.0
"""Periods that two looks may be apart where that is longer: a late one is no break."""


class SeenContainer(Struct, frozen=True):
    """A container that runs.

    ``cpus`` are its own, empty where it shares; ``load`` is that of the last interval, None where
    it is not known; ``annotations`` are its pod's.  With ``mixed`` it uses the shared pool besides;
    with ``partition`` its CPUs are to be one of the kernel's, in which nobody else can run;
    ``borrows`` tells that it runs on CPUs that are lent, too; ``load_driven`` is how many CPUs it
    is given when its load asks for them, 0 where nobody asks its load; ``promoted_with`` how many
    it used when it got those that it has, None where nobody knows; ``settled`` for how many seconds
    it is known to have them, or to share; ``in_bubble`` tells that its CPUs are of a bubble.
    """

    cpus: CPUSet
    qos: QOSClass
    load: Load | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    mixed: bool = False
    partition: bool = False
    borrows: bool = False
    load_driven: int = 0
    promoted_with: float | None = None
    settled: float = 0.0
    in_bubble: bool = False


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
        parked: CPUs of the pool that it has left, so that they idle.
        topology: of the CPUs; None under a policy that gives nobody CPUs of his own.
        wait_source: where waits are from: ``cpu.pressure`` (a share of the time, at most 1),
            ``schedstat`` (the sum over threads), or "" (there are none).
        cap: CPUs' worth of time that all who borrow have together; None: any.
        period: seconds between two readings of loads; 0: nobody reads any.
    """

    at: float
    online: CPUSet
    pool: CPUSet
    idle: Mapping[int, float] = field(default_factory=dict)
    containers: Mapping[Owner, SeenContainer] = field(default_factory=dict)
    busy: frozenset[Owner] = frozenset()
    lent: CPUSet = CPUSet()
    topology: CPUTopology | None = None
    wait_source: str = ""
    parked: CPUSet = CPUSet()
    cap: float | None = None
    period: float = 0.0

    def since(self, at: float) -> float | None:
        """Seconds since an earlier look; None where nobody knows what was in between.

        So it is where looks did not come for long, and where a clock went back.
        """
        passed = self.at - at
        return passed if 0.0 <= passed <= max(_GAP, _MISSED * self.period) else None


class Controller(Protocol[M]):
    """Options, and what they make of a look; what it has to remember is given back to it."""

    def step(self, memory: M, seen: Seen) -> tuple[M, tuple[Proposal, ...]]:
        """What is to be remembered from now on, and what is wished now; it changes nothing.

        A look may come late, twice, or after a long time; what is proposed may be refused.
        """
