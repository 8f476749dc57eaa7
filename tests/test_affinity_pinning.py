"""Containers stay on their CPUs without cgroups: real processes, threads, children, orphans."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.affinity import Affinity
from pinfold.core.cpuset import CPUSet
from pinfold.node.ports import CgroupError, Cgroups, ContainerKey, Limits, Partition, Placement
from tests.affinity_world import KEY, OTHER, OWNER, World, a_world, effective, hold, opened, story
from tests.cgroups_contract import check_contract, wait_until

FAMILY = "sleep 1000 & (sleep 1000 & sleep 1000) & (sleep 1000 &) ; wait"
"""A child, a subshell with one, and an orphan: with the shell itself five processes."""


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as made:
        yield made


class ContractNode:
    """Fulfils :class:`tests.cgroups_contract.Node`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.cgroups: Cgroups = Affinity()
        self.cpus = world.cpus

    def start(self) -> int:
        return self._world.start()

    def allowed(self, pid: int) -> CPUSet:
        return CPUSet(os.sched_getaffinity(pid))

    def alive(self, pid: int) -> bool:
        return pid in self._world.alive()


def test_it_meets_the_contract(world: World) -> None:
    asyncio.run(check_contract(ContractNode(world)))


@story
async def test_a_whole_family_moves(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.start("sh", "-c", FAMILY)
    world.until(5)
    await hold(affinity, main, cpus=world.high)
    assert world.places() == {world.high}
    assert len(world.masks()) == 5
    await affinity.place(KEY, Placement(cpus=world.low))
    assert world.places() == {world.low}
    await affinity.place(KEY, Placement())
    assert world.places() == {world.cpus}
    seen = (await affinity.observe()).containers[KEY]
    assert (seen.exclusive, seen.configured, seen.populated) == (False, None, True)


@story
async def test_every_thread_moves(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.python(
        "for _ in range(20): threading.Thread(target=time.sleep, args=(1000,)).start()\nready()"
    )
    await hold(affinity, main)
    for cpus in (world.low, world.cpus, world.high):
        await affinity.set_shared(cpus)
        assert set(world.masks().values()) == {cpus}
        assert len(world.masks()) == 21


@story
async def test_the_pool_moves_and_owners_stay(world: World) -> None:
    affinity = await opened(world.cpus)
    sharers = [world.start() for _ in range(2)]
    await hold(affinity, sharers[0])
    await hold(affinity, sharers[1], OTHER)
    owner = world.start()
    await affinity.set_shared(world.cpus - world.high)
    await hold(affinity, owner, OWNER, world.high)
    assert [world.masks()[pid] for pid in sharers] == [world.cpus - world.high] * 2
    assert world.masks()[owner] == world.high
    await affinity.set_shared(world.cpus)
    assert [world.masks()[pid] for pid in sharers] == [world.cpus] * 2
    assert world.masks()[owner] == world.high
    observed = await affinity.observe()
    assert observed.shared == observed.shared_configured == world.cpus
    assert observed.containers[OWNER].exclusive
    assert observed.containers[OWNER].configured == world.high


@story
async def test_an_inherited_affinity_does_not_narrow_a_container(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.start("taskset", "-c", str(world.low), "sh", "-c", "sleep 1000 & sleep 1000")
    world.until(3)
    wait_until(lambda: world.places() == {world.low})
    await hold(affinity, main)
    assert world.places() == {world.cpus}


# ------------------------------------------------------------------- threads that pin themselves

PINS_ITSELF = """
def work(cpu):
    os.sched_setaffinity(0, {{cpu}})
    pinned.wait()
    time.sleep(1000)
pinned = threading.Barrier({0} + 1)
for cpu in {1}:
    threading.Thread(target=work, args=(cpu,)).start()
pinned.wait()
ready()
time.sleep(1000)
"""


def pinning(*cpus: int) -> str:
    """A script whose threads pin themselves to a CPU each; its main thread does not."""
    return PINS_ITSELF.format(len(cpus), cpus)


@story
async def test_what_an_application_pins_inside_its_cpus_is_left_alone(world: World) -> None:
    """A data plane has a thread for each CPU; a reconciliation must not mix them."""
    affinity = await opened(world.cpus)
    low, high = min(world.cpus), max(world.cpus)
    main = world.start()
    await hold(affinity, main, OTHER)
    pinned = world.python(pinning(low, high))
    before = world.masks()
    assert world.places() == {world.cpus, world.low, world.high}
    await hold(affinity, pinned)
    assert await effective(affinity) == world.cpus
    for _ in range(2):  # a repair
        await hold(affinity, pinned)
    await affinity.set_shared(world.cpus)
    assert world.masks() == before
    # The other's threads move only as far as they have to.
    await affinity.set_shared(world.cpus - world.high)
    assert world.places() == {world.cpus - world.high, world.low}
    await affinity.set_shared(world.cpus)
    assert world.masks()[main] == world.masks()[pinned] == world.cpus


@story
async def test_a_container_all_of_whose_threads_narrowed_themselves_has_not_drifted(
    world: World,
) -> None:
    affinity = await opened(world.cpus)
    main = world.start()
    await hold(affinity, main)
    os.sched_setaffinity(main, world.low)
    assert await effective(affinity) == world.cpus
    await hold(affinity, main)
    assert world.masks()[main] == world.low


@story
async def test_a_thread_that_widens_itself_is_drift_and_is_repaired(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.start("sh", "-c", FAMILY)
    world.until(5)
    await hold(affinity, main, OWNER, world.low)
    stray = max(world.masks())
    os.sched_setaffinity(stray, world.high)
    seen = (await affinity.observe()).containers[OWNER]
    assert seen.effective == world.low | world.high
    assert seen.configured == world.low
    await hold(affinity, main, OWNER, world.low)
    assert await effective(affinity, OWNER) == world.low
    assert world.places() == {world.low}


@story
async def test_one_that_never_keeps_still_is_an_error(world: World) -> None:
    affinity = await opened(world.low, patience=0.3)
    main = world.python(f"ready()\nwhile True:\n  os.sched_setaffinity(0, {set(world.cpus)})")

    async def hold_often() -> None:
        # Where there is too much to do, it may get no CPU while it is looked at.
        for _ in range(100):
            await hold(affinity, main)

    with pytest.raises(CgroupError, match=f"container {KEY}: .*again on other CPUs"):
        await hold_often()
    os.kill(main, signal.SIGSTOP)
    await affinity.set_shared(world.low)
    assert world.places() == {world.low}


# ----------------------------------------------------------------------------- moving targets


STORM = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
ready()
while True:
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.02)
        time.sleep(0.01)
        os._exit(0)
    time.sleep(0.003)
"""
"""Children of children all the time, half of them orphans."""


@story
async def test_children_born_during_a_move_are_caught(world: World) -> None:
    affinity = await opened(world.cpus, patience=10)
    for number in range(2):
        await hold(affinity, world.python(STORM), ContainerKey("storm", str(number)))
    for _ in range(4):
        await affinity.set_shared(world.low)
        for _ in range(3):
            assert world.places() <= {world.low}
        await affinity.set_shared(world.cpus)
    await affinity.set_shared(world.low)
    assert (await affinity.observe()).shared == world.low


@story
async def test_threads_born_during_a_move_are_caught(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.python(
        "ready()\n"
        "def work(): time.sleep(0.005)\n"
        "while True:\n"
        "  for _ in range(5): threading.Thread(target=work).start()\n"
        "  time.sleep(0.001)\n"
    )
    await hold(affinity, main)
    for _ in range(5):
        await affinity.set_shared(world.low)
        for _ in range(3):
            assert world.places() <= {world.low}
        await affinity.set_shared(world.cpus)


@story
async def test_a_container_that_enters_while_the_pool_moves_is_in_the_new_pool(
    world: World,
) -> None:
    affinity = await opened(world.cpus)
    pids = [world.start() for _ in range(8)]
    for turn in range(4):
        pool = (world.low, world.high)[turn % 2]
        keys = [ContainerKey(f"{turn}", str(pid)) for pid in pids]
        await asyncio.gather(
            *(hold(affinity, pid, key) for pid, key in zip(pids[::2], keys, strict=False)),
            affinity.set_shared(pool),
            *(hold(affinity, pid, key) for pid, key in zip(pids[1::2], keys[4:], strict=False)),
        )
        assert world.places() == {pool}


@story
async def test_a_program_whose_first_thread_has_ended(world: World) -> None:
    """Its ``stat`` shows a zombie, and its other threads run."""
    main = world.python(
        "import ctypes\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "ready()\nctypes.CDLL(None).pthread_exit(None)"
    )
    wait_until(lambda: _state(main) == "Z")
    affinity = await opened(world.low)
    await hold(affinity, main)
    seen = (await affinity.observe()).containers[KEY]
    assert (seen.effective, seen.populated) == (world.low, True)
    assert CPUSet(os.sched_getaffinity(_other_thread(main))) == world.low
    await affinity.kill(KEY)
    assert not (await affinity.observe()).containers[KEY].populated


def _other_thread(pid: int) -> int:
    return next(
        int(path.name) for path in Path(f"/proc/{pid}/task").iterdir() if path.name != f"{pid}"
    )


# ------------------------------------------------------------------------------------- restart


@story
async def test_after_a_restart_everything_is_found_again(world: World) -> None:
    main = world.start("sh", "-c", FAMILY)
    world.until(5)
    first = await opened(world.cpus)
    await hold(first, main, cpus=world.high)
    await first.close(remove=False)
    assert world.places() == {world.high}
    again = await opened(world.cpus)
    assert (await again.observe()).containers == {}
    # Nothing ran out of its CPUs meanwhile, save this one.
    os.sched_setaffinity(max(world.masks()), world.low)
    await hold(again, main, cpus=world.high)
    assert world.places() == {world.high}
    assert (await again.observe()).containers[KEY].populated
    await again.kill(KEY)
    assert world.alive() == []


@story
async def test_after_a_restart_an_applications_own_pinning_is_kept(world: World) -> None:
    main = world.python(pinning(min(world.cpus), max(world.cpus)))
    await hold(await opened(world.cpus), main)
    before = world.masks()
    await hold(await opened(world.cpus), main)
    assert world.masks() == before


# -------------------------------------------------------------------------------------- refusals


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
    for pid in (os.getpid(), os.getppid(), os.getsid(0)):
        with pytest.raises(CgroupError, match=f"process {pid} is this one or one that it comes"):
            await affinity.enter(KEY, pid)
    assert not (await affinity.observe()).containers[KEY].populated
    await affinity.enter(KEY, main)


@story
async def test_a_process_goes_from_one_container_to_another(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.start("sh", "-c", FAMILY)
    world.until(5)
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
from pinfold.core.cpuset import CPUSet
from pinfold.node.ports import CgroupError, ContainerKey, Placement
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
