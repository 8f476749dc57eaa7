"""What a node needs of whoever counts: what containers use, and how idle CPUs are.

Adapters fulfil these protocols; ``pinfold.planning.fake_meters`` does so in memory.  Both pass the
same contract tests.  Reading is quick and does not wait, so nothing here is a coroutine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from pinfold.core.observation.rates import Counters, Stalls
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import ContainerKey


class ContainerMeters(Protocol):
    """What the kernel counts for containers; files stay open from one reading to the next."""

    @property
    def wait_source(self) -> str:
        """Where run-queue waits are from: ``cpu.pressure``, ``schedstat``, or "" (nowhere)."""

    def lacks(self) -> Sequence[str]:
        """What cannot be told here and why, a sentence each."""

    def read(self, keys: Iterable[ContainerKey]) -> Mapping[ContainerKey, Counters]:
        """The counters of these containers now; one whose cgroup is not there is left out.

        Raises:
            PortError: the kernel is short of files or memory.
        """

    def used(self, keys: Iterable[ContainerKey]) -> Mapping[ContainerKey, int]:
        """Microseconds of CPU time of these containers, as :meth:`read` has it and nothing else.

        It is one read of one file for each, and may be done often.  One whose cgroup is not there,
        or of which the kernel does not tell, is left out.

        Raises:
            PortError: the kernel is short of files or memory.
        """

    def retain(self, keys: Collection[ContainerKey]) -> None:
        """Let go of all others."""

    def close(self) -> None:
        """Let go of all."""


@runtime_checkable
class Located(Protocol):
    """Cgroups of which others may read what the kernel counts in them."""

    def folder_of(self, key: ContainerKey, controller: str) -> Path | None:
        """Where a container's cgroup is in the hierarchy of a controller; None where in none.

        It need not be there any more.  On cgroup v2 it is one for all.
        """


class CPUMeter(Protocol):
    """What the kernel counts for CPUs and for the machine."""

    def idle(self, cpus: CPUSet | None = None) -> Mapping[int, int]:
        """Microseconds for which each of these CPUs (None: every) has had nothing to do.

        One that is offline is left out.  It is one read of one file, and may be done often.

        Raises:
            PortError: it cannot be read.
        """

    def pressure(self) -> Mapping[str, Stalls]:
        """How long the machine's tasks have been stalled: ``cpu``, ``memory``, ``io``.

        Empty where the kernel does not tell.

        Raises:
            PortError: the kernel is short of files or memory.
        """

    def close(self) -> None:
        """Let go of the files."""
