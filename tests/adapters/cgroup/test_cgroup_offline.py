"""Owners on the running kernel whose CPUs are taken offline."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pinfold.core.values.cpuset import CPUSet
from tests.scenes.cgroup_kernel import Kernel, a_cpu_switch, a_kernel
from tests.scenes.cgroups_contract import check_offline

kernel = pytest.fixture(a_kernel)
hotplug = pytest.fixture(a_cpu_switch)


def test_the_kernel_meets_the_contract(kernel: Kernel, hotplug: Path) -> None:
    last = max(kernel.cpus)

    def switch(online: CPUSet) -> None:
        hotplug.write_text("1" if last in online else "0")

    asyncio.run(check_offline(_Busy(kernel), switch))


class _Busy:
    """The kernel, with processes that run all the time."""

    def __init__(self, kernel: Kernel) -> None:
        self.cgroups = kernel.cgroups
        self.cpus = kernel.cpus
        self.allowed = kernel.allowed
        self.alive = kernel.alive
        self._kernel = kernel

    def start(self) -> int:
        return self._kernel.start("sh", "-c", "while :; do :; done")
