"""Owners that use the shared pool besides their own CPUs: their cpusets follow it.

A mixed container has a cpuset of its own, on the side of the owners, and what is written there is
its own CPUs and the pool.  So a change of the pool is a write for each of them, too, and what an
owner's tasks may use cannot be said without the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from pinfold.adapters.cgroup.files import CgroupGoneError
from pinfold.adapters.cgroup.tasks import check_in_force, confirm
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.kernel_files import descendants, read_ids
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey


class MixedOwners:
    """The mixed containers of a tree, and the shared pool that they follow.

    Args:
        folder_of: the cpuset of an owner; it need not be there.
        write: gives a cpuset other CPUs, and what is in force then.
        effective: the CPUs that are in force in a cpuset.
        threads: the file of a cgroup that lists its threads.
    """

    def __init__(
        self,
        folder_of: Callable[[ContainerKey], Path],
        write: Callable[[Path, CPUSet], CPUSet],
        effective: Callable[[Path], CPUSet],
        threads: str,
    ) -> None:
        self._folder_of = folder_of
        self._write = write
        self._effective = effective
        self._threads = threads
        # The pool stays as it is while it is looked who keeps to it.
        self._following = asyncio.Lock()
        self._own: dict[ContainerKey, CPUSet] = {}
        self.pool = CPUSet()
        """As it was set last; nothing until then."""

    def expect(self, key: ContainerKey, placement: Placement) -> None:
        """One is about to be placed; what is known of it holds until it is."""
        if placement.cpus is not None and placement.mixed:
            self._own.setdefault(key, placement.cpus)

    def put(self, key: ContainerKey, placement: Placement) -> None:
        """One was placed."""
        if placement.cpus is not None and placement.mixed:
            self._own[key] = placement.cpus
        else:
            self.forget(key)

    def forget(self, key: ContainerKey) -> None:
        """One is gone, or mixed no more."""
        self._own.pop(key, None)

    async def follow(self, pool: CPUSet) -> None:
        """Bring all of them to this pool and their own CPUs; one that is gone is no error.

        Raises:
            CgroupError: a task of one may still run elsewhere; the others were brought there.
        """
        async with self._following:
            self.pool = pool
            failed: CgroupError | None = None
            for key, own in list(self._own.items()):
                folder = self._folder_of(key)
                if not folder.exists():
                    continue
                try:
                    await self._bring(folder, own | pool)
                except CgroupGoneError:
                    continue
                except CgroupError as error:
                    failed = failed or error
            if failed is not None:
                raise failed

    async def confirm(self, folder: Path, placement: Placement) -> None:
        """See that no task of an owner that was placed, mixed or not, may run elsewhere.

        Whatever it had before: who was here last may have been ended between the write and this.

        Raises:
            CgroupError: one still may.
        """
        async with self._following:
            await self._confirm(folder, placement.within(self.pool))

    async def _bring(self, folder: Path, cpus: CPUSet) -> None:
        before = self._effective(folder)
        effective = self._write(folder, cpus)
        check_in_force(folder, cpus, effective)
        if before < effective:
            return  # nobody has to leave a CPU
        await self._confirm(folder, cpus)

    async def _confirm(self, folder: Path, cpus: CPUSet) -> None:
        await confirm(str(folder), lambda: self._all_threads(folder), cpus)

    def _all_threads(self, folder: Path) -> list[int]:
        return [tid for one in descendants(folder) for tid in read_ids(f"{one}/{self._threads}")]
