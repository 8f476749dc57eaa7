"""Workloads of the agent's parts on the running kernel: real cgroups with processes that sleep.

A thousand containers with supervisors would need more memory than a small machine has; the
processes are handed to the agent instead, as those of ``pinfold run`` are.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from math import log
from typing import Final

from benchmarks.agent_measuring import cpu_time, detailed
from benchmarks.agent_scene import GivenUpError, agent_within, pod, require_node
from benchmarks.measure import Result
from benchmarks.report import series
from pinfold.adapters.cgroup import open_cgroups
from pinfold.adapters.observation import ProcCPUMeter
from pinfold.adapters.process.processes import identify
from pinfold.agent.service import Agent
from pinfold.core.kubelet.node_config import NodeConfig
from pinfold.core.values.cpuset import CPUSet
from pinfold.ports.cgroups import Cgroups, Placement
from pinfold.ports.errors import ContainerKey
from pinfold.ports.held_process import HeldProcess

POOL_SIZES: Final = (10, 100, 300, 1000)
RECONCILED: Final = 500
OBSERVED: Final = 200
MOVES: Final = 21
READINGS: Final = 15
LOOKS: Final = 2001
SLEEP: Final = ("sleep", "infinity")
WAKE: Final = (sys.executable, "-S", "-E", "-c", "import time\nwhile True: time.sleep(0.1)")
BETWEEN: Final = 0.5
"""Seconds between two readings, in which who wakes at all has woken."""


@contextmanager
def _sleepers(count: int, command: tuple[str, ...] = SLEEP) -> Iterator[Sequence[int]]:
    """Processes that sleep, gone at the end."""
    pids: list[int] = []
    try:
        while len(pids) < count:
            pids.append(os.posix_spawnp(command[0], command, os.environ))
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


async def _remove_all(cgroups: Cgroups) -> None:
    for key in (await cgroups.observe()).containers:
        await cgroups.kill(key)
        await cgroups.remove(key)
    await cgroups.close(remove=True)


def _pool(count: int) -> Result:
    """Shrink the shared pool by one CPU while it holds so many containers, until confirmed."""
    cpus = require_node()
    fewer = cpus - CPUSet([max(cpus)])
    cgroups = open_cgroups(name=f"pinfold-bench-{secrets.token_hex(4)}")
    moves: list[float] = []
    used: list[float] = []

    async def work(pids: Sequence[int]) -> None:
        await cgroups.open(cpus)
        for number, pid in enumerate(pids):
            key = ContainerKey(f"pod-{number}", "main")
            await cgroups.place(key, Placement())
            await cgroups.enter(key, pid)
        for _ in range(MOVES):
            began, cpu = time.perf_counter_ns(), time.process_time_ns()
            await cgroups.set_shared(fewer)
            used.append(time.process_time_ns() - cpu)
            moves.append(time.perf_counter_ns() - began)
            if CPUSet(os.sched_getaffinity(pids[-1])) != fewer:
                raise GivenUpError(f"process {pids[-1]} was not moved to {fewer}")
            await cgroups.set_shared(cpus)

    with asyncio.Runner() as runner:
        try:
            with _sleepers(count) as pids:
                runner.run(work(pids))
        finally:
            runner.run(_remove_all(cgroups))
    cpu_us = statistics.median(used) / 1e3
    return detailed(moves, cpu_us=cpu_us, cpu_us_per_container=cpu_us / count)


def _reconcile(count: int) -> Result:
    """CPU time of one reconciliation by an agent with its real ports, when nothing changed."""
    require_node()
    node = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]), max_pods=count)
    name = f"pinfold-bench-{secrets.token_hex(4)}"
    with (
        tempfile.TemporaryDirectory(prefix="pinfold-bench-") as folder,
        _sleepers(count) as pids,
        agent_within(folder, node, cgroupName=name) as (runner, agent),
    ):
        runner.run(_fill(agent, pids))
        cgroups = agent.books.containers.cgroups

        def call() -> None:
            if drifts := runner.run(agent.reconcile()):
                raise GivenUpError(f"something has changed: {drifts[0]}")

        try:
            return cpu_time(call)
        finally:
            runner.run(_remove_all(cgroups))


def _observe(count: int, command: tuple[str, ...]) -> Result:
    """CPU time of one reading of all counters by an agent with its real ports."""
    require_node()
    node = NodeConfig(cpu_manager_policy="static", reserved_system_cpus=CPUSet([0]), max_pods=count)
    name = f"pinfold-bench-{secrets.token_hex(4)}"
    with (
        tempfile.TemporaryDirectory(prefix="pinfold-bench-") as folder,
        _sleepers(count, command) as pids,
        agent_within(folder, node, cgroupName=name, observationPeriod="1s") as (runner, agent),
    ):
        runner.run(_fill(agent, pids))
        watched = agent.observation
        used: list[float] = []
        try:
            if watched is None:
                raise GivenUpError("the agent does not observe")
            runner.run(asyncio.sleep(BETWEEN))  # for what the starts have left to do
            for _ in range(READINGS + 1):
                time.sleep(BETWEEN)
                began = time.process_time_ns()
                runner.run(watched.observe())
                used.append(time.process_time_ns() - began)
            if len(watched.containers) != count:
                raise GivenUpError(f"{len(watched.containers)} containers were read")
        finally:
            runner.run(_remove_all(agent.books.containers.cgroups))
    del used[0]  # which has opened all files
    return detailed(used, percent_of_a_core_at_1_s=statistics.median(used) / 1e7)


def _lent() -> Result:
    """CPU time of one look at how idle one CPU is."""
    meter, one = ProcCPUMeter(), CPUSet([0])
    used: list[float] = []
    for _ in range(LOOKS):
        began = time.process_time_ns()
        meter.idle(one)
        used.append(time.process_time_ns() - began)
    meter.close()
    return detailed(used, percent_of_a_core_at_50_hz=statistics.median(used) * 50 / 1e7)


async def _fill(agent: Agent, pids: Sequence[int]) -> None:
    """A pod around each process; one of them owns a CPU."""
    if agent.pods is None:
        raise GivenUpError("the agent runs no pods")
    for number, pid in enumerate(pids):
        await agent.pods.apply(
            pod(f"pod-{number}", ("sleep", "infinity"), "" if number else "1"),
            source="run",
            held=_held(pid),
        )
    for uid in agent.books.view.pods.active:
        if (life := agent.pods.life(uid)) is not None:
            await life.started.wait()


def growth(results: Mapping[str, Result]) -> list[str]:
    """How the cost of moving the pool grows with the containers: exponents (1 is linear)."""
    points = series(results, "agent.pool")
    steps = [f"{a}-{b}: {log(y / x) / log(b / a):.2f}" for (a, x), (b, y) in pairwise(points)]
    return [f"{'agent.pool, exponents':<26}" + "   ".join(steps)] if steps else []


MEASURED: Final[dict[str, Callable[[], Result]]] = {
    **{f"agent.pool.{count}": partial(_pool, count) for count in POOL_SIZES},
    f"agent.reconcile.{RECONCILED}": partial(_reconcile, RECONCILED),
    f"observe.rest.{OBSERVED}": partial(_observe, OBSERVED, SLEEP),
    f"observe.busy.{OBSERVED}": partial(_observe, OBSERVED, WAKE),
    "observe.lent": _lent,
}


def _held(pid: int) -> HeldProcess:
    found = identify(pid)
    if found is None:
        raise ProcessLookupError(f"process {pid} has ended")
    return HeldProcess(found.pid, found.start)
