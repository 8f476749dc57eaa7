"""What a node needs of the machine's interrupts.

The adapter fulfils it on the kernel; ``pinfold.planning.fake_interrupts`` does so in memory.  Both
pass the same contract tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import PortError


class InterruptError(PortError):
    """Interrupts could not be looked at, or nobody may move them here."""


class Interrupt(Struct, frozen=True, order=True):
    """An interrupt: ``number`` is ``default`` for those that come later, ``name`` its handlers.

    ``cpus`` is where it may come, or where it is delivered, as far as that is known.
    """

    number: str
    name: str
    cpus: CPUSet

    def __str__(self) -> str:
        return f"irq {self.number} {self.name}".rstrip()


class Balancer(Struct, frozen=True):
    """An ``irqbalance`` that runs: what it keeps off of, and why it was not told, "" where it was.

    It heeds what it was told from its next round on, ten seconds later unless told otherwise.
    """

    pid: int
    banned: CPUSet = CPUSet()
    problem: str = ""


class KeptOff(Struct, frozen=True, kw_only=True):
    """What one look has found and done.

    ``kept`` counts the interrupts that are off these CPUs because of us; ``moved`` have just been
    moved, ``contested`` those of them that somebody else had moved back.  ``fixed`` may come to
    these CPUs, and the kernel does not let anybody move them; ``refused`` are sentences about those
    that it did not move this time; ``pending`` were moved, and stay until they come the next time.
    """

    kept: int = 0
    moved: Sequence[Interrupt] = ()
    contested: Sequence[Interrupt] = ()
    fixed: Sequence[Interrupt] = ()
    refused: Sequence[str] = ()
    pending: Sequence[Interrupt] = ()
    balancers: Sequence[Balancer] = ()


class Interrupts(Protocol):
    """The interrupts of the machine, which other agents and ``irqbalance`` may move as well."""

    async def keep_off(self, cpus: CPUSet, others: CPUSet) -> KeptOff:
        """Have no interrupt come to some CPUs; those that did before come to ``others``.

        What was kept off other CPUs goes back to what it had.  What is about to be changed is
        written down first, so that a later process can undo it; what somebody else has written
        since is left where it keeps off ``cpus``.  Interrupts that nobody can move are tried once.

        Args:
            cpus: who is to have none; none: all is given back.
            others: where they may come; online, and none of ``cpus``.

        Raises:
            InterruptError: they cannot be looked at, or nobody may move them here.
        """

    async def restore(self) -> Sequence[str]:
        """Give all back what it had, also what a process before has changed; forget it.

        Returns:
            Sentences about what could not be, or was left since somebody else had changed it.

        Raises:
            InterruptError: the record of what was changed cannot be read or removed.
        """
