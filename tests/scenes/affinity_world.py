"""Real processes in sessions of their own, and what the kernel says of them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

import pytest

from pinfold.adapters.affinity import Affinity
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey
from tests.scenes.waiting import wait_until

P = ParamSpec("P")

KEY = ContainerKey("uid-1", "main")
OTHER = ContainerKey("uid-2", "main")
OWNER = ContainerKey("uid-3", "main")
MARK = "PINFOLD_TEST_MARK"


def story(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class World:
    """Processes that carry a mark in their environment, by which all of them are found."""

    def __init__(self) -> None:
        self.mark = f"{os.getpid()}-{id(self)}"
        self.started: list[subprocess.Popen[bytes]] = []
        self.cpus = Affinity().usable()
        self.low = CPUSet([min(self.cpus)])
        self.high = CPUSet([max(self.cpus)])

    def start(self, *command: str, session: bool = True) -> int:
        """Start a command; its pid."""
        process = subprocess.Popen(
            command or ("sleep", "1000"),
            start_new_session=session,
            env={**os.environ, MARK: self.mark},
            stdout=subprocess.DEVNULL,
        )
        self.started.append(process)
        return process.pid

    def python(self, script: str) -> int:
        """Start a Python script, and wait until it has made its mark with ``ready()``."""
        reader, writer = os.pipe()
        prelude = f"import os, threading, time, signal\ndef ready(): os.write({writer}, b'1')\n"
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", prelude + script],
            start_new_session=True,
            env={**os.environ, MARK: self.mark},
            pass_fds=[writer],
        )
        self.started.append(process)
        os.close(writer)
        assert os.read(reader, 1) == b"1", "the script failed"
        os.close(reader)
        return process.pid

    def reap(self, pid: int) -> None:
        """End a process that was started here, and wait until it is gone for good."""
        process = next(process for process in self.started if process.pid == pid)
        process.kill()
        process.wait()

    def alive(self) -> list[int]:
        """Every process with the mark that is no zombie."""
        needle = f"{MARK}={self.mark}".encode()
        found = []
        for entry in os.listdir("/proc"):
            with suppress(OSError):
                if entry.isdigit() and needle in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(int(entry))
        return found

    def masks(self) -> dict[int, CPUSet]:
        """The CPUs of each thread of each of them."""
        found = {}
        for pid in self.alive():
            with suppress(OSError):
                for tid in os.listdir(f"/proc/{pid}/task"):
                    with suppress(OSError):
                        found[int(tid)] = CPUSet(os.sched_getaffinity(int(tid)))
        return found

    def places(self) -> set[CPUSet]:
        """The different CPU sets of all threads."""
        return set(self.masks().values())

    def until(self, count: int) -> None:
        """Wait until so many processes are alive."""
        wait_until(lambda: len(self.alive()) == count)

    def end(self) -> None:
        """Leave nobody behind."""
        while alive := self.alive():
            for pid in alive:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.kill()
            process.wait()


@contextmanager
def a_world() -> Iterator[World]:
    """A world with two CPUs at least."""
    world = World()
    if len(world.cpus) < 2:
        pytest.skip("needs two CPUs")
    try:
        yield world
    finally:
        world.end()


async def opened(cpus: CPUSet, *, patience: float = 2.0) -> Affinity:
    """An adapter whose shared pool are these CPUs."""
    affinity = Affinity(patience=patience)
    await affinity.open(cpus)
    return affinity


async def hold(
    affinity: Affinity, pid: int, key: ContainerKey = KEY, cpus: CPUSet | None = None
) -> None:
    """Do what the manager does: place, then enter."""
    await affinity.place(key, Placement(cpus=cpus))
    await affinity.enter(key, pid)


async def effective(affinity: Affinity, key: ContainerKey = KEY) -> CPUSet:
    """What a container is seen to have."""
    return (await affinity.observe()).containers[key].effective
