"""Containers stay on their CPUs without cgroups: real processes, threads, children, orphans."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinfold.adapters.affinity import Affinity
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Cgroups, Placement
from pinfold.ports.errors import CgroupError, ContainerKey
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
from tests.scenes.cgroups_contract import (
    check_contract,
)
from tests.scenes.waiting import wait_until

FAMILY = "sleep 1000 & (sleep 1000 & sleep 1000) & (sleep 1000 &) ; wait"
"""A child, a subshell with one, and an orphan: with the shell itself five processes."""


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as made:
        yield made


class ContractNode:
    """Fulfils :class:`tests.scenes.cgroups_contract.Node`."""

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
async def test_children_of_an_owner_that_loses_cpus_are_caught(world: World) -> None:
    affinity, key = await opened(world.low, patience=10), ContainerKey("storm", "owner")
    await affinity.place(key, Placement(cpus=world.cpus))
    await affinity.enter(key, world.python(STORM))
    for _ in range(4):
        await affinity.place(key, Placement(cpus=world.low))
        for _ in range(3):
            assert world.places() <= {world.low}
        await affinity.place(key, Placement(cpus=world.cpus))


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


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
