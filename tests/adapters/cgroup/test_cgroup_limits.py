"""Limits and partitions as this machine's kernel takes them."""

from __future__ import annotations

import asyncio

import pytest

from pinfold.adapters.cgroup import CgroupError
from pinfold.adapters.cgroup.v2 import CgroupsV2
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Limits, Partition, Placement
from pinfold.ports.errors import ContainerKey
from tests.scenes.cgroup_kernel import Kernel, a_kernel, only_cpusets, only_v2
from tests.scenes.contract_node import OWNER, SHARED

kernel = pytest.fixture(a_kernel)
cpuset_only = pytest.fixture(only_cpusets)
unified = pytest.fixture(only_v2)


def test_limits_without_a_controller_are_said_not_to_be_in_force(cpuset_only: Kernel) -> None:
    async def scenario() -> None:
        await cpuset_only.cgroups.open(cpuset_only.cpus)
        limits = Limits(cpu_shares=512, memory=64 << 20, hugepages={2 << 20: 4 << 20})
        # Those of the pod are the same, and are said once.
        note = await cpuset_only.cgroups.place(SHARED, Placement(limits=limits, pod_limits=limits))
        assert note.split("; ") == [
            "cpu.shares 512 is not in force: no cpu controller here",
            "memory.limit_in_bytes 67108864 is not in force: no memory controller here",
            "hugetlb.2MB.limit_in_bytes 4194304 is not in force: no hugetlb controller here",
        ]

    asyncio.run(scenario())


MIB = 1 << 20
SMALL = Placement(
    limits=Limits(cpu_shares=512, cpu_quota=20_000, cpu_period=100_000, memory=64 * MIB),
    pod_limits=Limits(cpu_shares=1024, cpu_quota=30_000, memory=96 * MIB),
)
LARGE = Placement(
    limits=Limits(cpu_shares=512, cpu_quota=60_000, cpu_period=50_000, memory=128 * MIB),
    pod_limits=Limits(cpu_shares=1024, cpu_quota=120_000, memory=256 * MIB),
)
NO_LIMITS = Placement(limits=Limits(cpu_quota=-1))
LIMITS_V2 = {
    "cpu.weight": ("20", "39", "20", "39", "100", "100"),
    "cpu.max": (
        "20000 100000",
        "30000 100000",
        "60000 50000",
        "120000 100000",
        "max 100000",
        "max 100000",
    ),
    "memory.max": ("67108864", "100663296", "134217728", "268435456", "max", "max"),
}
LIMITS_V1 = {
    "cpu.shares": ("512", "1024", "512", "1024", "1024", "1024"),
    "cpu.cfs_quota_us": ("20000", "30000", "60000", "120000", "-1", "-1"),
    "cpu.cfs_period_us": ("100000", "100000", "50000", "100000", "100000", "100000"),
    "memory.limit_in_bytes": (
        "67108864",
        "100663296",
        "134217728",
        "268435456",
        str(2**63 // 4096 * 4096 - 4096),
        str(2**63 // 4096 * 4096 - 4096),
    ),
}


def test_limits_are_in_force_whatever_was_before(kernel: Kernel) -> None:
    """A part may not have more than its whole on cgroup v1: larger and smaller ones in turn."""

    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        table = LIMITS_V2 if isinstance(kernel.cgroups, CgroupsV2) else LIMITS_V1
        for column, placement in ((0, SMALL), (2, LARGE), (0, SMALL), (4, NO_LIMITS)):
            note = await kernel.cgroups.place(SHARED, placement)
            for file, values in table.items():
                inner = [path for path in kernel.files(file) if path.parent.name == "main"]
                if not inner:
                    assert column == 4 or file.partition(".")[0] in note
                    continue
                (path,) = inner
                found = (path.read_text().strip(), (path.parents[1] / file).read_text().strip())
                assert found == values[column : column + 2], file
        with pytest.raises(CgroupError, match="cpu"):
            await kernel.cgroups.place(SHARED, Placement(limits=Limits(cpu_quota=1)))

    asyncio.run(scenario())


def test_a_partition_is_granted_or_explained(kernel: Kernel) -> None:
    async def scenario() -> tuple[str, str | None]:
        own = CPUSet([max(kernel.cpus)])
        await kernel.cgroups.open(kernel.cpus - own)
        pid = kernel.start()
        note = await kernel.cgroups.place(OWNER, Placement(cpus=own, partition=Partition.ISOLATED))
        await kernel.cgroups.enter(OWNER, pid)
        assert kernel.allowed(pid) == own
        state = (await kernel.cgroups.observe()).containers[OWNER].partition
        await kernel.cgroups.kill(OWNER)
        await kernel.cgroups.remove(OWNER)
        await kernel.cgroups.set_shared(kernel.cpus)
        return note, state

    note, state = asyncio.run(scenario())
    assert state == "isolated" or "partition" in note
    assert (state == "isolated") == (note == "")


def test_partitions_come_and_change_and_go(unified: Kernel) -> None:
    """Two partitions and a plain set; each time all the others stay as they are."""
    cpus = sorted(unified.cpus)
    if len(cpus) < 4 or not (unified.tree.parent / "cpuset.cpus.isolated").exists():
        pytest.skip("needs four CPUs and Linux 6.7")
    cgroups, pool = unified.cgroups, CPUSet(cpus[:-3])
    first, second, third = (CPUSet([cpu]) for cpu in cpus[-3:])
    other = ContainerKey(OWNER.pod_uid, "other")

    async def check(wanted: dict[ContainerKey, tuple[CPUSet, str]], pid: int) -> None:
        seen = await cgroups.observe()
        assert seen.shared == unified.allowed(pid)
        found = {
            key: (container.effective, container.partition)
            for key, container in seen.containers.items()
            if container.exclusive
        }
        assert found == wanted

    async def scenario() -> None:
        await cgroups.open(pool)
        pid = unified.start()
        await cgroups.place(SHARED, Placement())
        await cgroups.enter(SHARED, pid)
        isolated, root = Partition.ISOLATED, Partition.ROOT
        assert await cgroups.place(OWNER, Placement(cpus=first, partition=isolated)) == ""
        assert await cgroups.place(other, Placement(cpus=second, partition=root)) == ""
        await check({OWNER: (first, "isolated"), other: (second, "root")}, pid)
        owner = unified.start()
        await cgroups.enter(OWNER, owner)
        assert unified.allowed(owner) == first
        # Other CPUs, another wish, and none.
        wider = first | third
        assert await cgroups.place(OWNER, Placement(cpus=wider, partition=isolated)) == ""
        await check({OWNER: (wider, "isolated"), other: (second, "root")}, pid)
        assert unified.allowed(owner) == wider
        assert await cgroups.place(OWNER, Placement(cpus=third, partition=root)) == ""
        assert await cgroups.place(other, Placement(cpus=first)) == ""
        await check({OWNER: (third, "root"), other: (first, "member")}, pid)
        assert unified.allowed(owner) == third
        # What another partition has is not granted, and taken from nobody.
        with pytest.raises(CgroupError):
            await cgroups.place(other, Placement(cpus=third, partition=isolated))
        await check({OWNER: (third, "root"), other: (first, "member")}, pid)
        await cgroups.kill(OWNER)
        await cgroups.remove(OWNER)
        await cgroups.remove(other)
        await cgroups.set_shared(unified.cpus)
        await check({}, pid)
        for folder in (unified.tree, unified.tree / "exclusive"):
            assert (folder / "cpuset.cpus.exclusive").read_text().strip() == ""

    asyncio.run(scenario())
