"""The guardian as a process: whoever is killed or stopped, all that is lent is undone."""

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

from pinfold.adapters.guardian import GuardianProcess
from pinfold.adapters.guardian.guardian import LOG, guardians_in
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.guardian import LeaseError, Undoing
from tests.roots import ROOT
from tests.scenes.guardian_contract import LENT, NOTHING, check_ends, check_guarding
from tests.scenes.lending_kernel import LendingKernel, a_lending_kernel, a_nested_kernel
from tests.scenes.process_world import is_alive, process_state
from tests.scenes.waiting import until, wait_until

kernel = pytest.fixture(a_lending_kernel)
nested = pytest.fixture(a_nested_kernel)

AGENT = """
import sys, time
from pathlib import Path
import asyncio
from pinfold.adapters.guardian import GuardianProcess
from pinfold.ports.guardian import Undoing
folder, pool, idle, threads, quota, none, lease, *homes = sys.argv[1:]
undoing = Undoing(pool, idle, threads, {quota: none}, tuple(homes))
guardian = GuardianProcess(Path(folder), undoing, lease=float(lease), look=float(lease) / 4)
asyncio.run(guardian.begin())
Path(idle, "cpuset.cpus").write_text("0-1")
Path(quota).write_text("50000")
guardian.check()
print(guardian.pid, flush=True)
while True:
    time.sleep(float(lease) / 8)
    try:
        guardian.renew()
    except Exception as error:
        print(error, flush=True)
        time.sleep(1000)
"""


class Agent:
    """A process that lends CPU 1, caps the idle side, and renews; the pid of its guardian."""

    def __init__(self, kernel: LendingKernel, *wrapper: str) -> None:
        place = (kernel.state, kernel.pool, kernel.idle, kernel.threads, kernel.quota)
        self.process = subprocess.Popen(
            [
                *(*wrapper, sys.executable, "-c", AGENT),
                *map(str, (*place, kernel.no_cap, kernel.lease, *kernel.homes)),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.guardian = int(self.line())

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@pytest.fixture
def agent(kernel: LendingKernel) -> Iterator[Agent]:
    one = Agent(kernel)
    assert kernel.in_force() == (LENT, True)
    yield one
    one.process.kill()
    one.process.communicate()


def test_it_meets_the_contract(kernel: LendingKernel) -> None:
    asyncio.run(check_guarding(kernel))


def test_ending_it_meets_the_contract(kernel: LendingKernel) -> None:
    asyncio.run(check_ends(kernel))
    assert not kernel.home.exists()
    assert not (kernel.state / LOG).exists()


def test_cpusets_within_the_idle_side_are_narrowed_first(nested: LendingKernel) -> None:
    async def live() -> None:
        await nested.guardian.begin()
        nested.lend(LENT)
        await until(lambda: nested.in_force() == NOTHING)
        assert (nested.inner / "cpuset.cpus").read_text() == "0\n"

    asyncio.run(live())


def test_a_killed_agent_leaves_nothing_lent(kernel: LendingKernel, agent: Agent) -> None:
    agent.process.kill()
    began = time.monotonic()
    wait_until(lambda: kernel.in_force() == NOTHING)
    # It is told by the end of a pipe, long before the lease is over.
    assert time.monotonic() - began < kernel.lease
    wait_until(lambda: not is_alive(agent.guardian))
    (told,) = asyncio.run(kernel.another().end())
    assert told.why == "the agent has ended"
    assert (told.cpus, told.uncapped) == (LENT, True)


def test_a_stopped_agent_has_nothing_lent_and_knows_when_it_goes_on(
    kernel: LendingKernel, agent: Agent
) -> None:
    os.kill(agent.pid, signal.SIGSTOP)
    wait_until(lambda: kernel.in_force() == NOTHING)
    assert is_alive(agent.guardian)
    # What it was about to write when it was stopped.
    kernel.lend(LENT)
    kernel.cap()
    wait_until(lambda: kernel.in_force() == NOTHING)
    os.kill(agent.pid, signal.SIGCONT)
    assert agent.line() == f"guardian {agent.guardian} has ended the lease\n"
    agent.process.kill()
    wait_until(lambda: not is_alive(agent.guardian))


def test_an_agent_knows_that_its_guardian_was_killed(kernel: LendingKernel, agent: Agent) -> None:
    os.kill(agent.guardian, signal.SIGKILL)
    assert agent.line() == f"guardian {agent.guardian} has ended, and nothing is guarded\n"
    # The agent has to return what is lent: nobody else is there.
    assert kernel.in_force() == (LENT, True)


def test_an_agent_knows_that_its_guardian_does_not_look(
    kernel: LendingKernel, agent: Agent
) -> None:
    os.kill(agent.guardian, signal.SIGSTOP)
    assert agent.line().startswith(f"guardian {agent.guardian} has not looked for ")
    # One that comes late finds out that the lease is over.
    os.kill(agent.pid, signal.SIGSTOP)
    os.kill(agent.guardian, signal.SIGCONT)
    wait_until(lambda: kernel.in_force() == NOTHING)


def test_the_next_agent_ends_a_guardian_that_was_stopped(
    kernel: LendingKernel, agent: Agent
) -> None:
    os.kill(agent.guardian, signal.SIGSTOP)
    wait_until(lambda: process_state(agent.guardian) == "T")
    agent.process.kill()
    agent.process.wait()

    async def next_agent() -> None:
        guardian = kernel.another()
        with pytest.raises(LeaseError, match="has not ended"):
            await guardian.begin()
        assert await guardian.end() == ()
        assert not is_alive(agent.guardian)
        await guardian.begin()
        for _ in range(20):
            await kernel.work()
            guardian.renew()
        assert kernel.in_force() == (LENT, True)
        await guardian.end()

    asyncio.run(next_agent())


def test_signals_to_the_agents_group_and_session_do_not_end_it(
    kernel: LendingKernel, agent: Agent
) -> None:
    assert os.getsid(agent.guardian) == agent.guardian != os.getsid(agent.pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(agent.guardian, number)
    assert guardians_in(str(kernel.home)) == [agent.guardian]
    # Whoever freezes the agent's cgroup does not freeze it.
    group = kernel.freezer / "service"
    group.mkdir()
    freezer, frozen, thawed = (
        ("cgroup.freeze", "1", "0") if kernel.is_v2 else ("freezer.state", "FROZEN", "THAWED")
    )
    try:
        (group / "cgroup.procs").write_text(str(agent.pid))
        (group / freezer).write_text(frozen)
        wait_until(lambda: kernel.in_force() == NOTHING)
        (group / freezer).write_text(thawed)
        assert agent.line() == f"guardian {agent.guardian} has ended the lease\n"
    finally:
        (group / freezer).write_text(thawed)
        agent.process.kill()
        agent.process.wait()
        wait_until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.parametrize("policy", ["--idle 0", "--batch 0", "--fifo 10"])
def test_it_is_not_starved_with_the_agent(kernel: LendingKernel, policy: str) -> None:
    wrapper = f"taskset -c 1 nice -n 19 chrt {policy}".split()
    agent = Agent(kernel, *wrapper)
    try:
        assert os.sched_getscheduler(agent.pid) != os.SCHED_OTHER
        wait_until(lambda: os.sched_getscheduler(agent.guardian) == os.SCHED_OTHER)
        assert os.getpriority(os.PRIO_PROCESS, agent.guardian) == 0
        # Its own, and the pool's: somebody may have all the time of the agent's.
        wait_until(lambda: os.sched_getaffinity(agent.guardian) == {0, 1})
        for home in kernel.homes:
            assert guardians_in(str(home)) == [agent.guardian]
    finally:
        agent.process.kill()
        agent.process.communicate()
    wait_until(lambda: not is_alive(agent.guardian))
    assert kernel.in_force() == NOTHING


def test_a_pool_that_shrinks_meanwhile_is_the_bound(kernel: LendingKernel) -> None:
    """An agent that was stopped between the idle side and the pool goes on: CPU 0 is owned now."""

    async def live() -> None:
        await kernel.guardian.begin()
        kernel.set_pool(CPUSet([1]))
        (kernel.idle / "cpuset.cpus").write_text("0")
        await until(lambda: kernel.idle_cpus == CPUSet([1]))
        assert kernel.in_force() == NOTHING
        kernel.set_pool(CPUSet([0]))
        await until(lambda: kernel.idle_cpus == CPUSet([0]))

    asyncio.run(live())


def test_threads_that_pin_themselves_follow(kernel: LendingKernel) -> None:
    async def live() -> None:
        await kernel.guardian.begin()
        kernel.lend(LENT)
        os.sched_setaffinity(kernel.borrower.pid, [1])
        await kernel.sleep()
        assert os.sched_getaffinity(kernel.borrower.pid) == {0}

    asyncio.run(live())


def test_what_cannot_be_undone_is_tried_again_and_said_once(kernel: LendingKernel) -> None:
    async def live() -> None:
        undoing = kernel.undoing()
        pool = kernel.state / "pool"
        broken = Undoing(str(pool), undoing.idle, undoing.threads, {}, undoing.homes)
        guardian = GuardianProcess(kernel.state, broken, lease=0.1, look=0.02)
        await guardian.begin()
        kernel.lend(LENT)
        await until((kernel.state / LOG).exists)
        await asyncio.sleep(0.2)
        pool.mkdir()
        (pool / "cpuset.cpus").write_text("0\n")
        await until(lambda: kernel.idle_cpus == CPUSet([0]))
        await until(lambda: len((kernel.state / LOG).read_text().splitlines()) > 1)
        first, second = await guardian.end()
        assert first.why.endswith(f"and {pool}/cpuset.cpus: No such file or directory")
        assert (first.cpus, second.cpus) == (CPUSet(), LENT)

    asyncio.run(live())


def test_it_does_not_begin_where_it_cannot_sit(kernel: LendingKernel) -> None:
    undoing = kernel.undoing()
    nowhere = str(kernel.freezer / "no/where")
    broken = Undoing(undoing.pool, undoing.idle, undoing.threads, {}, (nowhere,))
    guardian = GuardianProcess(kernel.state, broken)
    files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LeaseError, match=f"cannot enter {nowhere}/cgroup.procs: No such file"):
        asyncio.run(guardian.begin())
    assert len(os.listdir("/proc/self/fd")) == files
    assert guardian.pid is None


def test_a_lease_begins_when_its_guardian_is_there(
    kernel: LendingKernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is busy a program may take longer to start than a lease holds."""
    slow = tmp_path / "slow"
    slow.write_text(f'#!/bin/sh\nsleep 0.6\nexec {sys.executable} "$@"\n')
    slow.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(slow))

    async def holds() -> bool:
        guardian = GuardianProcess(kernel.state, kernel.undoing(), lease=0.5, look=0.2)
        await guardian.begin()
        try:
            guardian.check()
        except LeaseError:
            return False
        finally:
            await guardian.end()
        return True

    # Again only where this process was held up for that long afterwards.
    assert any(asyncio.run(holds()) for _ in range(10))


def test_a_damaged_log_is_read_as_far_as_it_goes(kernel: LendingKernel) -> None:
    log = kernel.state / LOG
    log.write_bytes(b"nonsense\n1.5\t1,3\t1\tthe agent has ended\n1\t\xff\t0\t\n\n12\t0")
    (told,) = asyncio.run(kernel.guardian.end())
    assert (told.at, told.cpus, told.uncapped) == (1.5, CPUSet([1, 3]), True)
    assert not Path(log).exists()
