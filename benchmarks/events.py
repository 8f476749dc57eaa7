"""What it costs an agent that somebody looks on: readers of its events, and the command that asks.

The node has 512 CPUs and 250 pods, and is on fakes in a process of its own, which observes each
second; what is told of readers is what they cost beside that.
"""

from __future__ import annotations

import os
import selectors
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.agent_measuring import detailed, used_seconds
from benchmarks.agent_scene import GivenUpError
from benchmarks.measure import Result

READERS: Final = 10
SECONDS: Final = 10.0
TURNS: Final = 3
ASKED: Final = 15
_SETTLE: Final = 2.0
"""Seconds until everybody has all there is to know."""


@contextmanager
def node(churn: int) -> Iterator[tuple[int, Path]]:
    """Such a node, on which so many pods a second come and go: its process, and its socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        line = [sys.executable, "-m", "benchmarks.events_node", str(path), str(churn)]
        pipe = subprocess.PIPE
        with subprocess.Popen(line, stdin=pipe, stdout=pipe) as process:
            if process.stdout is None or process.stdout.readline() != b"ready\n":
                raise GivenUpError("the node has ended")
            yield process.pid, path


def share(pid: int, connect: Callable[[], socket.socket], readers: int) -> tuple[float, float]:
    """The share of a CPU that a process uses with so many readers, and bytes a second of each.

    ``connect`` makes a reader, who has asked.
    """
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        for _ in range(readers):
            reader = stack.enter_context(connect())
            ready.register(reader, selectors.EVENT_READ, reader)

        def read(seconds: float) -> int:
            until, count = time.monotonic() + seconds, 0
            while (left := until - time.monotonic()) > 0:
                if not readers:
                    time.sleep(left)
                for key, _ in ready.select(left) if readers else ():
                    count += len(key.data.recv(1 << 20))
            return count

        read(_SETTLE)
        used = used_seconds([pid])
        count = read(SECONDS)
        used = used_seconds([pid]) - used
    return used / SECONDS, count / SECONDS / max(readers, 1)


def _reader(path: Path) -> socket.socket:
    reader = socket.socket(socket.AF_UNIX)
    reader.connect(str(path))
    reader.sendall(b"GET /v1/events HTTP/1.1\r\nHost: a\r\n\r\n")
    return reader


def _readers(churn: int) -> Result:
    """Nanoseconds of the agent's CPU time in a second for ten readers, beside those without any."""
    with node(churn) as (pid, path):
        connect = partial(_reader, path)
        turns = [(share(pid, connect, 0), share(pid, connect, READERS)) for _ in range(TURNS)]
    return detailed(
        [1e9 * max(read[0] - alone[0], 0.0) for alone, read in turns],
        percent_of_a_cpu_alone=100 * min(alone[0] for alone, _ in turns),
        percent_with_readers=100 * min(read[0] for _, read in turns),
        kilobytes_a_second_of_each=max(read[1] for _, read in turns) / 1000,
    )


def _asked(*words: str) -> Result:
    """From the start of the command to its end."""
    program = Path(sysconfig.get_path("scripts")) / "pinfold"
    times, used = [], []
    with node(0) as (_, path):
        environment = {**os.environ, "PINFOLD_SOCKET": str(path)}
        for _ in range(ASKED + 1):
            began, before = time.perf_counter_ns(), os.times()
            subprocess.run([program, *words], env=environment, capture_output=True, check=True)
            times.append(float(time.perf_counter_ns() - began))
            after = os.times()
            used.append(
                (after.children_user + after.children_system)
                - (before.children_user + before.children_system)
            )
    return detailed(times[1:], its_cpu_time_ms=1000 * statistics.median(used[1:]))


MEASURED: Final[dict[str, Callable[[], Result]]] = {
    "events.readers": partial(_readers, 0),
    "events.readers.churn": partial(_readers, 2),
    "events.status": partial(_asked, "status"),
    "events.status.json": partial(_asked, "status", "-o", "json"),
}
