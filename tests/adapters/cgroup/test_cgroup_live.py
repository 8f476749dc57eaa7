"""Cgroups of this machine's kernel, whichever version it has; needs root and two CPUs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pinfold.adapters.cgroup import CgroupError, open_cgroups, remove_leftovers
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Placement
from pinfold.ports.errors import ContainerKey, ProcessGoneError
from tests.scenes.cgroup_kernel import Kernel, a_kernel, only_cpusets
from tests.scenes.cgroups_contract import FORKER, check_contract, dying_process
from tests.scenes.contract_node import OWNER, SHARED
from tests.scenes.waiting import wait_until

kernel = pytest.fixture(a_kernel)
cpuset_only = pytest.fixture(only_cpusets)

COUNTER = (sys.executable, "-S", "-c", "while True: pass")


def test_the_kernel_meets_the_contract(kernel: Kernel) -> None:
    asyncio.run(check_contract(kernel))


def test_a_kernel_with_nothing_but_cpusets_meets_the_contract(cpuset_only: Kernel) -> None:
    asyncio.run(check_contract(cpuset_only))


def test_a_process_that_was_pinned_can_use_all_cpus_of_its_cpuset(kernel: Kernel) -> None:
    """Also when its set grows later: the kernel keeps a mask that was once asked for."""

    async def scenario() -> None:
        cgroups = kernel.cgroups
        first = CPUSet([min(kernel.cpus)])
        await cgroups.open(kernel.cpus)
        pid = kernel.start("taskset", "-c", str(first), "sleep", "1000")
        wait_until(lambda: kernel.allowed(pid) == first)
        await cgroups.place(SHARED, Placement())
        await cgroups.enter(SHARED, pid)
        assert kernel.allowed(pid) == kernel.cpus
        await cgroups.set_shared(first)
        assert kernel.allowed(pid) == first
        await cgroups.set_shared(kernel.cpus)
        assert kernel.allowed(pid) == kernel.cpus

    asyncio.run(scenario())


def test_children_born_during_a_move_are_caught(kernel: Kernel) -> None:
    async def scenario() -> None:
        cgroups = kernel.cgroups
        own = CPUSet([max(kernel.cpus)])
        await cgroups.open(kernel.cpus)
        forkers = [kernel.start(*FORKER) for _ in range(2)]
        wait_until(lambda: all(len(kernel.family(pid)) > 1 for pid in forkers), 60)
        await cgroups.place(SHARED, Placement())
        for pid in forkers:
            await cgroups.enter(SHARED, pid)
        for _ in range(8):
            await cgroups.set_shared(kernel.cpus - own)
            for pid in kernel.family(*forkers):
                allowed = kernel.allowed_if_alive(pid)
                assert allowed is None or allowed.isdisjoint(own)
            await cgroups.set_shared(kernel.cpus)
        # To the other side, with those whose parents have ended.
        await cgroups.set_shared(kernel.cpus - own)
        await cgroups.place(SHARED, Placement(cpus=own))
        for pid in kernel.family(*forkers):
            assert kernel.allowed_if_alive(pid) in {None, own}
        assert all(kernel.alive(pid) for pid in forkers)
        await cgroups.kill(SHARED)
        # A survivor would fork for ever.
        wait_until(lambda: not kernel.family(*forkers))

    asyncio.run(scenario())


def test_what_a_container_asked_for_itself_is_left_alone(kernel: Kernel) -> None:
    """Adopting a container again does not undo the pinning of its own threads."""

    async def scenario() -> None:
        cgroups, first = kernel.cgroups, CPUSet([min(kernel.cpus)])
        await cgroups.open(kernel.cpus)
        pid = kernel.start()
        await cgroups.place(OWNER, Placement(cpus=kernel.cpus))
        await cgroups.enter(OWNER, pid)
        os.sched_setaffinity(pid, first)
        await cgroups.place(OWNER, Placement(cpus=kernel.cpus))
        await cgroups.enter(OWNER, pid)
        assert kernel.allowed(pid) == first

    asyncio.run(scenario())


def test_another_agent_finds_what_the_first_made(kernel: Kernel) -> None:
    async def scenario() -> None:
        own = CPUSet([max(kernel.cpus)])
        await kernel.cgroups.open(kernel.cpus - own)
        pid = kernel.start()
        await kernel.cgroups.place(OWNER, Placement(cpus=own))
        await kernel.cgroups.enter(OWNER, pid)
        before = await kernel.cgroups.observe()
        await kernel.cgroups.close(remove=False)
        again = open_cgroups(name=kernel.name)
        await again.open(kernel.cpus - own)
        assert await again.observe() == before
        assert kernel.allowed(pid) == own
        await again.kill(OWNER)
        assert not kernel.alive(pid)

    asyncio.run(scenario())


def test_processes_that_an_agent_left_stopped_go_on(kernel: Kernel) -> None:
    """It was killed while it moved them."""

    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        pid = kernel.start(*COUNTER)
        await kernel.cgroups.place(SHARED, Placement())
        await kernel.cgroups.enter(SHARED, pid)
        wait_until(lambda: _time_of(pid) > 0)
        for file, text in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1")):
            for path in kernel.files(file):
                if path.parent.name == SHARED.name:
                    path.write_text(text)
        await asyncio.sleep(0.05)
        before = _time_of(pid)
        await asyncio.sleep(0.1)
        assert _time_of(pid) == before
        await kernel.cgroups.place(SHARED, Placement())
        wait_until(lambda: _time_of(pid) > before)

    asyncio.run(scenario())


def _time_of(pid: int) -> int:
    """The CPU time of a process in ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_threads_move_with_their_process(kernel: Kernel) -> None:
    script = (
        "import threading, time\n"
        "for _ in range(20): threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "print(1, flush=True)\ntime.sleep(1000)"
    )

    async def scenario(pid: int) -> None:
        own = CPUSet([max(kernel.cpus)])
        await kernel.cgroups.open(kernel.cpus)
        await kernel.cgroups.place(OWNER, Placement(cpus=own))
        await kernel.cgroups.enter(OWNER, pid)
        tids = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
        assert len(tids) == 21
        assert {kernel.allowed(tid) for tid in tids} == {own}
        await kernel.cgroups.kill(OWNER)

    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        asyncio.run(scenario(child.pid))


def test_a_stopped_process_is_killed(kernel: Kernel) -> None:
    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        pid = kernel.start("sh", "-c", "kill -STOP $$; sleep 1000")
        await kernel.cgroups.place(SHARED, Placement())
        await kernel.cgroups.enter(SHARED, pid)
        await kernel.cgroups.kill(SHARED)
        assert not kernel.alive(pid)

    asyncio.run(scenario())


def test_a_process_that_the_kernel_has_begun_to_end_holds_nobody_up(kernel: Kernel) -> None:
    """It cannot be moved any more, and is not waited for."""

    async def scenario(pid: int) -> None:
        await kernel.cgroups.open(kernel.cpus)
        await kernel.cgroups.place(SHARED, Placement())
        with pytest.raises(ProcessGoneError, match=f"there is no process {pid}"):
            await kernel.cgroups.enter(SHARED, pid)

    with dying_process() as pid:
        asyncio.run(scenario(pid))


def test_names_of_users_are_only_names(kernel: Kernel) -> None:
    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        keys = [
            ContainerKey("../../evil", ".."),
            ContainerKey("default/pod.v1", "cgroup.procs"),
            ContainerKey("ü=2e", "a b"),
            ContainerKey("tasks", "tasks"),
        ]
        for key in keys:
            await kernel.cgroups.place(key, Placement())
        assert (await kernel.cgroups.observe()).containers.keys() == set(keys)
        for key in keys:
            await kernel.cgroups.remove(key)
        with pytest.raises(CgroupError, match="too long"):
            await kernel.cgroups.place(ContainerKey("x" * 300, "main"), Placement())

    asyncio.run(scenario())


def test_nothing_is_left_behind(kernel: Kernel) -> None:
    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        await kernel.cgroups.place(OWNER, Placement(cpus=kernel.cpus))
        await kernel.cgroups.remove(OWNER)
        await kernel.cgroups.close(remove=True)

    asyncio.run(scenario())
    assert not any(tree.exists() for tree in kernel.trees)


def test_what_an_agent_left_is_removed_where_nothing_runs(kernel: Kernel) -> None:
    """Also where a container runtime has cgroups beside it."""

    async def scenario() -> None:
        await kernel.cgroups.open(kernel.cpus)
        for key in (OWNER, SHARED):
            cpus = kernel.cpus if key == OWNER else None
            await kernel.cgroups.place(key, Placement(cpus=cpus))
        pid = kernel.start("sleep", "1000")
        await kernel.cgroups.enter(OWNER, pid)
        before = Path(f"/proc/{pid}/cgroup").read_text()
        foreign = kernel.tree / "podabc"
        foreign.mkdir()
        try:
            await remove_leftovers(None, kernel.name)
            assert Path(f"/proc/{pid}/cgroup").read_text() == before
            await kernel.cgroups.kill(OWNER)
            await remove_leftovers(None, kernel.name)
            left = [path.name for path in kernel.tree.iterdir() if path.is_dir()]
            assert left == ["podabc"]
            assert not any(tree.exists() for tree in kernel.trees - {kernel.tree})
        finally:
            foreign.rmdir()
        await remove_leftovers(None, kernel.name)
        await remove_leftovers("/there/is/none", kernel.name)

    asyncio.run(scenario())
    assert not any(tree.exists() for tree in kernel.trees)
