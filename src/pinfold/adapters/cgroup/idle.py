"""The idle side of a tree: who is on it borrows CPUs, and the kernel ranks it below its siblings.

One cpuset holds all of it: the shared pool, and what is lent.  ``cpu.idle`` is 1 in its cgroup of
the cpu controller, a sibling of the owners' there, so a task of an owner pushes it aside at once.
It is never set above or below that: the kernel refuses to set a weight in the very cgroup that is
idle, and only there.  Source: the kernel's ``kernel/sched/core.c`` and ``fair.c``
(``cpu_idle_write_s64``, ``sched_group_set_idle``; Linux 5.15, both versions of cgroups).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pinfold.adapters.cgroup.claim import TreeClaim
from pinfold.adapters.cgroup.files import read, read_cpus, write
from pinfold.adapters.cgroup.folders import members, remove_tree
from pinfold.adapters.cgroup.limits import Quotas
from pinfold.adapters.cgroup.tasks import confirm
from pinfold.adapters.cgroup.watch import CPUS, RANK
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.status import WrittenLimits
from pinfold.linux.affinity import outside
from pinfold.linux.kernel_files import descendants, read_ids, subfolders
from pinfold.ports.cgroups import ObservedIdle
from pinfold.ports.errors import CgroupError
from pinfold.ports.guardian import Undoing


class HasIdleSide:
    """The part of :class:`pinfold.ports.cgroups.Cgroups` that is all the idle side's."""

    _idle: IdleSide
    claim: TreeClaim

    @property
    def no_idle_side(self) -> str:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return self._idle.refusal

    @property
    def is_ranked(self) -> bool:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        return self._idle.is_ranked

    async def lend(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        await self._idle.lend(cpus)

    async def cap_idle(self, quota: float | None) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        self.claim.check()
        self._idle.cap(quota)


class IdleSide:
    """The idle side of one tree; it is there, or is not, as the kernel says.

    Args:
        folder: its cpuset.
        ranked: its cgroup of the cpu controller; None where the tree has no such controller.
        shared: the cpuset of the shared pool.
        make: makes what is missing of both; raises CgroupError.
        write: gives a cpuset other CPUs, and what is in force then; raises CgroupError.
        effective: the CPUs that are in force in a cpuset.
        forget: its cpuset is about to be removed.
        threads: the file of a cgroup that lists its threads.
        quotas: how its cgroup is capped.
    """

    def __init__(  # noqa: PLR0913 - what the two versions of cgroups do differently
        self,
        folder: Path,
        ranked: Path | None,
        shared: Path,
        *,
        make: Callable[[], None],
        write: Callable[[Path, CPUSet], CPUSet],
        effective: Callable[[Path], CPUSet],
        forget: Callable[[Path], None],
        threads: str,
        quotas: Quotas,
    ) -> None:
        self.folder = folder
        self._ranked = ranked
        self._shared = shared
        self._make = make
        self._write = write
        self._effective = effective
        self._forget = forget
        self._threads = threads
        self._quotas = quotas
        self._lent = CPUSet()
        self._quota: float | None = None
        # The pool and what is lent stay as they are while it is looked who keeps to them.
        self._changing = asyncio.Lock()

    @property
    def refusal(self) -> str:
        """See :attr:`pinfold.ports.cgroups.Cgroups.no_idle_side`."""
        if self._ranked is None or not (self._ranked.parent / self._quotas.file).exists():
            return (
                "no cgroup hierarchy with the cpu controller is there for the tree, and without it "
                "nobody can be ranked below the owner of a CPU"
            )
        if not (self._ranked.parent / RANK).exists():
            return "the kernel has no cpu.idle (Linux 5.15 and later have it)"
        return ""

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return self.folder.is_dir()

    @property
    def _folders(self) -> Sequence[Path]:
        """Its cgroups, each once."""
        return list(dict.fromkeys(one for one in (self.folder, self._ranked) if one is not None))

    @property
    def is_ranked(self) -> bool:
        """See :attr:`pinfold.ports.cgroups.Cgroups.is_ranked`."""
        return self.keeps(RANK)

    def keeps(self, file: str) -> bool:
        """Whether a file of its rank or its cap has what was written there, or is gone."""
        if (ranked := self._ranked) is None:
            return True
        try:
            if file == RANK:
                return read(ranked / RANK) == "1"
            return file not in self._quotas.files or self._quotas.read(ranked) == self._quota
        except CgroupError:
            return True

    def written(self) -> Iterator[WrittenLimits]:
        """Its cap, as the kernel shows it, while there is one."""
        if self._ranked is not None and self._quota is not None and self.exists:
            yield WrittenLimits(
                pod_uid="",
                container="",
                folder=str(self._ranked),
                files=dict(self._quotas.texts(self._quota)),
            )

    def make(self) -> None:
        """Make it, or make it right: its rank and its CPUs; raises CgroupError."""
        if problem := self.refusal:
            raise CgroupError(problem)
        self._rank()
        self._put(read_cpus(self._shared / CPUS))

    async def open(self) -> None:
        """Take over what another agent left: it gets back to the pool, uncapped; raises.

        Raises:
            CgroupError: some task may still run elsewhere, or the kernel refuses.
        """
        self._lent, self._quota = CPUSet(), None
        await self.drop()
        if self.exists:
            await self.follow(read_cpus(self._shared / CPUS))

    async def follow(self, pool: CPUSet) -> None:
        """Bring all of it to this pool and what is lent.

        Raises:
            CgroupError: a task of it may still run elsewhere.
        """
        async with self._changing:
            if self.exists:
                self._rank()
                self._put(pool)
                await self._confirm(pool)

    async def lend(self, cpus: CPUSet) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        async with self._changing:
            # What is returned is not lent any more, whatever becomes of it now.
            self._lent &= cpus
            if not cpus and not self.exists:
                return
            pool, refused = read_cpus(self._shared / CPUS), None
            try:
                self.make()
                self._grow(pool, cpus)
            except CgroupError as error:
                refused = error
                if self.exists:
                    self._put(pool)
            if self.exists:
                await self._confirm(pool)
            if refused is not None:
                raise refused
        await self.drop()

    def cap(self, quota: float | None) -> None:
        """See :class:`pinfold.ports.cgroups.Cgroups`."""
        if quota is not None and (problem := self.refusal):
            raise CgroupError(problem)
        self._quota = None if quota is None else self._quotas.rounded(quota)
        if self.exists:
            self._rank()

    async def drop(self) -> None:
        """Remove it where nobody is there, and nothing is lent; its cap is remembered."""
        async with self._changing:
            busy = any(subfolders(one) or members(one) for one in self._folders)
            if self._lent or busy or not self.exists:
                return
            for one in self._folders:
                self._forget(one)
                await remove_tree(one)

    def undoing(self, homes: Sequence[Path]) -> Undoing:
        """How it gets back to the pool, uncapped; ``homes`` are the guardian's own cgroups."""
        ranked, quotas = self._ranked, self._quotas
        return Undoing(
            pool=str(self._shared),
            idle=str(self.folder),
            threads=self._threads,
            uncapped={} if ranked is None else {str(ranked / quotas.file): quotas.uncapped},
            homes=tuple(map(str, homes)),
        )

    def observed(self) -> ObservedIdle | None:
        """What the kernel says of it; None where there is none; raises CgroupError."""
        if not self.exists or self._ranked is None:
            return None
        effective = self._effective(self.folder)
        for mask in outside(self._all_threads(), effective).values():
            effective |= mask
        ranked = self._ranked.is_dir()
        return ObservedIdle(
            read_cpus(self.folder / CPUS),
            effective,
            is_idle=ranked and read(self._ranked / RANK) == "1",
            quota=self._quotas.read(self._ranked) if ranked else None,
        )

    def _rank(self) -> None:
        if self._ranked is None:
            return
        self._make()
        if read(self._ranked / RANK) != "1":
            write(self._ranked / RANK, "1")
        self._quotas.put(self._ranked, self._quota)

    def _grow(self, pool: CPUSet, cpus: CPUSet) -> None:
        effective = self._write(self.folder, pool | cpus)
        if missing := cpus - effective:
            raise CgroupError(
                f"{self.folder}: CPUs {missing} cannot be lent: they are not in force there",
                "a partition has them for its owner alone, a cgroup above has not got them, or "
                "they are offline",
            )
        self._lent = cpus

    def _put(self, pool: CPUSet) -> None:
        cpus = pool | self._lent
        effective = self._write(self.folder, cpus) if cpus else CPUSet()
        if not effective or effective - cpus:
            raise CgroupError(
                f"{self.folder}: {CPUS} is {cpus}, but in force is {effective}",
                "a cgroup above it or a partition has these CPUs, or they are offline",
            )

    async def _confirm(self, pool: CPUSet) -> None:
        await confirm(str(self.folder), self._all_threads, pool | self._lent)

    def _all_threads(self) -> list[int]:
        return [
            tid for one in descendants(self.folder) for tid in read_ids(f"{one}/{self._threads}")
        ]
