"""A pool and an idle side on the kernel of this machine, for tests of the guardian."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from pinfold.adapters.cgroup.hierarchy import find_hierarchies
from pinfold.adapters.guardian import GuardianProcess
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.errors import CgroupError
from pinfold.ports.guardian import Undoing
from tests.scenes.waiting import wait_until


class LendingKernel:
    """Cgroups as an agent makes them; fulfils :class:`tests.scenes.guardian_contract.Lender`.

    The pool is CPU 0; ``nested`` is whether the idle side has a container's cpuset in it.
    """

    def __init__(self, state: Path, *, nested: bool = False, lease: float = 1.2) -> None:
        found, name = find_hierarchies(), f"pinfold-test-{secrets.token_hex(4)}"
        self.state, self.lease = state, lease
        self.is_v2 = found.version == 2
        places = (
            [found.unified.point / name] * 3
            if found.unified is not None and self.is_v2
            else [found.v1[one].point / name for one in ("cpuset", "cpu", "freezer")]
        )
        self.cpuset, self.cpu, self.freezer = places
        self.threads = "cgroup.threads" if self.is_v2 else "tasks"
        self.no_cap = "max" if self.is_v2 else "-1"
        self.pool, self.idle = self.cpuset / "shared", self.cpuset / "idle"
        self.home = self.freezer / "guardian"
        self.homes = tuple(dict.fromkeys((self.home, self.cpu / "guardian")))
        self.inner = self.idle / "pod-1" if nested else self.idle
        self.quota = self.cpu / "idle" / ("cpu.max" if self.is_v2 else "cpu.cfs_quota_us")
        self.folders = [self.cpuset, self.pool, self.idle]
        self.folders += [self.inner] if nested else []
        self.folders += [self.freezer, self.cpu, self.quota.parent]
        self.folders = list(dict.fromkeys(self.folders))
        for folder in self.folders:
            folder.mkdir()
            if self.is_v2 and folder != self.inner:
                (folder / "cgroup.subtree_control").write_text("+cpuset +cpu")
            if folder.is_relative_to(self.cpuset):
                (folder / "cpuset.mems").write_text("0")
                (folder / "cpuset.cpus").write_text("0-1")
        self.lend(CPUSet())
        self.set_pool(CPUSet([0]))
        self.borrower = subprocess.Popen(["sleep", "1000"])
        (self.inner / "cgroup.procs").write_text(str(self.borrower.pid))
        self.guardian = self.another()

    def undoing(self) -> Undoing:
        """What a guardian is given."""
        return Undoing(
            str(self.pool),
            str(self.idle),
            self.threads,
            {str(self.quota): self.no_cap},
            tuple(map(str, self.homes)),
        )

    def another(self) -> GuardianProcess:
        """The guardian of another agent."""
        look = self.lease / 4
        return GuardianProcess(self.state, self.undoing(), lease=self.lease, look=look)

    def set_pool(self, cpus: CPUSet) -> None:
        """Write the pool's cpuset."""
        (self.pool / "cpuset.cpus").write_text(str(cpus))

    def lend(self, cpus: CPUSet) -> None:
        """Write the idle side's cpuset."""
        wanted = CPUSet([0]) | cpus
        (self.idle / "cpuset.cpus").write_text(str(self.idle_cpus | wanted))
        for folder in (self.inner, self.idle):
            (folder / "cpuset.cpus").write_text(str(wanted))

    def cap(self) -> None:
        """Put a cap on the idle side."""
        self.quota.write_text("50000")

    @property
    def idle_cpus(self) -> CPUSet:
        """The idle side's cpuset."""
        return CPUSet.parse((self.idle / "cpuset.cpus").read_text())

    def in_force(self) -> tuple[CPUSet, bool]:
        """What is lent, and whether there is a cap."""
        pool = CPUSet.parse((self.pool / "cpuset.cpus").read_text())
        before = self.idle_cpus
        runs = CPUSet(os.sched_getaffinity(self.borrower.pid))
        # Somebody may have changed the cpuset between two of these readings.
        assert runs <= before | self.idle_cpus
        return self.idle_cpus - pool, self.quota.read_text().split()[0] != self.no_cap

    async def sleep(self) -> None:
        """Let a lease go by, and the guardian look."""
        await asyncio.sleep(1.5 * self.lease)

    async def work(self) -> None:
        """Let some time go by."""
        await asyncio.sleep(self.lease / 6)

    def close(self) -> None:
        """Leave nothing behind."""
        asyncio.run(self.another().end())
        self.borrower.kill()
        self.borrower.wait()
        for folder in (*self.homes, *reversed(self.folders)):
            # Who has just died may hold on to it for a moment.
            wait_until(partial(_is_removed, folder))


def _is_removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def a_lending_kernel(tmp_path: Path) -> Iterator[LendingKernel]:
    """A fixture: such a place; nothing is left of it."""
    yield from _a_place(tmp_path, nested=False)


def a_nested_kernel(tmp_path: Path) -> Iterator[LendingKernel]:
    """A fixture: one whose borrower has a cpuset of its own within the idle side's."""
    yield from _a_place(tmp_path, nested=True)


def _a_place(tmp_path: Path, *, nested: bool) -> Iterator[LendingKernel]:
    if os.geteuid() != 0 or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs root and two CPUs")
    try:
        find_hierarchies()
    except CgroupError as error:
        pytest.skip(str(error))
    place = LendingKernel(tmp_path, nested=nested)
    try:
        yield place
    finally:
        place.close()
