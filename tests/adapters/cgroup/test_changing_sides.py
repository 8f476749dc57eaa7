"""A container that comes from the shared pool and goes back to it, on the running kernel."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Limits, Placement
from tests.scenes.cgroup_kernel import Kernel, a_kernel
from tests.scenes.contract_node import OWNER

kernel = pytest.fixture(a_kernel)

CAPPED = Limits(cpu_quota=100_000, cpu_period=100_000)
FREE = Limits(cpu_quota=-1)


def test_nobody_is_without_a_quota_in_the_shared_pool(kernel: Kernel) -> None:
    """With cgroup v2 each side has a folder with limits of its own."""
    if not isinstance(kernel.cgroups, CgroupsV1):
        pytest.skip("needs cgroup v1, where the quota stays in one place")
    cgroups, own = kernel.cgroups, CPUSet([max(kernel.cpus)])
    uncapped: list[CPUSet] = []
    stop = threading.Event()

    def watch(file: Path, pid: int) -> None:
        while not stop.is_set():
            # Twice: it may go from one side to the other between two lines.
            before, allowed = file.read_text(), kernel.allowed(pid)
            if before.strip() == file.read_text().strip() == "-1":
                uncapped.append(allowed)

    async def scenario() -> None:
        await cgroups.open(kernel.cpus)
        await cgroups.place(OWNER, Placement(limits=CAPPED, pod_limits=CAPPED))
        pid = kernel.start("sleep", "1000")
        await cgroups.enter(OWNER, pid)
        folder = cgroups.folder_of(OWNER, "cpu")
        assert folder is not None
        watching = threading.Thread(target=watch, args=(folder / "cpu.cfs_quota_us", pid))
        watching.start()
        try:
            for _ in range(40):
                await cgroups.set_shared(kernel.cpus - own)
                await cgroups.place(OWNER, Placement(own, limits=FREE, pod_limits=FREE))
                assert kernel.allowed(pid) == own
                await cgroups.place(OWNER, Placement(limits=CAPPED, pod_limits=CAPPED))
                await cgroups.set_shared(kernel.cpus)
                assert kernel.allowed(pid) == kernel.cpus
        finally:
            stop.set()
            watching.join()

    asyncio.run(scenario())
    assert uncapped
    assert set(map(str, uncapped)) == {str(own)}
