"""Cgroups that somebody else makes, on this machine's kernel; needs root and two CPUs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.cgroup.files import read_cpus, write
from pinfold.adapters.cgroup.hierarchy import Hierarchies, find_hierarchies
from pinfold.adapters.cgroup.runtime.found_cpusets import FoundCpusets, cgroup_of
from pinfold.adapters.cgroup.runtime.runtime_cgroups import RuntimeCgroups
from pinfold.core.values.cpuset import CPUSet
from pinfold.linux.cgroup_mounts import CgroupMount
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey, ProcessGoneError
from tests.scenes.cgroups_contract import dying_process, headless_process
from tests.scenes.runtime_place import Place

OWNER, FIRST, SECOND = (ContainerKey("uid-1", name) for name in ("owner", "first", "second"))


@pytest.fixture
def place() -> Iterator[Place]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two CPUs")
    try:
        place = Place()
    except (CgroupError, OSError) as error:
        pytest.skip(f"no cgroup tree that can be written: {error}")
    try:
        yield place
    finally:
        place.clean()


def test_owner_and_shared_are_placed_wherever_they_are(place: Place) -> None:
    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.cpus)
        _, first = place.container("burstable", "pod1", "abc")
        path, owner = place.container("pod2", "def")
        await cgroups.place(FIRST, Placement())
        await cgroups.enter(FIRST, first)
        await cgroups.place(OWNER, Placement(cpus=place.high))
        await cgroups.set_shared(place.low)
        assert await cgroups.find(OWNER, path)
        assert (place.allowed(first), place.allowed(owner)) == (place.low, place.high)
        observed = await cgroups.observe()
        assert observed.shared == place.low
        assert observed.containers[OWNER].exclusive
        assert observed.containers[FIRST].effective == place.low
        await cgroups.remove(OWNER)
        await cgroups.set_shared(place.cpus)
        assert place.allowed(first) == place.cpus
        assert place.allowed(owner) == place.high
        await cgroups.close(remove=True)
        assert place.root.exists()

    asyncio.run(scenario())


def test_a_mixed_container_follows_the_pool(place: Place) -> None:
    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.cpus)
        path, pid = place.container("pod2", "def")
        await cgroups.place(OWNER, Placement(cpus=place.high, mixed=True))
        assert await cgroups.find(OWNER, path)
        for pool in (place.low, place.high, place.cpus, place.high):
            await cgroups.set_shared(pool)
            assert place.allowed(pid) == place.high | pool
            observed = (await cgroups.observe()).containers[OWNER]
            assert (observed.exclusive, observed.effective) == (True, place.high | pool)
        # With none of the pool besides, or with nothing of its own.
        for placement, cpus in (
            (Placement(cpus=place.low), place.low),
            (Placement(), place.high),
        ):
            await cgroups.place(OWNER, placement)
            assert place.allowed(pid) == cpus
        await cgroups.close(remove=True)

    asyncio.run(scenario())


def test_a_foreign_write_shows_and_is_made_right(place: Place) -> None:
    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.low)
        path, pid = place.container("pod1", "abc")
        await cgroups.place(FIRST, Placement())
        assert await cgroups.find(FIRST, path)
        write(place.root / "pod1/abc/cpuset.cpus", str(place.cpus))
        assert (await cgroups.observe()).containers[FIRST].effective == place.cpus
        await cgroups.place(FIRST, Placement())
        assert place.allowed(pid) == place.low

    asyncio.run(scenario())


def test_what_a_container_makes_below_follows_its_cpus(place: Place) -> None:
    """A runtime in a container, or an init system; its cgroup is the one with its id."""

    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.cpus)
        place.container("pod1", "cri-abc.scope")
        for name in ("cpuset.cpus", "cpuset.mems"):
            folder = place.root / "pod1/cri-abc.scope"
            write(folder / name, (folder.parent / name).read_text().strip() or str(place.cpus))
        if place.version == 2:
            pytest.skip("cgroup v2 allows no processes beside child cgroups")
        _, inner = place.container("pod1", "cri-abc.scope", "inner")
        cgroups.identify(FIRST, "abc")
        await cgroups.place(FIRST, Placement())
        await cgroups.enter(FIRST, inner)
        for cpus in (place.low, place.high, place.cpus):
            await cgroups.set_shared(cpus)
            assert place.allowed(inner) == cpus
            assert read_cpus(place.root / "pod1/cri-abc.scope/cpuset.cpus") == cpus

    asyncio.run(scenario())


def test_cpus_that_the_cgroups_above_lost_come_back(place: Place) -> None:
    """As after a CPU was offline, on cgroup v1."""
    if place.version == 2:
        pytest.skip("cgroup v2 takes and gives them back by itself")

    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.low)
        path, pid = place.container("pod1", "abc")
        await cgroups.place(FIRST, Placement())
        await cgroups.find(FIRST, path)
        for folder in (place.root / "pod1", place.root):
            write(folder / "cpuset.cpus", str(place.low))
        await cgroups.set_shared(place.cpus)
        assert place.allowed(pid) == place.cpus

    asyncio.run(scenario())


def test_who_was_moved_out_of_a_cpuset_without_cpus_is_brought_back(place: Place) -> None:
    """As cgroup v1 does when all CPUs of a cpuset go offline."""
    if place.version == 2:
        pytest.skip("cgroup v2 leaves everybody where he is")
    freezer = find_hierarchies().v1["freezer"].point
    path, pid = place.container("pod1", "abc")
    folder = place.root / "pod1/abc"
    twin = freezer / folder.relative_to(find_hierarchies().v1["cpuset"].point)
    twin.mkdir(parents=True)
    try:
        write(twin / "cgroup.procs", str(pid))

        async def scenario() -> None:
            cgroups = RuntimeCgroups()
            await cgroups.open(place.low)
            await cgroups.place(FIRST, Placement(cpus=place.high))
            await cgroups.find(FIRST, path)
            assert place.allowed(pid) == place.high
            for shared, expected in ((True, place.low), (False, place.high)):
                write(folder.parent / "cgroup.procs", str(pid))
                write(folder / "cpuset.cpus", "")
                await cgroups.place(FIRST, Placement(cpus=None if shared else place.high))
                assert place.allowed(pid) == expected
                assert str(pid) in (folder / "cgroup.procs").read_text().split()

        asyncio.run(scenario())
    finally:
        write(freezer / "cgroup.procs", str(pid))
        for one in (twin, twin.parent, twin.parent.parent):
            one.rmdir()


def test_refusals(place: Place) -> None:
    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.cpus)
        with pytest.raises(CgroupError, match="would have no CPUs"):
            await cgroups.set_shared(CPUSet())
        with pytest.raises(CgroupError, match="was not placed"):
            await cgroups.enter(FIRST, os.getpid())
        await cgroups.place(FIRST, Placement())
        with pytest.raises(ProcessGoneError, match="there is no process"):
            await cgroups.enter(FIRST, 2**22 + 1)
        assert not await cgroups.find(FIRST, f"{place.path}/nothing")
        assert not await cgroups.find(FIRST, "/")
        path, _ = place.container("pod1", "abc")
        await cgroups.find(FIRST, path)
        missing = CPUSet([max(place.cpus) + 4000])
        with pytest.raises(CgroupError, match=r"cpuset\.cpus"):
            await cgroups.place(FIRST, Placement(cpus=missing))

    asyncio.run(scenario())


def test_a_container_that_is_gone_is_no_error(place: Place) -> None:
    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.cpus)
        path, pid = place.container("pod1", "abc")
        await cgroups.place(FIRST, Placement())
        await cgroups.find(FIRST, path)
        await cgroups.kill(FIRST)
        place.reap(pid)
        (place.root / "pod1/abc").rmdir()
        await cgroups.set_shared(place.low)
        assert (await cgroups.observe()).containers == {}

    asyncio.run(scenario())


def test_a_process_that_has_ended_is_gone_however_it_looks(place: Place) -> None:
    """On cgroup v1 a zombie is shown in the root, which is no container's."""
    _, pid = place.container("pod1", "abc")
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.cpus)
        await cgroups.place(FIRST, Placement())
        with pytest.raises(ProcessGoneError, match=f"there is no process {pid}"):
            await cgroups.enter(FIRST, pid)
        assert not cgroups.lives(pid)

    asyncio.run(scenario())


def test_a_process_that_the_kernel_has_begun_to_end_is_gone(place: Place) -> None:
    """It is no zombie yet, and shown in the root all the same."""

    async def scenario(pid: int) -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.cpus)
        await cgroups.place(FIRST, Placement())
        with pytest.raises(ProcessGoneError, match=f"there is no process {pid}"):
            await cgroups.enter(FIRST, pid)
        assert not cgroups.lives(pid)

    place.container("pod1", "abc")
    with dying_process(place.root / "pod1/abc/cgroup.procs") as pid:
        asyncio.run(scenario(pid))


def test_a_process_without_its_first_thread_lives(place: Place) -> None:
    """It looks like a zombie, and its other threads run on in the container."""

    async def scenario(pid: int) -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.low)
        await cgroups.place(FIRST, Placement())
        await cgroups.enter(FIRST, pid)
        assert cgroups.lives(pid)
        (tid,) = set(map(int, os.listdir(f"/proc/{pid}/task"))) - {pid}
        assert place.allowed(tid) == place.low

    place.container("pod1", "abc")
    with headless_process(place.root / "pod1/abc/cgroup.procs") as pid:
        asyncio.run(scenario(pid))


def test_a_number_that_is_used_again_is_another_process(tmp_path: Path) -> None:
    """Nobody else's cgroup becomes the container's."""

    def begin(at: int, cgroup: str) -> None:
        (tmp_path / "7/task/7").mkdir(parents=True, exist_ok=True)
        text = f"7 (sh) S {' '.join(['1'] * 18)} {at} {' '.join(['0'] * 30)}\n"
        for file in (tmp_path / "7/stat", tmp_path / "7/task/7/stat"):
            file.write_text(text)
        (tmp_path / "7/task/7/cgroup").write_text(f"0::/{cgroup}\n")

    async def scenario() -> None:
        mount = CgroupMount(tmp_path / "cgroup", "/", writable=True)
        found = Hierarchies(mount, {}, {}, frozenset({"cpuset"}))
        cgroups = RuntimeCgroups(found=found, proc=tmp_path)
        for name in ("abc", "stranger"):
            (tmp_path / "cgroup" / name).mkdir(parents=True)
        begin(100, "abc")
        await cgroups.place(FIRST, Placement())
        await cgroups.enter(FIRST, 7)
        begin(200, "stranger")
        with pytest.raises(ProcessGoneError, match="there is no process 7"):
            await cgroups.enter(FIRST, 7)

    asyncio.run(scenario())


def test_a_cgroup_that_is_being_removed_is_no_failure(tmp_path: Path) -> None:
    """The kernel takes away its files before the folder; the others change as they should."""
    (tmp_path / "abc").mkdir()
    cpusets = FoundCpusets(2, tmp_path)
    assert cpusets.set(tmp_path / "abc", CPUSet([1]), None) == (CPUSet(), CPUSet([1]))


def test_the_pool_holds_still_while_a_container_is_started(place: Place) -> None:
    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.cpus)
        _, pid = place.container("pod1", "abc")
        async with cgroups.starting():
            change = asyncio.create_task(cgroups.set_shared(place.low))
            await asyncio.sleep(0.02)
            assert cgroups.pool == place.cpus
            await cgroups.place(FIRST, Placement())
            await cgroups.enter(FIRST, pid)
        await change
        assert place.allowed(pid) == place.low

    asyncio.run(scenario())


def test_a_hundred_containers_move_at_once(place: Place) -> None:
    async def scenario() -> None:
        cgroups = RuntimeCgroups()
        await cgroups.open(place.cpus)
        pids = []
        for number in range(100):
            key = ContainerKey("uid-1", f"c{number}")
            path, pid = place.container("pod1", f"c{number}")
            await cgroups.place(key, Placement())
            await cgroups.find(key, path)
            pids.append(pid)
        for cpus in (place.low, place.high, place.cpus):
            await cgroups.set_shared(cpus)
            assert {place.allowed(pid) for pid in pids} == {cpus}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "cgroup"),
    [
        ("/kubepods/pod1/abc", "/kubepods/pod1/abc"),
        (
            "kubepods-burstable-pod1.slice:cri-containerd:abc",
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice"
                "/cri-containerd-abc.scope"
            ),
        ),
        ("system.slice:docker:abc", "/system.slice/docker-abc.scope"),
        ("-.slice:x:abc", "/x-abc.scope"),
        (":x:abc", "/x-abc.scope"),
        ("a/b:c:d", "/a/b:c:d"),
    ],
)
def test_the_cgroup_of_a_path(path: str, cgroup: str) -> None:
    assert cgroup_of(path) == cgroup


def test_a_hierarchy_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    mount = CgroupMount(tmp_path, "/", writable=False)
    found = Hierarchies(mount, {}, {}, frozenset({"cpuset"}))
    with pytest.raises(CgroupError, match="cannot be written"):
        asyncio.run(RuntimeCgroups(found=found).open(CPUSet([0])))


def test_when_a_process_began(tmp_path: Path) -> None:
    """As procfs has it: a number is used again, a name may have anything in it."""
    mount = CgroupMount(tmp_path, "/", writable=False)
    found = Hierarchies(mount, {}, {}, frozenset({"cpuset"}))
    mine = RuntimeCgroups(found=found)
    assert mine.began(os.getpid()) == mine.began(os.getpid())
    other = RuntimeCgroups(found=found, proc=tmp_path)
    assert other.began(5) is None
    for state, began in (("S", 4711), ("Z", None)):
        (tmp_path / "5").mkdir(exist_ok=True)
        fields = " ".join(["1"] * 18)
        (tmp_path / "5" / "stat").write_text(
            f"5 (a) b (c) {state} {fields} 4711 {' '.join(['0'] * 30)}\n"
        )
        assert other.began(5) == began
