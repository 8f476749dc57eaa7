"""Workloads of a real agent: a pod's way in and out, an idle agent, and its start.

On the two CPUs that every machine has, CPU 0 is reserved and the other is the exclusive one; the
shared containers sleep.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import click
from tests.scenes.agent_process import AgentProcess

from benchmarks.agent_measuring import detailed, process_clock
from benchmarks.agent_scene import LONGEST, GivenUpError, Scene, answer, require_node, scene
from benchmarks.measure import Result, measure_own_clock
from pinfold.core.values.cpuset import CPUSet

SIZES: Final = (0, 10, 50)
"""Shared containers that are there meanwhile."""
IDLE_SECONDS: Final = 10.0
"""How long an idle agent is watched at a time: one period of its reconciliation."""
IDLE_TIMES: Final = 2
IDLE_PODS: Final = 10
START_TIMES: Final = 7
FLOODED_PODS: Final = 20
FLOODED_TIMES: Final = 15
FLOODING: Final = 64
"""Clients that ask for the status, each as soon as it has its answer."""

_FLOOD: Final = """
import asyncio, sys
async def client(path):
    reader, writer = await asyncio.open_unix_connection(path, limit=1 << 26)
    while True:
        writer.write(b"GET /v1/status HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
        head = await reader.readuntil(b"\\r\\n\\r\\n")
        length = next(l for l in head.lower().split(b"\\r\\n") if l.startswith(b"content-length:"))
        await reader.readexactly(int(length.split(b":")[1]))
async def main(path, count):
    tasks = [asyncio.ensure_future(client(path)) for _ in range(count)]
    print("begun", flush=True)
    await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@contextmanager
def _with_shared(count: int, period: str = "1h") -> Iterator[Scene]:
    with scene(cpuManagerReconcilePeriod=period) as node:
        for _ in range(count):
            file = node.new_file()
            node.apply(("stamp", str(file)))
            answer(file)
        yield node


def _admission(shared: int) -> Result:
    """From the request for an exclusive pod to the first instruction of its process."""
    with _with_shared(shared) as node:

        def call() -> int:
            file = node.new_file()
            began = time.monotonic_ns()
            name = node.apply(("stamp", str(file)), "1")
            first = answer(file)["at_ns"]
            node.delete(name)
            return int(first) - began

        return measure_own_clock(call)


def _flooded() -> Result:
    """An admission beside many who ask for the status all the time; ``ratio`` to one without."""
    with _with_shared(FLOODED_PODS) as node:

        def call() -> float:
            began = time.monotonic_ns()
            name = node.apply(("sleep", "1000"), "1")
            took = time.monotonic_ns() - began
            node.delete(name)
            return took

        alone = statistics.median(call() for _ in range(FLOODED_TIMES))
        flood = [sys.executable, "-c", _FLOOD, str(node.agent.socket), str(FLOODING)]
        with subprocess.Popen(flood, stdout=subprocess.PIPE) as process:
            try:
                answer_of(process)
                times = [call() for _ in range(FLOODED_TIMES)]
            finally:
                process.kill()
        return detailed(times, ratio=statistics.median(times) / alone, worst_ms=max(times) / 1e6)


def answer_of(process: subprocess.Popen[bytes]) -> None:
    """Return when it has said something."""
    if process.stdout is None or not process.stdout.readline():
        raise GivenUpError("the flood has ended")


def _release(shared: int) -> Result:
    """From the request to delete an exclusive pod to its CPU being in the shared pool again."""
    with _with_shared(shared) as node:
        pool = node.pool_file()

        def call() -> int:
            file = node.new_file()
            name = node.apply(("stamp", str(file)), "1")
            answer(file)
            taken = CPUSet.parse(pool.read_text())
            # A thread, since the CPU may be back before the request is answered.
            with ThreadPoolExecutor(1) as threads:
                began = time.monotonic_ns()
                deleted = threads.submit(node.delete, name)
                while not CPUSet.parse(pool.read_text()) - taken:
                    if time.monotonic_ns() - began > LONGEST * 1e9:
                        raise GivenUpError(f"{pool} is still {taken}")
                    time.sleep(0.0005)
                ended = time.monotonic_ns()
                deleted.result()
            return ended - began

        return measure_own_clock(call)


def _idle() -> Result:
    """CPU time in a second (so a share in billionths) of an agent whose pods sleep."""
    with _with_shared(IDLE_PODS, "10s") as node:
        process = node.agent.process
        if process is None:
            raise GivenUpError("the agent is gone")
        clock = process_clock(process.pid)
        time.sleep(2.0)  # what the start left to do
        used: list[float] = []
        for _ in range(IDLE_TIMES):
            began, cpu = time.monotonic(), time.clock_gettime_ns(clock)
            time.sleep(IDLE_SECONDS)
            used.append((time.clock_gettime_ns(clock) - cpu) / (time.monotonic() - began))
        memory = _memory_mb(process.pid)
    mean = sum(used) / len(used)
    return detailed(used, cpu_percent=mean / 1e7, rss_mb=memory, pods=f"{IDLE_PODS} shared")


def _memory_mb(pid: int) -> float:
    """The resident set, in 10**6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise GivenUpError(f"process {pid} has no memory")


def _start() -> Result:
    """From the start of the process to the first ``ok`` of ``/readyz``, with an empty record."""
    require_node()
    with tempfile.TemporaryDirectory(prefix="pinfold-bench-") as name:
        agent = AgentProcess(Path(name))
        clocks: list[float] = []

        def call() -> int:
            began = time.monotonic_ns()
            process = agent.launch()
            while not _is_ready(agent):
                if process.poll() is not None or time.monotonic_ns() - began > LONGEST * 1e9:
                    raise GivenUpError(f"the agent does not start: {agent.log()[-500:]}")
                time.sleep(0.002)
            took = time.monotonic_ns() - began
            clocks.append(time.clock_gettime_ns(process_clock(process.pid)))
            agent.stop()
            return took

        call()
        clocks.clear()
        try:
            return detailed(
                [call() for _ in range(START_TIMES)], cpu_ms=statistics.median(clocks) / 1e6
            )
        finally:
            agent.clean_up()


def _is_ready(agent: AgentProcess) -> bool:
    try:
        return bool(agent.client.get("/readyz") == "ok")
    except click.ClickException:
        return False


MEASURED: Final[dict[str, Callable[[], Result]]] = {
    **{f"agent.admission.{count}": partial(_admission, count) for count in SIZES},
    "agent.admission.flooded": _flooded,
    **{f"agent.release.{count}": partial(_release, count) for count in SIZES},
    "agent.idle": _idle,
    "agent.start": _start,
}
