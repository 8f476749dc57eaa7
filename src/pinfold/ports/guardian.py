"""What a node needs so that nothing stays lent when its agent is stopped or killed.

CPUs are lent, and best-effort work is capped, under a lease that the agent renews.  A process of
its own, the guardian, undoes both where it is not renewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct, field

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import CgroupError

LEASE: Final = 2.0
"""Seconds of ``CLOCK_MONOTONIC`` for which a lease holds after it was renewed.

That clock rests while the machine is suspended, as agent, owner and borrowers do.
"""

LOOK: Final = 0.5
"""Seconds between two looks of the guardian; an agent renews at least as often."""


class LeaseError(CgroupError):
    """There is no lease, or it is over: what was lent may have been undone."""


class Undoing(Struct, frozen=True):
    """How all that is lent or capped is undone, for one who knows of nothing but files.

    Attributes:
        pool: the folder of the shared pool's cpuset.
        idle: the folder of the idle side's; it is to have no CPU that ``pool`` has not.
        threads: the file of a cgroup that lists its threads.
        uncapped: files of the kernel, and what their first words are without a cap.
        homes: cgroups of the guardian's own, one in each hierarchy; who is in there is a guardian.
    """

    pool: str
    idle: str
    threads: str
    uncapped: Mapping[str, str] = field(default_factory=dict)
    homes: tuple[str, ...] = ()


class Undone(Struct, frozen=True):
    """What a guardian did, in place of an agent.

    Attributes:
        at: when, in seconds since the epoch.
        cpus: the CPUs that it took back from those who had borrowed them.
        uncapped: whether it took away a cap.
        why: the reason, or what was in its way, in words.
    """

    at: float
    cpus: CPUSet
    uncapped: bool
    why: str


class Guardian(Protocol):
    """Undoes what is lent and capped where the agent does not renew its lease.

    A lease that is over is never renewed: it is ended, and another one begun.
    """

    async def begin(self) -> None:
        """Have a lease from now on, which has to be renewed; one that holds stays.

        Raises:
            LeaseError: there can be none, or the last one is over and not ended.
        """

    def renew(self) -> None:
        """Renew the lease; takes microseconds.

        Raises:
            LeaseError: there is none, or it is over.
        """

    def check(self) -> None:
        """Raise LeaseError where there is no lease, or it is over.

        It comes after what was changed: what was still in force then is undone by the guardian when
        it is not renewed.  What was changed before a failure may or may not be in force.
        """

    async def end(self) -> tuple[Undone, ...]:
        """End the lease, and whoever guards, also for an agent before this one.

        Nothing may be lent any more.  No guardian changes anything after this.

        Returns:
            What guardians have undone, each told once.

        Raises:
            LeaseError: a guardian does not end.
        """
