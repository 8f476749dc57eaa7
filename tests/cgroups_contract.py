"""What every implementation of the cgroups port has to do; and processes to try it on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest

from pinfold.core.cpuset import CPUSet
from pinfold.node.ports import CgroupError, Cgroups, ContainerKey, Placement

SHARED = ContainerKey("uid-shared", "main")
OWNER = ContainerKey("uid-owner", "main")


class Node(Protocol):
    """A place to try an implementation: its CPUs, and processes that it can hold."""

    @property
    def cgroups(self) -> Cgroups:
        """What is tried."""

    @property
    def cpus(self) -> CPUSet:
        """Every CPU that there is."""

    def start(self) -> int:
        """A process; its pid."""

    def allowed(self, pid: int) -> CPUSet:
        """Where it may run."""

    def alive(self, pid: int) -> bool:
        """Whether it has not ended."""


async def check_contract(node: Node) -> None:
    """The whole life of a shared container and an owner beside it; needs two CPUs or more."""
    cgroups, everything = node.cgroups, node.cpus
    own = CPUSet([max(everything)])
    rest = everything - own
    await cgroups.open(everything)
    assert (await cgroups.observe()).shared == everything

    sharer = node.start()
    assert await cgroups.place(SHARED, Placement()) == ""
    await cgroups.enter(SHARED, sharer)
    assert node.allowed(sharer) == everything

    await cgroups.set_shared(rest)
    assert node.allowed(sharer) == rest
    owner = node.start()
    await cgroups.place(OWNER, Placement(cpus=own))
    await cgroups.enter(OWNER, owner)
    assert node.allowed(owner) == own

    seen = await cgroups.observe()
    assert seen.shared == seen.shared_configured == rest
    assert seen.containers.keys() == {SHARED, OWNER}
    assert seen.containers[OWNER].exclusive
    assert seen.containers[OWNER].effective == own
    assert seen.containers[OWNER].populated
    assert not seen.containers[SHARED].exclusive
    assert seen.containers[SHARED].effective == rest

    with pytest.raises(CgroupError):
        await cgroups.remove(OWNER)
    await cgroups.kill(OWNER)
    assert not node.alive(owner)
    await cgroups.remove(OWNER)
    await cgroups.remove(OWNER)
    assert (await cgroups.observe()).containers.keys() == {SHARED}
    await cgroups.set_shared(everything)
    assert node.allowed(sharer) == everything

    for bad in (CPUSet(), CPUSet([max(everything) + 4000])):
        with pytest.raises(CgroupError):
            await cgroups.set_shared(bad)
    await cgroups.set_shared(everything)
    with pytest.raises(CgroupError):
        await cgroups.enter(OWNER, sharer)

    # From one kind to the other and back, as a repaired record asks for it.
    await cgroups.set_shared(rest)
    await cgroups.place(SHARED, Placement(cpus=own))
    await cgroups.enter(SHARED, sharer)
    assert node.allowed(sharer) == own
    await cgroups.place(SHARED, Placement())
    await cgroups.enter(SHARED, sharer)
    await cgroups.set_shared(everything)
    assert node.allowed(sharer) == everything
    await cgroups.kill(SHARED)
    await cgroups.remove(SHARED)
    await cgroups.close(remove=True)


@contextmanager
def process(*command: str) -> Iterator[int]:
    """A process in a session of its own, ended at the end."""
    with subprocess.Popen(command or ("sleep", "1000"), start_new_session=True) as child:
        try:
            yield child.pid
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except OSError:
                child.kill()


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Until it holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.005)


FORKING = """
import os, time
end = time.monotonic() + 30
while time.monotonic() < end:
    if os.fork() == 0:
        time.sleep(0.02)
        if os.fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
FORKER = (sys.executable, "-c", FORKING)
"""Forks all the time, children of children too."""
