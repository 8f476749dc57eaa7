"""What a node needs to tell applications which CPUs they have, and which are coming."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import ContainerKey, PortError


class TellingError(PortError):
    """An application could not be told; it can be tried again."""


class Assigned(Struct, frozen=True):
    """Exclusive CPUs and the NUMA nodes of memory; empty where there are none of its own."""

    cpus: CPUSet = CPUSet()
    mems: CPUSet = CPUSet()


class Assignment(Struct, frozen=True):
    """What a container with exclusive CPUs is told.

    Attributes:
        generation: 1 at first; each news has the next one, and none that was lost comes again.
        current: where it may run now; on the way to other CPUs the old and the new ones.
        coming: what it will have; ``current`` where nothing is under way.
        previous: what it had before it was moved the last time, or is; None: never.
        reason: a word, see :class:`pinfold.documents.assignment.Assignment`.
        deadline: no sooner is anything of ``current`` taken, seconds since the epoch; None where
            nothing is.
    """

    generation: int
    current: Assigned
    coming: Assigned
    previous: Assigned | None
    reason: str
    deadline: float | None = None


class Teller(Protocol):
    """Tells containers what they have, and hears of what they acknowledge.

    What was told last is kept until the container is forgotten, also while no agent runs: so
    generations grow over restarts of agent and container.
    """

    def folder(self, owner: ContainerKey) -> str:
        """The folder on the machine in which a container is told.

        Raises:
            TellingError: there can be none for its pod.
        """

    async def told(self, owner: ContainerKey) -> Assignment | None:
        """What a container was told last; None: nothing that is known any more.

        Raises:
            TellingError: it cannot be found out.
        """

    def is_told(self, owner: ContainerKey) -> bool:
        """Whether what a container was told is still there: somebody may have removed it."""

    async def tell(self, owner: ContainerKey, news: Assignment) -> None:
        """Replace what a container is told, all of it at once; it has it when this returns.

        Raises:
            TellingError: it cannot be told; it has what it had.
        """

    async def acknowledged(self, owner: ContainerKey, generation: int) -> None:
        """Return as soon as a container has acknowledged this generation; no other counts.

        One that has done so already has.  Whoever stops waiting cancels it.

        Raises:
            TellingError: it cannot be heard; to wait until the deadline is all that is left.
        """

    async def forget(self, pod_uid: str) -> None:
        """Remove all that the containers of a pod were told; nothing is no error.

        Raises:
            TellingError: something is left; it can be tried again.
        """

    async def retain(self, pod_uids: Collection[str]) -> Sequence[str]:
        """Forget all other pods, such as those that ended while no agent ran.

        Returns:
            What could not be removed, as texts.
        """
