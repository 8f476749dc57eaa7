"""An agent keeps off the CPUs of others, also when its own go offline."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from pinfold.adapters.machines.online import is_of_a_cpu
from pinfold.agent.loops.cpu_follower import CPUFollower
from pinfold.core.values.cpuset import CPUSet
from tests.scenes.manager_harness import Harness, run_virtually

CPUS = sorted(os.sched_getaffinity(0))

PROGRAM = """
import os, sys, threading
from pinfold.agent.loops.cpu_follower import stay_off_exclusive_cpus
from pinfold.core.values.cpuset import CPUSet
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()
stay_off_exclusive_cpus(CPUSet.parse(sys.argv[1]), CPUSet.parse(sys.argv[2]))
print(*(CPUSet(os.sched_getaffinity(tid)) for tid in (0, other.native_id)))
"""


@pytest.mark.parametrize(
    ("reserved", "pool", "expected"),
    [
        (f"{CPUS[0]}", f"{CPUS[-1]}", f"{CPUS[0]}"),
        ("8000", f"{CPUS[-1]}", f"{CPUS[-1]}"),
        ("8000", "", f"{CPUSet(CPUS)}"),
    ],
    # Names that are the same whatever the machine has online just now.
    ids=["reserved", "pool", "neither"],
)
def test_every_thread_is_on_reserved_cpus_or_else_in_the_pool(
    reserved: str, pool: str, expected: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, reserved, pool],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [expected, expected]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"offline@/devices/system/cpu/cpu1\0ACTION=offline\0", True),
        (b"online@/devices/system/cpu/cpu127\0ACTION=online\0", True),
        (b"offline@/devices/system/memory/memory32\0", False),
        (b"change@/devices/system/cpu/cpu1/cache\0", False),
        (b"", False),
    ],
)
def test_the_kernels_word_of_a_cpu(message: bytes, expected: bool) -> None:
    assert is_of_a_cpu(message) is expected


NOTHING: tuple[None, ...] = ()


async def no_events() -> AsyncIterator[None]:
    for nothing in NOTHING:
        yield nothing


def test_a_cpu_that_nobody_knew_is_told_once_and_no_problem_when_it_has_gone() -> None:
    async def story() -> None:
        node = Harness()
        books = (await node.start()).books
        online = [books.view.machine | CPUSet([9999]), books.view.machine]
        follower = CPUFollower(books, CPUSet(), lambda: online[0], no_events, lambda *_: None)
        for _ in range(3):
            await follower.look()
        assert "CPUs 9999 came online for the first time" in follower.problem
        assert [text for text in node.problems if "9999" in text] == [f"None: {follower.problem}"]
        del online[0]
        await follower.look()
        assert follower.problem == ""
        await node.kill()

    run_virtually(story())


def test_what_could_not_be_followed_is_seen_again() -> None:
    async def story() -> None:
        node = Harness()
        books = (await node.start()).books
        online = books.view.machine - CPUSet([7])
        follower = CPUFollower(books, CPUSet(), lambda: online, no_events, lambda *_: None)
        async with books.change():
            look = asyncio.create_task(follower.look())
            await node.settle()
            look.cancel()
            await asyncio.wait({look})
        assert not books.view.state.offline
        assert await follower.look()
        assert books.view.state.offline == CPUSet([7])
        await node.kill()

    run_virtually(story())
