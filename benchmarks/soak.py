"""``python -m benchmarks.soak``: what an agent holds while pods come and go for an hour.

A real agent (as root) runs real pods: each second one comes, by turns an owner of a CPU that is
deleted at once, one that shares and is deleted some seconds later, and one that ends by itself.
Meanwhile the agent is asked for its status, its pods, its history and its metrics, as people and
monitoring do.  Each sample is a row of a CSV file; the output says what was held in each sixth of
the time.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Final

from benchmarks.agent_measuring import used_seconds
from benchmarks.agent_scene import NotHereError, Scene, pod, scene
from pinfold.cli.client import NoAgentError, RefusedError

EVERY: Final = 10.0
"""Seconds between two samples."""
ASKED: Final = 3.0
"""Seconds between two looks at the API."""
LIVING: Final = 5
"""Sharing pods that are there at a time."""
LOOKS: Final = ("/v1/status", "/v1/pods", "/v1/history", "/metrics")
_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Sample:
    """What the agent held at one moment; the names are the columns of the file."""

    seconds: float
    pods: int
    """Pods that have come since the begin."""
    refused: int
    rss_kib: int
    pss_kib: int
    anonymous_kib: int
    threads: int
    files: int
    """Open file descriptors."""
    record_kib: int
    """The database with its log, and all else in the state folder."""
    listed: int
    """Pods that the agent lists, with those that have ended."""
    cpu_seconds: float


COLUMNS: Final = tuple(field.name for field in fields(Sample))


class Soak:
    """The pods that come and go, and what was seen of the agent meanwhile."""

    def __init__(self, node: Scene) -> None:
        self.samples: list[Sample] = []
        self._node = node
        self._living: deque[str] = deque()
        self._pods = 0
        self._refused = 0
        self._began = time.monotonic()
        process = node.agent.process
        if process is None:
            raise NotHereError("the agent has ended")
        self._pid = process.pid

    def run(self, seconds: float, rate: float, seen: Callable[[Sample], object]) -> None:
        """Let pods come and go at a rate (pods a second); ``seen`` is told of each sample."""
        due: dict[Callable[[], object], float] = {
            self._churn: 1 / rate,
            self._ask: ASKED,
            lambda: seen(self._sample()): EVERY,
        }
        at = dict.fromkeys(due, self._began)
        while (now := time.monotonic()) < self._began + seconds:
            for act, period in due.items():
                if now >= at[act]:
                    # What was missed on a busy machine is not made up for.
                    at[act] = max(at[act] + period, now)
                    act()
            time.sleep(max(0.0, min(at.values()) - time.monotonic()))
        seen(self._sample())

    def _churn(self) -> None:
        """One comes, and one of those that do not end by themselves goes."""
        self._pods += 1
        name = f"soak-{self._pods}"
        ends, owns = self._pods % 3 == 0, self._pods % 3 == 1
        try:
            self._node.agent.apply(
                pod(name, ("true",) if ends else ("sleep", "1000"), "1" if owns else "")
            )
        except RefusedError:
            self._refused += 1
            return
        if owns:
            # The next owner needs the CPU.
            self._node.delete(name)
        elif not ends:
            self._living.append(name)
            if len(self._living) > LIVING:
                self._node.delete(self._living.popleft())

    def _ask(self) -> None:
        for path in LOOKS:
            self._node.agent.client.get(path)

    def _sample(self) -> Sample:
        process = Path(f"/proc/{self._pid}")
        memory = rollup((process / "smaps_rollup").read_text(encoding="ascii"))
        state = self._node.agent.state
        size = 0
        for folder, _, files in os.walk(state):
            for file in files:
                with suppress(OSError):  # a pod has gone meanwhile
                    size += Path(folder, file).stat().st_size
        sample = Sample(
            round(time.monotonic() - self._began, 1),
            self._pods,
            self._refused,
            memory["Rss"],
            memory["Pss"],
            memory["Anonymous"],
            len(list((process / "task").iterdir())),
            len(list((process / "fd").iterdir())),
            size // _KIB,
            len(self._node.agent.client.get("/v1/pods")["pods"]),
            round(used_seconds([self._pid]), 2),
        )
        self.samples.append(sample)
        return sample


def rollup(text: str) -> Mapping[str, int]:
    """The figures of ``/proc/PID/smaps_rollup``, in KiB."""
    rows = (line.split() for line in text.splitlines()[1:])
    return {words[0].rstrip(":"): int(words[1]) for words in rows}


def growth(samples: Sequence[Sample], parts: int = 6) -> list[str]:
    """A line for each part of a soak: what was held then, by median."""
    lines = ["part    until s    pods    RSS MiB    threads    files    record KiB    pods listed"]
    size = max(1, len(samples) // parts)
    for number in range(0, len(samples) - size + 1, size):
        part = samples[number : number + size]
        rss, threads, files, record, listed = (
            statistics.median(getattr(sample, name) for sample in part)
            for name in ("rss_kib", "threads", "files", "record_kib", "listed")
        )
        lines.append(
            f"{number // size + 1:<4}{part[-1].seconds:>11.0f}{part[-1].pods:>8}"
            f"{rss / _KIB:>11.1f}{threads:>11.0f}{files:>9.0f}{record:>14.0f}{listed:>15.0f}"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="how long (3600)")
    parser.add_argument("--rate", type=float, default=1.0, help="pods a second (1)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the samples")
    given = parser.parse_args(arguments)
    # Whoever ends it wants nothing left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        with scene(cpuManagerReconcilePeriod="10s") as node, _written(given.csv) as write:
            soak = Soak(node)
            soak.run(given.seconds, given.rate, write)
    except (NotHereError, NoAgentError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1
    print("\n".join(growth(soak.samples)))
    return 0


@contextmanager
def _written(path: Path | None) -> Iterator[Callable[[Sample], object]]:
    """What writes a sample to a CSV file, at once: whoever looks sees how far it is."""
    if path is None:
        yield lambda _sample: None
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)

        def write(sample: Sample) -> None:
            writer.writerow(astuple(sample))
            file.flush()

        yield write


if __name__ == "__main__":
    sys.exit(main())
