"""What cannot be had without cgroups, or of processes and CPUs of others, and how that is said."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.affinity import Affinity
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Limits, Partition, Placement
from pinfold.ports.errors import CgroupError
from tests.scenes.affinity_world import (
    KEY,
    OTHER,
    OWNER,
    World,
    a_world,
    effective,
    hold,
    opened,
    story,
)
from tests.scenes.waiting import wait_until


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as made:
        yield made


@story
async def test_cpus_that_cannot_be_had(world: World) -> None:
    beyond = CPUSet([max(world.cpus) + 4000])
    cpuset = Path("/proc/self/cpuset").read_text().strip()
    affinity = Affinity()
    with pytest.raises(CgroupError, match=f"CPUs {beyond} cannot be used"):
        await affinity.open(world.cpus | beyond)
    await affinity.open(world.cpus)
    main = world.start()
    await hold(affinity, main)
    for bad in (beyond, world.low | beyond):
        with pytest.raises(CgroupError, match="cannot be used") as raised:
            await affinity.set_shared(bad)
        assert f"may use {world.cpus}, in the cpuset {cpuset}" in raised.value.problem
        assert raised.value.remedy
        with pytest.raises(CgroupError, match=f"container {KEY}: CPUs {beyond} cannot be used"):
            await affinity.place(KEY, Placement(cpus=bad))
    for empty in (affinity.set_shared(CPUSet()), affinity.place(KEY, Placement(cpus=CPUSet()))):
        with pytest.raises(CgroupError, match="CPUs none cannot be used"):
            await empty
    observed = await affinity.observe()
    assert observed.shared == observed.shared_configured == world.cpus
    assert observed.containers[KEY].configured is None
    assert world.places() == {world.cpus}


@story
async def test_processes_that_cannot_enter(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.start()
    with pytest.raises(CgroupError, match="was not placed"):
        await affinity.enter(KEY, main)
    await affinity.place(KEY, Placement())
    dead = world.start("true")
    wait_until(lambda: _state(dead) == "Z")
    for pid in (dead, 2**22 + 1, 0, -1):
        with pytest.raises(CgroupError, match=f"there is no process {pid}"):
            await affinity.enter(KEY, pid)
    # In a pid namespace of its own the leader of the session may have no number (0).
    for pid in {os.getpid(), os.getppid(), os.getsid(0)} - {0}:
        with pytest.raises(CgroupError, match=f"process {pid} is this one or one that it comes"):
            await affinity.enter(KEY, pid)
    assert not (await affinity.observe()).containers[KEY].populated
    await affinity.enter(KEY, main)


@story
async def test_a_process_goes_from_one_container_to_another(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.start("sh", "-c", "sleep 1000 & sleep 1000 & wait")
    world.until(3)
    await hold(affinity, main)
    await affinity.observe()
    await hold(affinity, main, OWNER, world.high)
    observed = (await affinity.observe()).containers
    assert observed[OWNER].populated
    assert world.masks()[main] == world.high
    children = [pid for pid in world.alive() if _parent(pid) == main]
    assert {world.masks()[pid] for pid in children} == {world.high}


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_an_agent_that_keeps_itself_on_few_cpus_gives_out_all(world: World) -> None:
    script = (
        "import os\nfrom pinfold.adapters.affinity import Affinity\n"
        f"os.sched_setaffinity(0, {set(world.low)})\n"
        "print(Affinity().usable(), os.sched_getaffinity(0))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == f"{world.cpus} {set(world.low)}"


@pytest.fixture
def narrow_cpuset(world: World) -> Iterator[Path]:
    """A cpuset of one CPU, of whatever version."""
    v1, v2 = Path("/sys/fs/cgroup/cpuset"), Path("/sys/fs/cgroup")
    name = f"pinfold-test-{os.getpid()}-{time.monotonic_ns()}"
    root = v1 if (v1 / "cpuset.cpus").exists() else v2
    folder = root / name
    try:
        folder.mkdir()
        if root == v2 and "cpuset" not in (v2 / "cgroup.subtree_control").read_text():
            (v2 / "cgroup.subtree_control").write_text("+cpuset")
        (folder / "cpuset.cpus").write_text(str(world.low))
        if root == v1:
            (folder / "cpuset.mems").write_text((v1 / "cpuset.mems").read_text())
    except OSError as error:
        if folder.exists():
            folder.rmdir()
        pytest.skip(f"no cpuset can be made: {error}")
    yield folder
    world.end()
    wait_until(lambda: not (folder / "cgroup.procs").read_text())
    folder.rmdir()


@story
async def test_a_process_whose_cpuset_is_narrower(world: World, narrow_cpuset: Path) -> None:
    affinity = await opened(world.cpus)
    main = world.start()
    (narrow_cpuset / "cgroup.procs").write_text(str(main))
    with pytest.raises(CgroupError) as raised:
        await hold(affinity, main)
    assert f"process {main} cannot be moved to CPUs {world.cpus}" in raised.value.problem
    assert f"it may use {world.low}, in the cpuset /{narrow_cpuset.name}" in raised.value.problem
    with pytest.raises(CgroupError, match=f"CPUs {world.high}: Invalid argument, it may use"):
        await affinity.place(KEY, Placement(cpus=world.high))
    assert await effective(affinity) == world.low
    await affinity.place(KEY, Placement(cpus=world.low))
    await affinity.kill(KEY)


UNPRIVILEGED = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_a_process_of_another_user(world: World) -> None:
    """Everything else of the pool is moved, the error names the one that was not."""
    foreign, own = world.start(), world.start("setpriv", f"--reuid={UNPRIVILEGED}", "sleep", "1000")
    wait_until(lambda: Path(f"/proc/{own}").stat().st_uid == UNPRIVILEGED)
    script = f"""
import asyncio, os
from pinfold.adapters.affinity import Affinity
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey
async def main():
    affinity = Affinity()
    await affinity.open(affinity.usable())
    own, foreign = (ContainerKey(name, "main") for name in ("own", "foreign"))
    for key, pid in ((own, {own}), (foreign, {foreign})):
        await affinity.place(key, Placement())
        await affinity.enter(key, pid)
    os.setresuid({UNPRIVILEGED}, {UNPRIVILEGED}, {UNPRIVILEGED})
    pool = CPUSet([{min(world.low)}])
    for action in (affinity.set_shared(pool), affinity.kill(foreign, wait=0.2)):
        try:
            await action
        except CgroupError as error:
            print(error)
    print((await affinity.observe()).shared)
    print(os.sched_getaffinity({own}))
    await affinity.kill(own)
asyncio.run(main())
"""
    told = subprocess.check_output([sys.executable, "-c", script], text=True)
    remedy = "(it belongs to another user: run Pinfold as that user, or as root)"
    pinning = f"process {foreign} cannot be moved to CPUs {world.low}: not permitted"
    killing = f"process {foreign} cannot be sent SIGKILL: Operation not permitted"
    assert told.splitlines() == [
        f"the shared pool: {pinning} {remedy}",
        f"container foreign/main: {killing} {remedy}",
        str(world.cpus),
        str(set(world.low)),
    ]
    assert world.masks() == {foreign: world.cpus}


# ------------------------------------------------------------------------------ what is not granted


@story
async def test_a_wish_that_is_not_granted_is_told_once(world: World) -> None:
    affinity = await opened(world.cpus)
    assert await affinity.place(KEY, Placement()) == ""
    assert await affinity.place(KEY, Placement(limits=Limits(cpu_quota=-1, cpu_period=9))) == ""
    wish = Placement(
        cpus=world.high,
        mems=CPUSet([0]),
        limits=Limits(cpu_shares=512, cpu_quota=50_000, memory=2**20, hugepages={2**21: 2**22}),
        pod_limits=Limits(memory=2**21),
        partition=Partition.ISOLATED,
    )
    assert await affinity.place(KEY, wish) == (
        "not without cgroups: partition isolated, memory nodes 0, 512 CPU shares of the container, "
        "CPU quota of 50000 us of the container, memory limit of 1048576 bytes of the container, "
        "limit of 4194304 bytes on 2097152-byte hugepages of the container, "
        "memory limit of 2097152 bytes of the pod"
    )
    assert await affinity.place(KEY, wish) == ""
    assert "partition" in await affinity.place(OTHER, wish)
    await affinity.remove(KEY)
    assert "partition" in await affinity.place(KEY, wish)


@story
async def test_memory_cannot_be_moved(world: World) -> None:
    affinity = await opened(world.cpus)
    await affinity.place(KEY, Placement(cpus=world.high))
    for ask in (affinity.weigh, affinity.migrate):
        with pytest.raises(CgroupError, match="cannot be moved to NUMA node 1 without cgroups"):
            await ask(KEY, CPUSet([1]))


def test_what_is_weaker_is_said_in_plain_words() -> None:
    told = Affinity().limitations()
    assert len(told) > 5
    for word in ("other processes", "its own CPU affinity", "memory", "session", "user"):
        assert any(word in sentence for sentence in told), word


@story
async def test_closing(world: World) -> None:
    affinity = await opened(world.cpus)
    await hold(affinity, world.start(), cpus=world.low)
    await affinity.close(remove=False)
    assert world.places() == {world.low}
    await affinity.kill(KEY)
    await affinity.close(remove=True)
    assert (await affinity.observe()).containers == {}
