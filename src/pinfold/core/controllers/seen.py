"""One look at a node, as every controller is given it: who is where, and what was observed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from msgspec import Struct, field

from pinfold.core.controllers.proposals import Proposal
from pinfold.core.machine.topology import CPUTopology
from pinfold.core.moves.owners import Owner
from pinfold.core.observation.rates import Load
from pinfold.core.pod.pod import QOSClass
from pinfold.core.values.cpuset import CPUSet

M = TypeVar("M")


class SeenContainer(Struct, frozen=True):
    """A container that runs.

    ``cpus`` are its own, empty where it shares; ``load`` is that of the last interval, None where
    it is not known; ``annotations`` are its pod's.  With ``mixed`` it uses the shared pool besides;
    with ``partition`` its CPUs are to be one of the kernel's, in which nobody else can run;
    ``borrows`` tells that it runs on CPUs that are lent, too; ``load_driven`` is how many CPUs it
    is given when its load asks for them, 0 where nobody asks its load.
    """

    cpus: CPUSet
    qos: QOSClass
    load: Load | None = None
    annotations: Mapping[str, str] = field(default_factory=dict)
    mixed: bool = False
    partition: bool = False
    borrows: bool = False
    load_driven: int = 0


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


class Controller(Protocol[M]):
    """Options, and what they make of a look; what it has to remember is given back to it."""

    def step(self, memory: M, seen: Seen) -> tuple[M, tuple[Proposal, ...]]:
        """What is to be remembered from now on, and what is wished now; it changes nothing.

        A look may come late, twice, or after a long time; what is proposed may be refused.
        """
