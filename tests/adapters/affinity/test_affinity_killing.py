"""Ending containers without cgroups: whole families and nobody else, storms, used pids."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey
from tests.scenes.affinity_world import KEY, OTHER, World, a_world, hold, opened, story
from tests.scenes.cgroups_contract import (
    FORKER,
)
from tests.scenes.waiting import PATIENCE, wait_until


@pytest.fixture
def world() -> Iterator[World]:
    with a_world() as made:
        yield made


@story
async def test_a_whole_family_is_ended_and_nobody_else(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.start(
        "sh", "-c", "trap '' TERM; sleep 1000 & (sleep 1000 &) ; sh -c 'kill -STOP $$' & wait"
    )
    bystander = world.start()
    world.until(5)
    await hold(affinity, main)
    await affinity.kill(KEY)
    assert world.alive() == [bystander]
    assert not (await affinity.observe()).containers[KEY].populated
    await affinity.kill(KEY)
    await affinity.remove(KEY)
    await affinity.kill(KEY)
    await affinity.remove(KEY)


@story
async def test_a_container_that_is_not_empty_is_not_removed(world: World) -> None:
    affinity = await opened(world.cpus)
    main = world.start("sh", "-c", "sleep 1000 & wait")
    world.until(2)
    await hold(affinity, main)
    with pytest.raises(CgroupError, match=f"container {KEY} is not empty: process {main}"):
        await affinity.remove(KEY)
    world.reap(main)
    (orphan,) = world.alive()
    with pytest.raises(CgroupError, match=f"is not empty: process {orphan}"):
        await affinity.remove(KEY)
    await affinity.kill(KEY)
    await affinity.remove(KEY)
    assert world.alive() == []


AT_A_SIGNAL = """
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
ready()
signal.sigwait({signal.SIGUSR1})
"""
"""What follows is done when SIGUSR1 has come."""


@story
async def test_what_a_main_process_leaves_behind_is_ended(world: World) -> None:
    """Nobody looked between the birth of the orphan and the end of the main process."""
    affinity = await opened(world.cpus)
    main = world.python(f"{AT_A_SIGNAL}\nif os.fork() == 0: time.sleep(1000)")
    await hold(affinity, main)
    os.kill(main, signal.SIGUSR1)
    wait_until(lambda: world.alive() not in ([main], []) and main not in world.alive())
    world.reap(main)
    assert len(world.alive()) == 1
    assert (await affinity.observe()).containers[KEY].populated
    await affinity.kill(KEY)
    assert world.alive() == []


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@story
async def test_a_daemon_that_was_seen_is_not_forgotten(world: World) -> None:
    """It makes a session of its own; its parent, then all others end."""
    affinity = await opened(world.cpus)
    main = world.start("sh", "-c", "sh -c 'setsid sleep 1000 & wait' & wait")

    def daemons() -> list[int]:
        return [pid for pid in world.alive() if os.getsid(pid) == pid != main]

    world.until(3)
    wait_until(lambda: len(daemons()) == 1)
    (daemon,) = daemons()
    await hold(affinity, main, cpus=world.high)
    world.reap(main)
    await affinity.place(KEY, Placement(cpus=world.low))
    for pid in world.alive():
        if pid != daemon:
            os.kill(pid, signal.SIGKILL)
    world.until(1)
    assert world.places() == {world.low}
    await affinity.kill(KEY)
    assert world.alive() == []


# -------------------------------------------------------------------------------------- storms

HOPPER = """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
end = time.monotonic() + 60
while time.monotonic() < end:
    if os.fork(): os._exit(0)
"""
"""One process at any time, each for a fraction of a millisecond.

It ends by itself: nobody else could end it when the test itself is killed.
"""


@pytest.mark.parametrize("number", [1, 3])
@story
async def test_a_fork_storm_is_ended(world: World, number: int) -> None:
    affinity = await opened(world.cpus, patience=20)
    mains = [world.start(*FORKER) for _ in range(number)]
    for pid in mains:
        await affinity.place(KEY, Placement())
        await affinity.enter(KEY, pid)
    await affinity.kill(KEY, wait=20)
    assert world.alive() == []
    await asyncio.sleep(0.05)
    assert world.alive() == []


@story
async def test_a_process_that_hops_from_pid_to_pid_is_ended(world: World) -> None:
    """Each is gone before a signal could reach it; the session is met as a whole."""
    affinity = await opened(world.cpus, patience=0.2)
    main = world.python(AT_A_SIGNAL + HOPPER)
    await hold(affinity, main)
    os.kill(main, signal.SIGUSR1)
    wait_until(lambda: _state(main) == "Z")
    world.reap(main)
    await affinity.kill(KEY)
    assert not any(is_running(group=main) for _ in range(20))


def is_running(group: int) -> bool:
    """Whether a process group has anybody but zombies, who wait for a slow init."""
    for entry in os.listdir("/proc"):
        with suppress(OSError):
            if entry.isdigit() and os.getpgid(int(entry)) == group and _state(int(entry)) != "Z":
                return True
    return False


@story
async def test_giving_up_leaves_nobody_stopped(world: World) -> None:
    affinity = await opened(world.cpus)
    await hold(affinity, world.start(*FORKER))
    killing = asyncio.create_task(affinity.kill(KEY))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    killing.cancel()
    with suppress(asyncio.CancelledError):
        await killing
    wait_until(lambda: "T" not in {_state_or_none(pid) for pid in world.alive()})


def _state_or_none(pid: int) -> str:
    try:
        return _state(pid)
    except OSError:
        return ""


# ----------------------------------------------------------------------------- foreground commands


@story
async def test_a_command_in_a_shells_pipeline(world: World) -> None:
    """``pinfold run -- a | b``: ``b`` is in the group, and not in the container."""
    affinity = await opened(world.cpus)
    main = world.start("sh", "-c", "sleep 1000 & wait", session=False)
    neighbour = world.start(session=False)
    world.until(3)
    assert os.getpgid(main) == os.getpgid(neighbour) == os.getpgrp()
    await hold(affinity, main, cpus=world.high)
    assert world.masks()[neighbour] == world.cpus
    await affinity.kill(KEY)
    assert world.alive() == [neighbour]


def test_the_parent_does_not_see_its_command_stop(world: World) -> None:
    """A shell, and ``pinfold run`` itself, would take that for Ctrl-Z."""

    async def kill(pid: int) -> None:
        affinity = await opened(world.cpus)
        await hold(affinity, pid)
        await affinity.kill(KEY)

    for command in (("sleep", "1000"), ("sh", "-c", "sleep 1000 & wait")):
        pid = os.fork()
        if pid == 0:
            os.execvp(command[0], command)  # noqa: S606 - the parent has to be this process
        helper = os.fork()
        if helper == 0:
            # Not the parent: it has to wait meanwhile.
            with suppress(BaseException):
                asyncio.run(kill(pid))
                os._exit(0)
            os._exit(1)
        _, status = os.waitpid(pid, os.WUNTRACED)
        assert not os.WIFSTOPPED(status)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
        assert os.waitpid(helper, 0) == (helper, 0)


# ------------------------------------------------------------------------------------ used pids


@pytest.fixture
def take_pid() -> Callable[[int], subprocess.Popen[bytes]]:
    """Starts a process that has a certain pid (the kernel lets root choose the next one)."""
    knob = Path("/proc/sys/kernel/ns_last_pid")

    def take(pid: int) -> subprocess.Popen[bytes]:
        for _ in range(500):
            try:
                knob.write_text(str(pid - 1))
            except OSError as error:
                pytest.skip(f"the next pid cannot be chosen: {error}")
            process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            if process.pid == pid:
                return process
            process.kill()
            process.wait()
        pytest.skip(f"others were faster at taking pid {pid}")

    return take


@story
async def test_a_stranger_with_a_used_pid_is_left_alone(
    world: World, take_pid: Callable[[int], subprocess.Popen[bytes]]
) -> None:
    affinity = await opened(world.cpus)
    main = world.start()
    await hold(affinity, main, cpus=world.high)
    world.reap(main)
    # Who has the same pid is told apart by when it began, which the kernel tells in ticks.
    await asyncio.sleep(2 / os.sysconf("SC_CLK_TCK"))
    stranger = take_pid(main)
    try:
        assert not (await affinity.observe()).containers[KEY].populated
        await affinity.place(KEY, Placement(cpus=world.low))
        assert CPUSet(os.sched_getaffinity(main)) == world.cpus
        await affinity.kill(KEY)
        await affinity.remove(KEY)
        assert stranger.poll() is None
        # And it can be held itself.
        await hold(affinity, main, OTHER)
        await affinity.kill(OTHER)
        assert stranger.wait(5 * PATIENCE) == -signal.SIGKILL
    finally:
        stranger.kill()
        stranger.wait()


@story
async def test_who_is_late_gives_time_to_die_all_the_same(world: World) -> None:
    """A program that was stopped until its time was over has still to see them end."""
    affinity = await opened(world.cpus)
    script = "import time; memory = b'1' * 500_000_000; time.sleep(1000)"
    main = world.start(sys.executable, "-S", "-c", script)
    statm = Path(f"/proc/{main}/statm")
    wait_until(lambda: int(statm.read_text().split()[1]) > 120_000, 60)
    await hold(affinity, main)
    await affinity.kill(KEY, wait=0.0)
    assert world.alive() == []


@story
async def test_many_containers(world: World) -> None:
    affinity = await opened(world.cpus)
    keys = [ContainerKey(f"uid-{number}", "main") for number in range(16)]
    for key in keys:
        await hold(affinity, world.start(), key)
    await affinity.set_shared(world.low)
    assert world.places() == {world.low}
    observed = await affinity.observe()
    assert all(container.effective == world.low for container in observed.containers.values())
    await asyncio.gather(*(affinity.kill(key) for key in keys[:8]))
    assert len(world.alive()) == 8
    await asyncio.gather(*(affinity.kill(key) for key in keys[8:]))
    assert world.alive() == []
