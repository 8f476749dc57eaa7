"""Cgroups of this machine's kernel, whichever version it has; needs root and two CPUs."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pinfold.adapters.cgroup import CgroupError, open_cgroups
from pinfold.adapters.cgroup.v2 import CgroupsV2
from pinfold.core.cpuset import CPUSet
from pinfold.node.ports import Cgroups, ContainerKey, Limits, Partition, Placement
from tests.cgroups_contract import FORKER, OWNER, SHARED, check_contract, process, wait_until


class Kernel:
    """The kernel of this machine, with a tree of its own."""

    def __init__(self, stack: ExitStack, name: str) -> None:
        self._stack = stack
        self.name = name
        self.cgroups = open_cgroups(name=name)
        self.cpus = CPUSet(os.sched_getaffinity(0))

    def start(self, *command: str) -> int:
        return self._stack.enter_context(process(*command))

    def allowed(self, pid: int) -> CPUSet:
        return CPUSet(os.sched_getaffinity(pid))

    def allowed_if_alive(self, pid: int) -> CPUSet | None:
        try:
            allowed = self.allowed(pid)
        except ProcessLookupError:
            return None
        return allowed if self.alive(pid) else None

    def alive(self, pid: int) -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZX"


@pytest.fixture
def kernel() -> Iterator[Kernel]:
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


def test_the_kernel_meets_the_contract(kernel: Kernel) -> None:
    asyncio.run(check_contract(kernel))


def test_a_process_that_was_pinned_can_use_all_cpus_of_its_cpuset(kernel: Kernel) -> None:
    """Also when its set grows later: the kernel keeps a mask that was once asked for."""

    async def scenario() -> None:
        cgroups = kernel.cgroups
        first = CPUSet([min(kernel.cpus)])
        await cgroups.open(kernel.cpus)
        pid = kernel.start("taskset", "-c", str(first), "sleep", "1000")
        wait_until(lambda: kernel.allowed(pid) == first)
        await cgroups.place(SHARED, Placement())
        await cgroups.enter(SHARED, pid)
        assert kernel.allowed(pid) == kernel.cpus
        await cgroups.set_shared(first)
        assert kernel.allowed(pid) == first
        await cgroups.set_shared(kernel.cpus)
        assert kernel.allowed(pid) == kernel.cpus

    asyncio.run(scenario())


def test_children_born_during_a_move_are_caught(kernel: Kernel) -> None:
    async def scenario() -> None:
        cgroups = kernel.cgroups
        own = CPUSet([max(kernel.cpus)])
        await cgroups.open(kernel.cpus)
        forkers = [kernel.start(*FORKER) for _ in range(3)]
        await cgroups.place(SHARED, Placement())
        for pid in forkers:
            await cgroups.enter(SHARED, pid)
        for _ in range(20):
            await cgroups.set_shared(kernel.cpus - own)
            for pid in _family(kernel, forkers):
                allowed = kernel.allowed_if_alive(pid)
                assert allowed is None or allowed.isdisjoint(own)
            await cgroups.set_shared(kernel.cpus)
        await cgroups.kill(SHARED)
        assert not any(kernel.alive(pid) for pid in forkers)

    asyncio.run(scenario())


def _family(kernel: Kernel, pids: list[int]) -> list[int]:
    """The living processes of these sessions; a zombie has a mask, but runs nowhere."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.getsid(int(entry)) in pids and kernel.alive(int(entry)):
                found.append(int(entry))
        except OSError:
            continue
    return found


def test_threads_move_with_their_process(kernel: Kernel) -> None:
    script = (
        "import threading, time\n"
        "for _ in range(20): threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "print(1, flush=True)\ntime.sleep(1000)"
    )

    async def scenario(pid: int) -> None:
        own = CPUSet([max(kernel.cpus)])
        await kernel.cgroups.open(kernel.cpus)
        await kernel.cgroups.place(OWNER, Placement(cpus=own))
        await kernel.cgroups.enter(OWNER, pid)
        tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        assert len(tids) == 21
        assert {kernel.allowed(tid) for tid in tids} == {own}
        await kernel.cgroups.kill(OWNER)

    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        asyncio.run(scenario(child.pid))


def test_limits_are_in_force_or_said_not_to_be(kernel: Kernel) -> None:
    async def scenario() -> str:
        await kernel.cgroups.open(kernel.cpus)
        limits = Limits(cpu_shares=512, cpu_quota=50_000, cpu_period=100_000, memory=64 << 20)
        note = await kernel.cgroups.place(SHARED, Placement(limits=limits))
        free = Limits(cpu_shares=2048, cpu_quota=-1)
        await kernel.cgroups.place(OWNER, Placement(cpus=kernel.cpus, limits=free))
        return note

    note = asyncio.run(scenario())
    found = {
        path.name: path.read_text().strip()
        for path in Path("/sys/fs/cgroup").rglob(f"{kernel.name}/**/pod-uid-shared/main/*")
        if path.name in {"cpu.max", "cpu.weight", "memory.max", "cpu.cfs_quota_us", "cpu.shares"}
        or path.name == "memory.limit_in_bytes"
    }
    if isinstance(kernel.cgroups, CgroupsV2):
        wanted = {"cpu.max": "50000 100000", "cpu.weight": "20", "memory.max": "67108864"}
    else:
        wanted = {
            "cpu.cfs_quota_us": "50000",
            "cpu.shares": "512",
            "memory.limit_in_bytes": "67108864",
        }
    for file, value in wanted.items():
        assert found.get(file) == value or file.partition(".")[0] in note, (found, note)


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


def test_foreign_writes_and_foreign_groups_are_seen_and_survived(kernel: Kernel) -> None:
    async def scenario() -> None:
        cgroups, own = kernel.cgroups, CPUSet([max(kernel.cpus)])
        await cgroups.open(kernel.cpus - own)
        pid = kernel.start()
        await cgroups.place(OWNER, Placement(cpus=own))
        await cgroups.enter(OWNER, pid)
        (folder,) = Path("/sys/fs/cgroup").rglob(f"{kernel.name}/exclusive/pod-uid-owner/main")
        (folder / "foreign").mkdir()
        (folder / "cpuset.cpus").write_text(str(kernel.cpus))
        seen = (await cgroups.observe()).containers
        assert seen[OWNER].effective == kernel.cpus
        assert seen.keys() == {OWNER}
        await cgroups.place(OWNER, Placement(cpus=own))
        assert kernel.allowed(pid) == own
        await cgroups.kill(OWNER)
        await cgroups.remove(OWNER)
        assert not folder.exists()

    asyncio.run(scenario())


def test_a_stopped_process_is_killed(kernel: Kernel) -> None:
    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        pid = kernel.start("sh", "-c", "kill -STOP $$; sleep 1000")
        await kernel.cgroups.place(SHARED, Placement())
        await kernel.cgroups.enter(SHARED, pid)
        await kernel.cgroups.kill(SHARED)
        assert not kernel.alive(pid)

    asyncio.run(scenario())


def test_names_of_users_are_only_names(kernel: Kernel) -> None:
    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        keys = [
            ContainerKey("../../evil", ".."),
            ContainerKey("default/pod.v1", "cgroup.procs"),
            ContainerKey("ü=2e", "a b"),
        ]
        for key in keys:
            await kernel.cgroups.place(key, Placement())
        assert (await kernel.cgroups.observe()).containers.keys() == set(keys)
        for key in keys:
            await kernel.cgroups.remove(key)
        with pytest.raises(CgroupError, match="too long"):
            await kernel.cgroups.place(ContainerKey("x" * 300, "main"), Placement())

    asyncio.run(scenario())


def test_nothing_is_left_behind(kernel: Kernel) -> None:
    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        await kernel.cgroups.place(OWNER, Placement(cpus=kernel.cpus))
        await kernel.cgroups.remove(OWNER)
        await kernel.cgroups.close(remove=True)

    asyncio.run(scenario())
    assert list(Path("/sys/fs/cgroup").rglob(kernel.name)) == []
