"""What a node needs of cgroups.

Adapters fulfil these protocols; ``pinfold.planning.fakes`` does so in memory.  Both pass the same
contract tests.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from enum import Enum
from typing import Protocol, runtime_checkable

from msgspec import Struct, field

from pinfold.core.memory.protection import Protection
from pinfold.core.values.cpuset import NO_CPUS, CPUSet
from pinfold.documents.move_plan import MemoryMoved
from pinfold.documents.status import WrittenLimits
from pinfold.ports.errors import CgroupError, ContainerKey
from pinfold.ports.guardian import Undoing


class Partition(Enum):
    """The kernel's ``cpuset.cpus.partition`` (cgroup v2)."""

    MEMBER = "member"
    ROOT = "root"
    ISOLATED = "isolated"


class Limits(Struct, frozen=True):
    """What a container's cgroup is set to beside its CPUs; None leaves the kernel's default.

    ``cpu_shares`` is in cgroup v1's unit (a v2 adapter converts with
    :func:`pinfold.core.pod.cgroup_values.shares_to_weight`); ``cpu_quota`` and ``cpu_period`` are
    microseconds, a quota of -1 is no cap; ``memory`` is bytes; ``hugepages`` bytes by page size.

    ``cpu_burst`` is what of a quota may be saved for later, microseconds and at most the quota;
    ``protection`` how memory is protected and throttled, on cgroup v2; ``pids`` how many processes
    and threads there may be; ``io_weight`` 1 to 1000.
    """

    cpu_shares: int | None = None
    cpu_quota: int | None = None
    cpu_period: int | None = None
    memory: int | None = None
    hugepages: Mapping[int, int] = field(default_factory=dict)
    cpu_burst: int | None = None
    protection: Protection = Protection()
    pids: int | None = None
    io_weight: int | None = None


class Placement(Struct, frozen=True):
    """Where a container runs: on its own ``cpus``, or (None) in the shared pool.

    With ``mixed`` it runs on its own CPUs and in the shared pool besides, as that is from now on;
    with ``pooled`` others of its pod do on its own.  One without CPUs of its own that is ``idle``
    is on the idle side: in the shared pool and on what is lent (:meth:`Cgroups.lend`), there only
    while nobody else wants to.  ``partition`` is wished for an exclusive set, and may not be
    granted; what is ``frozen`` does not run, or where nothing can be, that is told as not granted.

    ``mems`` are the NUMA nodes that new memory comes from.  Of a container that runs they are never
    made fewer by a placement, but by :meth:`Cgroups.migrate`; made more, no memory moves.
    """

    cpus: CPUSet | None = None
    mems: CPUSet | None = None
    limits: Limits = Limits()
    pod_limits: Limits = Limits()
    partition: Partition = Partition.MEMBER
    frozen: bool = False
    mixed: bool = False
    idle: bool = False
    pooled: bool = False

    @property
    def borrows(self) -> bool:
        """Whether it is on the idle side; nobody is who has CPUs of his own."""
        return self.idle and self.cpus is None

    @property
    def shares(self) -> bool:
        """Whether it uses the shared pool, with or without CPUs of its own."""
        return self.cpus is None or self.mixed

    def within(self, pool: CPUSet, lent: CPUSet = NO_CPUS) -> CPUSet:
        """All CPUs that it is to run on while ``pool`` is the shared pool, and these are lent."""
        if self.cpus is None:
            return pool | lent if self.idle else pool
        return self.cpus | pool if self.mixed else self.cpus


class Stray(Struct, frozen=True):
    """A process of a container that is in the cgroup ``where``, and not in its container's.

    ``start`` is when it began, in clock ticks since the boot: its pid may be another's soon.
    """

    pid: int
    start: int
    where: str


class ObservedContainer(Struct, frozen=True):
    """What the kernel says of a container's cgroup.

    ``configured`` is what was written into the cpuset (None: it has none of its own), ``effective``
    what the kernel lets it use; ``exclusive`` tells whether it sits in the exclusive part of the
    tree, ``idle`` whether it is wholly on the idle side; ``partition`` is the kernel's text, such
    as ``isolated invalid (...)``, on cgroup v1 the same in its words, None where there are none.
    """

    key: ContainerKey
    exclusive: bool
    configured: CPUSet | None
    effective: CPUSet
    partition: str | None = None
    populated: bool = False
    frozen: bool = False
    """Whether none of its processes runs."""
    strays: tuple[Stray, ...] = ()
    """Its processes elsewhere; they count as none of its cgroup."""
    idle: bool = False


class ObservedIdle(Struct, frozen=True):
    """What the kernel says of the idle side.

    ``configured`` is what was written into its cpuset, ``effective`` where its tasks may run;
    ``is_idle`` tells whether the kernel ranks all of it below its siblings (``cpu.idle`` is 1);
    ``quota`` is how many CPUs' worth of time it may use, None for no cap.
    """

    configured: CPUSet
    effective: CPUSet
    is_idle: bool
    quota: float | None = None


class ObservedCgroups(Struct, frozen=True):
    """What the kernel says of the whole subtree."""

    shared: CPUSet
    """The effective CPUs of the shared pool."""
    shared_configured: CPUSet
    containers: Mapping[ContainerKey, ObservedContainer]
    idle: ObservedIdle | None = None
    """None while there is no idle side."""


class Cgroups(Protocol):
    """The subtree that holds the containers: one shared pool, and an own cpuset for each owner.

    Who borrows what owners leave idle is on a third side, which is not made before somebody is
    placed there or something is lent.
    """

    @property
    def no_idle_side(self) -> str:
        """Why there can be no idle side, a sentence; "" where there can.  Known once it is open."""

    @property
    def is_ranked(self) -> bool:
        """Whether the kernel ranks the idle side below owners; it does where there is none."""

    async def open(self, shared: CPUSet) -> None:
        """Find the hierarchies, make or adopt the subtree, set the shared pool.

        An empty ``shared`` leaves the pool as it is: no CPU of it is online.  An idle side gets
        back to the shared pool, uncapped: nothing is lent any more.

        Raises:
            CgroupError: there is no cgroup tree that can be written.
        """

    async def set_shared(self, cpus: CPUSet) -> None:
        """Shrink or grow the shared pool, and return when no task of it can run elsewhere.

        Mixed containers follow it: none of their tasks can run elsewhere than on these and their
        own CPUs.  So does the idle side: none of its tasks can run but on these and what is lent.

        Raises:
            CgroupError: the kernel still lets some task run outside of ``cpus``.
        """

    async def lend(self, cpus: CPUSet) -> None:
        """Let the idle side run on the shared pool and on ``cpus``, whatever was lent before.

        When this returns, no task of it can run elsewhere, children being born included.  It may be
        called while another call is under way.

        Raises:
            CgroupError: some of ``cpus`` cannot be lent, and nothing more than before is, while
                what is not among them is back; or the kernel still lets some task run elsewhere.
        """

    async def cap_idle(self, quota: float | None) -> None:
        """Let the whole idle side use so many CPUs' worth of time, at least 0.01; None: no cap.

        Raises:
            CgroupError: the kernel does not take it.
        """

    async def place(self, key: ContainerKey, placement: Placement) -> str:
        """Make or change a container's cgroup, and read back what the kernel made of it.

        Of one with CPUs of its own, no task can run elsewhere when this returns, children being
        born included: what it has lost may be given to others.  One that is mixed is known as such
        from now on, even where this fails.

        Returns:
            What was granted in place of a wish that was not, for the record; "" when all was.

        Raises:
            CgroupError: the CPUs or limits are not in force, or the kernel still lets a task of an
                owner run elsewhere.
        """

    async def weigh(self, key: ContainerKey, mems: CPUSet) -> int:
        """Bytes of the container's memory that are on other NUMA nodes than ``mems``.

        Those in huge pages do not count, since they have a room of their own.

        Raises:
            CgroupError: they would not fit there, or nobody can say.
        """

    async def migrate(self, key: ContainerKey, mems: CPUSet) -> MemoryMoved:
        """Let the container have memory of the NUMA nodes ``mems`` only, and move what it has.

        It may take seconds, and may be done again.  What cannot be moved stays, and is told.

        Raises:
            CgroupError: there is no room for it, and nothing was changed; or the kernel refuses.
        """

    async def enter(self, key: ContainerKey, pid: int, *, start: int | None = None) -> None:
        """Move a process, all its threads and all its descendants into the container's cgroup.

        It began at ``start`` (clock ticks since the boot); None: whoever has the pid now.

        Raises:
            ProcessGoneError: the process has ended, however it still looks, or whoever has its pid.
            CgroupError: some of them could not be moved.
        """

    def lives(self, pid: int) -> bool:
        """Whether this process can still execute anything; a zombie cannot.

        Raises:
            CgroupError: nobody knows, as no more files can be open.
        """

    async def kill(self, key: ContainerKey, *, wait: float = 5.0) -> None:
        """End every process of the container with SIGKILL; return when its cgroup is empty.

        Those that have left the cgroup are ended, too, as far as they are known.

        Raises:
            CgroupError: processes are left after ``wait`` seconds, longer on a slow machine.
        """

    async def remove(self, key: ContainerKey) -> None:
        """Remove the container's cgroup, which is empty; one that is not there is no error.

        Raises:
            CgroupError: it is not empty, or the kernel holds on to it.
        """

    async def observe(self) -> ObservedCgroups:
        """What the kernel has now; foreign writes show here."""

    async def close(self, *, remove: bool) -> None:
        """Let go; with ``remove``, leave nothing behind (there is no container left)."""


class NoIdleSide:
    """The part of :class:`Cgroups` for a kind that has no idle side; ``no_idle_side`` says why."""

    no_idle_side: str
    is_ranked = True

    def expect_none(self, placement: Placement) -> None:
        """Raise CgroupError where this is a place on an idle side."""
        if placement.borrows:
            raise CgroupError(self.no_idle_side)

    async def lend(self, cpus: CPUSet) -> None:
        """See :class:`Cgroups`: nothing is all that can be lent."""
        if cpus:
            raise CgroupError(self.no_idle_side)

    async def cap_idle(self, quota: float | None) -> None:
        """See :class:`Cgroups`: there is nothing to cap."""
        if quota is not None:
            raise CgroupError(self.no_idle_side)


class MadeCgroups(Cgroups, Protocol):
    """Cgroups that a runtime makes, and that are found by the processes in them."""

    def identify(self, key: ContainerKey, container_id: str) -> None:
        """Take note of the runtime's id of a container, which its cgroup's name has in it."""


class FoundCgroups(MadeCgroups, Protocol):
    """Cgroups that a runtime makes, and names by a path."""

    async def find(self, key: ContainerKey, cgroups_path: str) -> bool:
        """Look for the cgroup of a container that was placed, and place it there.

        Args:
            key: the container.
            cgroups_path: OCI's ``cgroupsPath``: a path from the hierarchy's root, or systemd's
                ``SLICE:PREFIX:NAME``.

        Returns:
            Whether it is there.

        Raises:
            CgroupError: it is there, and its CPUs are not in force.
        """

    async def settle(self) -> None:
        """Take note that every container that exists was placed, and looked for."""

    def began(self, pid: int) -> int | None:
        """When the process of this id began, in clock ticks since the boot; None: there is none."""

    def age(self, pid: int) -> float | None:
        """Seconds since the process of this id began; None: there is none."""


class GatedCgroups(MadeCgroups, Protocol):
    """Cgroups whose shared pool waits for containers that are just being started."""

    def starting(self) -> AbstractAsyncContextManager[None]:
        """Around what a runtime does with a container's CPUs by itself: the pool stays as it is.

        A container's cgroup exists and is known only some time after the runtime has begun to
        start it; were the pool to shrink in between, nobody would move it.
        """

    def remove_parent(self, cgroups_path: str) -> None:
        """Remove the cgroup that a runtime made to hold those of a pod, where it is empty."""


class OtherLimit(Struct, frozen=True):
    """A file of a container's or its pod's cgroup that says something else than was written."""

    file: str
    expected: str
    found: str


class KeptLimits(Protocol):
    """What containers were limited to."""

    def written(self) -> Iterator[WrittenLimits]:
        """What was asked for and is in force, cgroup by cgroup."""

    def look(self, at_most: int = ...) -> Mapping[ContainerKey, Sequence[OtherLimit]]:
        """What somebody else has changed, of the containers whose turn it is.

        Args:
            at_most: so many files are read, and those of a container that was begun with.
        """


@runtime_checkable
class Limiting(Protocol):
    """Cgroups that limit what is in them, and know what they have written."""

    @property
    def limits(self) -> KeptLimits:
        """What is limited."""


@runtime_checkable
class Undoable(Protocol):
    """Cgroups with an idle side that a guardian can take back to the pool."""

    def undoing(self) -> Undoing:
        """How all that is lent or capped is undone."""


@runtime_checkable
class Watchful(Protocol):
    """Cgroups that notice when somebody else changes them."""

    def changes(self) -> AsyncIterator[ContainerKey | None]:
        """Whose cpuset others changed (None: the shared pool's), as it happens, for ever.

        Raises:
            CgroupError: it cannot be watched.
        """
