"""Memory goes to other NUMA nodes when it is asked for, and only then; needs root.

Where it is, is read by an observer of its own (``numa_maps``).  All but the first tests need a
second NUMA node: ``make guest`` has one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from pinfold.adapters.cgroup.v1 import CgroupsV1
from pinfold.core.values.cpuset import CPUSet
from pinfold.documents.move_plan import MemoryMoved
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey
from tests.scenes.cgroup_kernel import Kernel, a_kernel
from tests.scenes.cgroups_contract import check_memory
from tests.scenes.contract_node import OWNER, SHARED
from tests.scenes.two_nodes import (
    SMALL,
    anonymous_by_node,
    cgroup_of,
    cpus_of,
    equal_pools,
    free_memory_of,
    huge_by_node,
    memory_nodes,
    node_ids,
    pages,
)
from tests.scenes.waiting import until

kernel = pytest.fixture(a_kernel)

SIZE: Final = 64 << 20
PAGE: Final = 4096
SLACK: Final = 4 << 20
"""What an interpreter allocates and frees beside."""

HOLDER: Final = """
import ctypes, mmap, os, sys, time
go, done, size, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
while not os.path.exists(go):
    time.sleep(0.01)
flags = 0x40022 if "huge" in kind else 0x22
memory = mmap.mmap(-1, size, flags=flags)
memory[::4096] = b"x" * (size // 4096)
libc = ctypes.CDLL(None, use_errno=True)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
status = 0
if "locked" in kind:
    status = libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size))
if "pinned" in kind:
    # io_uring_setup, io_uring_register of a buffer: as a device's memory is.
    ring = libc.syscall(425, 1, ctypes.create_string_buffer(120))
    parts = (ctypes.c_size_t * 2)(address, size)
    status = libc.syscall(427, ring, 0, parts, 1)
with open(done + ".new", "w") as file:
    file.write(str(status))
os.rename(done + ".new", done)
time.sleep(100000)
"""


class Nodes:
    """Two NUMA nodes of a kernel, and an owner on the first."""

    def __init__(self, kernel: Kernel, folder: Path) -> None:
        self.kernel = kernel
        self.cgroups = kernel.cgroups
        self._folder = folder
        self.first, self.second = (CPUSet([node]) for node in node_ids()[:2])
        self.both = self.first | self.second
        self.old, self.new = (cpus_of(min(one)) for one in (self.first, self.second))

    async def owner(
        self,
        kind: str = "plain",
        size: int = SIZE,
        *,
        key: ContainerKey = OWNER,
        home: CPUSet | None = None,
    ) -> int:
        """One that has memory on its home (the first node); its pid."""
        home = home or self.first
        go, done = (self._folder / f"{key.pod_uid}.{name}" for name in ("go", "done"))
        pid = self.kernel.start(
            *(sys.executable, "-I", "-S", "-c", HOLDER, str(go), str(done), str(size), kind)
        )
        cpus = CPUSet([max(cpus_of(min(home)))])
        await self.cgroups.place(key, Placement(cpus=cpus, mems=home))
        await self.cgroups.enter(key, pid)
        go.touch()
        await until(done.exists, 60)
        assert done.read_text() == "0", f"{kind} is not to be had"
        assert memory_nodes(pid) == home
        return pid

    async def widened(self, pid: int) -> None:
        """The owner goes to a CPU of the second node, and may have memory of both."""
        before = on(pid, self.first)
        cpu = CPUSet([min(self.new)])
        await self.cgroups.place(OWNER, Placement(cpus=cpu, mems=self.both))
        assert (self.kernel.allowed(pid), memory_nodes(pid)) == (cpu, self.both)
        assert on(pid, self.first) >= before - SLACK


def on(pid: int, node: CPUSet) -> int:
    """Bytes of a process on a node, in small pages."""
    return anonymous_by_node(pid).get(min(node), 0) * PAGE


@pytest.fixture
def nodes(kernel: Kernel, tmp_path: Path) -> Iterator[Nodes]:
    if len(node_ids()) < 2:
        pytest.skip("needs a second NUMA node (make guest has one)")
    made = Nodes(kernel, tmp_path)
    asyncio.run(made.cgroups.open(CPUSet([min(kernel.cpus)])))
    yield made
    for file in kernel.files("cpuset.memory_migrate"):
        assert file.read_text() == "0\n", f"{file} is on still"


def test_the_kernel_meets_the_contract(kernel: Kernel) -> None:
    asyncio.run(check_memory(kernel, CPUSet(node_ids())))


def test_a_cpuset_below_keeps_nobody_from_it(kernel: Kernel) -> None:
    """On cgroup v1 a cpuset has all that those below it have."""

    async def scenario() -> None:
        every, last = CPUSet(node_ids()), CPUSet([max(node_ids())])
        await kernel.cgroups.open(kernel.cpus - CPUSet([max(kernel.cpus)]))
        pid = kernel.start()
        await kernel.cgroups.place(OWNER, Placement(cpus=CPUSet([max(kernel.cpus)]), mems=every))
        await kernel.cgroups.enter(OWNER, pid)
        inner = cgroup_of(pid) / "inner"
        inner.mkdir()
        if isinstance(kernel.cgroups, CgroupsV1):
            (inner / "cpuset.mems").write_text(str(every))
        told = await kernel.cgroups.migrate(OWNER, last)
        assert (told.stayed, memory_nodes(pid)) == (0, last)
        if isinstance(kernel.cgroups, CgroupsV1):
            assert (inner / "cpuset.mems").read_text().strip() == str(last)
            assert (inner / "cpuset.memory_migrate").read_text() == "0\n"
        inner.rmdir()

    asyncio.run(scenario())


def check_report(told: MemoryMoved, nodes: Nodes, pid: int) -> None:
    """A report and the observer agree, but for what an interpreter allocates meanwhile."""
    left = on(pid, nodes.first) + huge_by_node(pid).get(min(nodes.first), 0) * SMALL
    small = huge_by_node(pid).get(min(nodes.first), 0) * PAGE  # the first count has these, too
    assert abs(told.stayed - (left - small)) < SLACK
    assert told.seconds > 0
    by_node = {one.node: (one.before, one.after) for one in told.nodes}
    assert by_node[min(nodes.first)][1] == told.stayed


def test_memory_moves_when_it_is_asked_for(nodes: Nodes) -> None:
    async def scenario() -> None:
        pid = await nodes.owner()
        assert on(pid, nodes.first) >= SIZE
        await nodes.widened(pid)
        assert on(pid, nodes.first) >= SIZE, "widening moves nothing"
        assert SIZE <= await nodes.cgroups.weigh(OWNER, nodes.second) < SIZE + 2 * SLACK
        told = await nodes.cgroups.migrate(OWNER, nodes.second)
        assert memory_nodes(pid) == nodes.second
        assert on(pid, nodes.first) < SLACK
        assert on(pid, nodes.second) >= SIZE
        assert told.moved >= SIZE
        assert told.stayed < SLACK
        check_report(told, nodes, pid)
        # And back, as a plan that is undone.
        cpu = CPUSet([max(nodes.old)])
        await nodes.cgroups.place(OWNER, Placement(cpus=cpu, mems=nodes.both))
        assert on(pid, nodes.second) >= SIZE
        back = await nodes.cgroups.migrate(OWNER, nodes.first)
        assert back.moved >= SIZE
        assert on(pid, nodes.first) >= SIZE

    asyncio.run(scenario())


def test_what_was_narrowed_without_its_memory_is_moved_all_the_same(nodes: Nodes) -> None:
    """Somebody else has narrowed it, or an agent that was killed; also what the kernel moved."""

    async def scenario() -> None:
        pid = await nodes.owner()
        await nodes.widened(pid)
        (cgroup_of(pid) / "cpuset.mems").write_text(str(nodes.second))
        moves = not isinstance(nodes.cgroups, CgroupsV1)
        await until(lambda: (on(pid, nodes.second) >= SIZE) == moves)
        told = await nodes.cgroups.migrate(OWNER, nodes.second)
        assert on(pid, nodes.second) >= SIZE
        assert (told.moved >= SIZE) != moves
        assert told.stayed < SLACK

    asyncio.run(scenario())


def test_locked_memory_goes_along(nodes: Nodes) -> None:
    async def scenario() -> None:
        pid = await nodes.owner("locked")
        await nodes.widened(pid)
        told = await nodes.cgroups.migrate(OWNER, nodes.second)
        assert on(pid, nodes.second) >= SIZE
        assert told.locked < SLACK
        check_report(told, nodes, pid)

    asyncio.run(scenario())


def test_pinned_memory_stays_and_is_told(nodes: Nodes) -> None:
    async def scenario() -> None:
        pid = await nodes.owner("pinned", 16 << 20)
        await nodes.widened(pid)
        told = await nodes.cgroups.migrate(OWNER, nodes.second)
        assert on(pid, nodes.first) >= 16 << 20
        assert told.stayed >= 16 << 20
        assert 16 << 20 <= told.pinned < (16 << 20) + SLACK
        assert memory_nodes(pid) == nodes.second, "what is new comes from there all the same"
        check_report(told, nodes, pid)

    asyncio.run(scenario())


@pytest.mark.parametrize("free", [True, False])
def test_huge_pages_go_along(
    nodes: Nodes, tmp_path_factory: pytest.TempPathFactory, *, free: bool
) -> None:
    """Where the node's pool has none that is free, the kernel moves the pool's pages, too."""

    async def scenario() -> None:
        pid = await nodes.owner("huge", 8 * SMALL)
        assert huge_by_node(pid) == {min(nodes.first): 8}
        await nodes.widened(pid)
        if not free:
            count = pages()[min(nodes.second)]
            await nodes.owner("huge", count * SMALL, key=SHARED, home=nodes.second)
        assert await nodes.cgroups.weigh(OWNER, nodes.second) < 8 * SMALL
        told = await nodes.cgroups.migrate(OWNER, nodes.second)
        assert huge_by_node(pid) == {min(nodes.second): 8}
        assert told.huge == 0
        assert told.moved >= 8 * SMALL
        check_report(told, nodes, pid)
        for key in (OWNER, SHARED):
            await nodes.cgroups.kill(key)

    with equal_pools(tmp_path_factory):
        asyncio.run(scenario())


def test_huge_pages_that_are_pinned_stay(
    nodes: Nodes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async def scenario() -> None:
        pid = await nodes.owner("huge pinned", 8 * SMALL)
        await nodes.widened(pid)
        told = await nodes.cgroups.migrate(OWNER, nodes.second)
        assert huge_by_node(pid) == {min(nodes.first): 8}
        assert told.huge == 8 * SMALL
        assert 8 * SMALL <= told.stayed < 8 * SMALL + SLACK
        assert told.pinned > 0
        check_report(told, nodes, pid)
        await nodes.cgroups.kill(OWNER)

    with equal_pools(tmp_path_factory):
        asyncio.run(scenario())


def test_where_memory_is_short_nothing_is_changed(nodes: Nodes) -> None:
    async def scenario() -> None:
        size = 256 << 20
        pid = await nodes.owner(size=size)
        await nodes.widened(pid)
        filled = free_memory_of(min(nodes.second)) - (160 << 20)
        other = await nodes.owner(size=filled, key=SHARED, home=nodes.second)
        for ask in (nodes.cgroups.weigh, nodes.cgroups.migrate):
            with pytest.raises(CgroupError, match=r"MiB of memory would go to NUMA node .* can be"):
                await ask(OWNER, nodes.second)
        assert on(pid, nodes.first) >= size
        assert memory_nodes(pid) == nodes.both
        assert nodes.kernel.alive(pid)
        assert nodes.kernel.alive(other)
        await nodes.cgroups.kill(SHARED)
        await until(lambda: free_memory_of(min(nodes.second)) > size * 3 // 2)
        told = await nodes.cgroups.migrate(OWNER, nodes.second)
        assert told.moved >= size
        assert on(pid, nodes.second) >= size

    asyncio.run(scenario())
