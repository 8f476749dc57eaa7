"""The kernel of this machine, with a cgroup tree of the test's own, for tests of cgroups.

The functions at the end are fixtures; a test module makes them so: ``kernel = fixture(a_kernel)``.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pinfold.adapters.cgroup import CgroupError, open_cgroups
from pinfold.adapters.cgroup.hierarchy import find_hierarchies
from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.adapters.cgroup.v2 import CgroupsV2
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Cgroups
from tests.scenes.cgroups_contract import process
from tests.scenes.two_nodes import memory_nodes

_PF_EXITING = 0x4
"""Among the flags of a process; include/linux/sched.h."""


class Kernel:
    """The kernel of this machine, with a tree of its own."""

    def __init__(self, stack: ExitStack, name: str) -> None:
        self._stack = stack
        self.name = name
        self.cgroups: CgroupsV1 | CgroupsV2 = open_cgroups(name=name)
        self.cpus = CPUSet(os.sched_getaffinity(0))

    @property
    def tree(self) -> Path:
        """The folder of the cpusets."""
        return Path(str(self.cgroups.describe().path))

    @property
    def trees(self) -> set[Path]:
        """The folders in all hierarchies."""
        mounts = find_hierarchies().v1.values() if isinstance(self.cgroups, CgroupsV1) else ()
        return {self.tree, *(mount.point / self.name for mount in mounts)}

    def another(self) -> CgroupsV1 | CgroupsV2:
        """A tree of another agent's."""
        other = open_cgroups(name=f"{self.name}-other")
        self._stack.callback(lambda: asyncio.run(_clean(other)))
        return other

    def start(self, *command: str) -> int:
        return self._stack.enter_context(process(*command))

    def allowed(self, pid: int) -> CPUSet:
        return CPUSet(os.sched_getaffinity(pid))

    def memory_nodes(self, pid: int) -> CPUSet:
        return memory_nodes(pid)

    def allowed_if_alive(self, pid: int) -> CPUSet | None:
        try:
            allowed = self.allowed(pid)
        except ProcessLookupError:
            return None
        return allowed if self.alive(pid) else None

    def alive(self, pid: int) -> bool:
        """Whether it executes anything: one that the kernel ends is left where it was, for long."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return False
        state, flags = fields[0], int(fields[6])
        return state not in "ZX" and not flags & _PF_EXITING

    def family(self, *pids: int) -> list[int]:
        """The living processes of these sessions; a zombie has a mask, but runs nowhere."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                if entry.isdigit() and os.getsid(int(entry)) in pids and self.alive(int(entry)):
                    found.append(int(entry))
            except OSError:
                continue
        return found

    def files(self, name: str) -> list[Path]:
        """The files of this name in all cgroups of the tree."""
        return [path for tree in self.trees for path in tree.rglob(name)]


def only_cpusets(kernel: Kernel) -> Kernel:
    """As on a machine where cpuset is the only hierarchy, or mounted with all the others."""
    if isinstance(kernel.cgroups, CgroupsV2):
        pytest.skip("needs cgroup v1")
    kernel.cgroups = CgroupsV1({"cpuset": find_hierarchies().v1["cpuset"].point}, kernel.name)
    return kernel


def only_v2(kernel: Kernel) -> Kernel:
    """Where the machine has cgroup v2."""
    if isinstance(kernel.cgroups, CgroupsV1):
        pytest.skip("needs cgroup v2")
    return kernel


def a_cpu_switch(kernel: Kernel) -> Iterator[Path]:
    """The switch of the last CPU; only where the machine is the test's own."""
    switch = Path(f"/sys/devices/system/cpu/cpu{max(kernel.cpus)}/online")
    if not os.environ.get("PINFOLD_TEST_HOTPLUG"):
        pytest.skip("takes a CPU offline: set PINFOLD_TEST_HOTPLUG=1 on a machine of your own")
    if not switch.exists():
        pytest.skip(f"there is no {switch}")
    try:
        yield switch
    finally:
        switch.write_text("1")


def a_kernel() -> Iterator[Kernel]:
    """The kernel and a tree in it, removed at the end with all that is in it."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    try:
        open_cgroups()
    except CgroupError as error:
        pytest.skip(f"no cgroup tree that can be written: {error}")
    with ExitStack() as stack:
        made = Kernel(stack, f"pinfold-test-{secrets.token_hex(4)}")
        try:
            yield made
        finally:
            asyncio.run(_clean(made.cgroups))


async def _clean(cgroups: Cgroups) -> None:
    try:
        keys = (await cgroups.observe()).containers
    except CgroupError:
        keys = {}
    for key in keys:
        await cgroups.kill(key)
        await cgroups.remove(key)
    await cgroups.close(remove=True)
