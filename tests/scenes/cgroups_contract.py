"""What every implementation of the cgroups port has to do; and processes to try it on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import CgroupError, ContainerKey, ProcessGoneError
from tests.scenes.contract_node import MIXED, OWNER, SHARED, Node
from tests.scenes.idle_contract import check_idle_side
from tests.scenes.waiting import until, wait_until

NOBODY = 2**22 + 1
"""A pid that Linux never gives."""


class NodeWithMemory(Node, Protocol):
    """One that has memory of NUMA nodes."""

    def memory_nodes(self, pid: int) -> CPUSet:
        """Where a process's memory may come from."""


async def check_contract(node: Node) -> None:
    """The whole life of a shared container and an owner beside it; needs two CPUs or more."""
    cgroups, everything = node.cgroups, node.cpus
    await cgroups.open(everything)
    seen = await cgroups.observe()
    assert seen.shared == seen.shared_configured == everything
    assert seen.containers == {}

    sharer = node.start()
    assert await cgroups.place(SHARED, Placement()) == ""
    assert not (await cgroups.observe()).containers[SHARED].populated
    await cgroups.enter(SHARED, sharer)
    assert node.allowed(sharer) == everything

    await _check_owner(node, sharer)
    await _check_refusals(node, sharer)
    await _check_changing_sides(node, sharer)
    await _check_mixed(node, sharer)
    await check_idle_side(node, sharer)

    await cgroups.kill(SHARED)
    await cgroups.remove(SHARED)
    assert (await cgroups.observe()).containers == {}
    await cgroups.close(remove=True)


async def _check_owner(node: Node, sharer: int) -> None:
    """An owner comes, changes CPUs, and goes; the pool makes room and takes it back."""
    cgroups, everything = node.cgroups, node.cpus
    own = CPUSet([max(everything)])
    rest = everything - own
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
    assert seen.containers[OWNER].configured == seen.containers[OWNER].effective == own
    assert seen.containers[OWNER].populated
    assert not seen.containers[SHARED].exclusive
    assert seen.containers[SHARED].configured is None
    assert seen.containers[SHARED].effective == rest

    # The same once more changes nothing; a refusal leaves everything as it was.
    await cgroups.open(rest)
    await cgroups.set_shared(rest)
    await cgroups.place(OWNER, Placement(cpus=own))
    await cgroups.enter(OWNER, owner)
    await cgroups.place(SHARED, Placement())
    await cgroups.enter(SHARED, sharer)
    assert await cgroups.observe() == seen
    with pytest.raises(CgroupError):
        await cgroups.remove(OWNER)
    assert await cgroups.observe() == seen

    # It gets more, and loses them again: then it can run on none of those.
    await cgroups.place(OWNER, Placement(cpus=everything))
    assert node.allowed(owner) == everything
    for _ in range(2):
        await cgroups.place(OWNER, Placement(cpus=own))
        assert node.allowed(owner) == own
    assert await cgroups.observe() == seen

    # Changing places: nobody shares a CPU on the way when the pool goes first.
    other = CPUSet([min(everything)])
    await cgroups.set_shared(everything - other - own or own)
    await cgroups.place(OWNER, Placement(cpus=other))
    await cgroups.set_shared(own)
    assert (node.allowed(owner), node.allowed(sharer)) == (other, own)

    await cgroups.kill(OWNER)
    assert not node.alive(owner)
    await cgroups.remove(OWNER)
    assert (await cgroups.observe()).containers.keys() == {SHARED}
    await cgroups.set_shared(everything)
    assert node.allowed(sharer) == everything


async def _check_refusals(node: Node, sharer: int) -> None:
    cgroups, everything = node.cgroups, node.cpus
    for bad in (CPUSet(), CPUSet([max(everything) + 4000])):
        with pytest.raises(CgroupError):
            await cgroups.set_shared(bad)
    await cgroups.set_shared(everything)
    # One that is not there can be ended and removed, and not entered; nor can a cgroup be there
    # under every name that an older agent has let in.
    for name in ("x" * 300, ""):
        await cgroups.kill(ContainerKey("uid", name))
        await cgroups.remove(ContainerKey("uid" + 300 * "x", name))
    await cgroups.kill(OWNER)
    await cgroups.remove(OWNER)
    with pytest.raises(CgroupError):
        await cgroups.enter(OWNER, sharer)
    with pytest.raises(CgroupError):
        await cgroups.enter(SHARED, NOBODY)
    with pytest.raises(ProcessGoneError):
        await cgroups.enter(SHARED, sharer, start=1)  # another that had this pid
    assert node.allowed(sharer) == everything


async def _check_changing_sides(node: Node, sharer: int) -> None:
    """From one kind to the other and back, as a repaired record asks for it."""
    cgroups, everything = node.cgroups, node.cpus
    own = CPUSet([max(everything)])
    await cgroups.set_shared(everything - own)
    for cpus, wanted in ((own, own), (None, everything - own)):
        await cgroups.place(SHARED, Placement(cpus=cpus))
        assert node.allowed(sharer) == wanted
        await cgroups.enter(SHARED, sharer)
        assert node.allowed(sharer) == wanted
        seen = (await cgroups.observe()).containers
        assert seen.keys() == {SHARED}
        assert seen[SHARED].exclusive == (cpus is not None)
    await cgroups.set_shared(everything)
    assert node.allowed(sharer) == everything


async def _check_mixed(node: Node, sharer: int) -> None:
    """Its own CPUs and the pool in one: it follows the pool, and is narrowed like it."""
    cgroups, everything = node.cgroups, node.cpus
    own, first = CPUSet([max(everything)]), CPUSet([min(everything)])
    rest = everything - own
    mixed = Placement(cpus=own, mixed=True)
    await cgroups.set_shared(rest)
    pid = node.start()
    await cgroups.place(MIXED, mixed)
    await cgroups.enter(MIXED, pid)
    assert node.allowed(pid) == everything
    seen = (await cgroups.observe()).containers[MIXED]
    assert (seen.exclusive, seen.populated) == (True, True)
    assert seen.configured == seen.effective == everything

    # With the pool it leaves a CPU, before anybody else may have that, and gets it back.
    for pool in (first, own, everything, rest):
        await cgroups.set_shared(pool)
        assert node.allowed(pid) == own | pool
        assert node.allowed(sharer) == pool
        seen = (await cgroups.observe()).containers[MIXED]
        assert seen.configured == seen.effective == own | pool

    # Opened once more, with another pool.
    await cgroups.open(first)
    await cgroups.place(MIXED, mixed)
    assert node.allowed(pid) == own | first

    # Others of its own, none besides, none of its own, and back.
    for placement, where in (
        (Placement(cpus=first, mixed=True), first | own),
        (Placement(cpus=first), first),
        (Placement(), own),
        (mixed, own),
    ):
        await cgroups.set_shared(own)
        await cgroups.place(MIXED, placement)
        assert node.allowed(pid) == where
        await cgroups.set_shared(rest)
        cpus = placement.cpus or CPUSet()
        assert node.allowed(pid) == (cpus | rest if placement.shares else cpus)

    # One that is gone is followed no more.
    await cgroups.kill(MIXED)
    await cgroups.remove(MIXED)
    await cgroups.set_shared(everything)
    assert (await cgroups.observe()).containers.keys() == {SHARED}


async def check_memory(node: NodeWithMemory, memory_nodes: CPUSet) -> None:
    """An owner's memory is narrowed to nodes, and what cannot be is refused and changes nothing.

    Args:
        node: needs two CPUs or more.
        memory_nodes: all that there are.
    """
    cgroups = node.cgroups
    own, nowhere = CPUSet([max(node.cpus)]), CPUSet([max(memory_nodes) + 1000])
    last = CPUSet([max(memory_nodes)])
    await cgroups.open(node.cpus - own)
    for key in (OWNER, ContainerKey("uid", "x" * 300)):
        with pytest.raises(CgroupError):
            await cgroups.migrate(key, last)
    owner = node.start()
    await cgroups.place(OWNER, Placement(cpus=own, mems=memory_nodes))
    await cgroups.enter(OWNER, owner)
    assert await cgroups.weigh(OWNER, memory_nodes) == 0
    for bad in (CPUSet(), nowhere):
        with pytest.raises(CgroupError):
            await cgroups.migrate(OWNER, bad)
        assert node.memory_nodes(owner) == memory_nodes
    moved = await cgroups.migrate(OWNER, last)
    assert node.memory_nodes(owner) == last
    again = await cgroups.migrate(OWNER, last)
    assert (moved.stayed, again.moved, again.stayed) == (0, 0, 0)
    assert node.memory_nodes(owner) == last
    assert await cgroups.weigh(OWNER, last) == 0
    # A placement makes them more, and leaves them as they are.
    await cgroups.place(OWNER, Placement(cpus=own, mems=last))
    assert node.memory_nodes(owner) == last
    await cgroups.place(OWNER, Placement(cpus=own, mems=memory_nodes))
    assert node.memory_nodes(owner) == memory_nodes
    # Who shares has no nodes of its own.
    await cgroups.place(SHARED, Placement())
    with pytest.raises(CgroupError):
        await cgroups.migrate(SHARED, last)
    for key in (OWNER, SHARED):
        await cgroups.kill(key)
        await cgroups.remove(key)
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


HEADLESS = """
import ctypes, sys, threading, time
for file in sys.argv[1:]:
    open(file, "w").write("0")
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@contextmanager
def headless_process(*cgroup_files: Path) -> Iterator[int]:
    """A process whose first thread has ended while another runs, in these cgroups."""
    with process(sys.executable, "-c", HEADLESS, *map(str, cgroup_files)) as pid:
        stat = Path(f"/proc/{pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z", 60)
        yield pid


DYING = """
import ctypes, os, signal, sys
if ctypes.CDLL(None).unshare(0x20000000):
    sys.exit("no new PID namespace")
first = os.fork()
first or signal.pause()
second = os.fork()
second or signal.pause()
for file in sys.argv[1:]:
    open(file, "w").write(str(first))
os.kill(second, signal.SIGKILL)
os.waitid(os.P_PID, second, os.WEXITED | os.WNOWAIT)
os.kill(first, signal.SIGKILL)
print(first, flush=True)
signal.pause()
"""


@contextmanager
def dying_process(*cgroup_files: Path) -> Iterator[int]:
    """A process that the kernel has begun to end, and does not get to the end with.

    It is the first of a PID namespace, and waits there for somebody who is not waited for.
    """
    command = (sys.executable, "-c", DYING, *map(str, cgroup_files))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            pid = int(child.stdout.readline())
            stat = Path(f"/proc/{pid}/stat")
            wait_until(lambda: bool(int(stat.read_text().rpartition(")")[2].split()[6]) & 4))
            yield pid
        finally:
            child.kill()


FORKING = """
import os, time
os.nice(5)  # other tests run at the same time

def fork():
    try:
        return os.fork()
    except BlockingIOError:
        return -1  # the machine has no more pids for a moment

end = time.monotonic() + 120
while time.monotonic() < end:
    if fork() == 0:
        time.sleep(0.02)
        if fork() == 0:
            time.sleep(0.05)
        os._exit(0)
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""
FORKER = (sys.executable, "-S", "-c", FORKING)
"""Forks all the time, children of children too, whose parents end before them."""


async def check_offline(node: Node, switch: Callable[[CPUSet], None]) -> None:
    """An owner whose CPUs all go offline: what the kernel makes of it, and what is made of that.

    Args:
        node: needs two CPUs or more, of which the last can be taken offline.
        switch: makes these CPUs, of all that there are, the online ones.
    """
    cgroups, everything = node.cgroups, node.cpus
    own = CPUSet([max(everything)])
    rest = everything - own
    pool = CPUSet([min(rest)])
    await cgroups.open(pool)
    owner = node.start()
    await cgroups.place(OWNER, Placement(cpus=own))
    await cgroups.enter(OWNER, owner)
    for frozen in (False, True):
        switch(rest)
        # Why all this is needed: it may run wherever somebody else may.
        await until(lambda: node.allowed(owner) == rest)
        with pytest.raises(CgroupError, match="line"):
            await cgroups.place(OWNER, Placement(cpus=own))
        assert await cgroups.place(OWNER, Placement(frozen=frozen)) == ""
        await cgroups.enter(OWNER, owner)
        seen = (await cgroups.observe()).containers[OWNER]
        assert (seen.exclusive, seen.frozen, seen.populated) == (False, frozen, True)
        if not frozen:
            assert node.allowed(owner) == pool
        switch(everything)
        await cgroups.set_shared(pool)
        await cgroups.place(OWNER, Placement(cpus=own))
        await cgroups.enter(OWNER, owner)
        seen = (await cgroups.observe()).containers[OWNER]
        assert (seen.exclusive, seen.frozen, seen.populated) == (True, False, True)
        assert node.allowed(owner) == own
    # One that is frozen can be ended.
    switch(rest)
    await cgroups.place(OWNER, Placement(frozen=True))
    await cgroups.kill(OWNER)
    assert not node.alive(owner)
    await cgroups.remove(OWNER)
    switch(everything)
