"""What real programs did on a machine, second by second: the sample, and other such files.

They are written by ``python -m benchmarks.record_load``; ``tests/data/loads/README.md`` says of
which machine and programs the sample is.
"""

from __future__ import annotations

import lzma
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

SAMPLE: Final = Path(__file__).parents[1] / "data" / "loads" / "sample.jsonl.xz"
_MICRO: Final = 1e-6
_BUSIEST: Final = 0.98
"""A program's peak is what it uses in a second that is busier than these are."""


class Origin(Struct, frozen=True):
    """Where a recording is of: see :mod:`benchmarks.record_load`."""

    kernel: str
    cgroup: int
    wait_source: str
    cpus: int
    programs: Mapping[str, str]


class Second(Struct, frozen=True):
    """Microseconds between the readings of a second, CPU time in these, and waits in it."""

    times: Sequence[int]
    fine: Mapping[str, Sequence[int]]
    wait: Mapping[str, int | None]


class Recording(Struct, frozen=True, dict=True):
    """What was recorded; beyond its end it begins anew."""

    origin: Origin
    seconds: Sequence[Second]

    def usage(self, name: str) -> list[float]:
        """CPUs that a program used, by the second."""
        return [sum(one.fine[name]) / sum(one.times) for one in self.seconds]

    def peak(self, name: str) -> float:
        """CPUs that it used in its busy seconds."""
        ordered = sorted(self.usage(name))
        return ordered[int(len(ordered) * _BUSIEST)]

    def demand(self, name: str, peak: float) -> Callable[[float], float]:
        """CPUs that it wants by the second, as if its peak were another one."""
        usage, scale = self.usage(name), peak / self.peak(name)
        return lambda at: usage[int(at) % len(usage)] * scale

    def fine_demand(self, name: str, peak: float) -> Callable[[float], float]:
        """The same between two readings, at most a CPU."""
        scale = peak / self.peak(name)
        used = [
            (cpu / span if span else 0.0) * scale
            for one in self.seconds
            for cpu, span in zip(one.fine[name], one.times, strict=True)
        ]
        ends = self._ends

        def wants(at: float) -> float:
            return min(1.0, used[min(bisect_right(ends, at % ends[-1]), len(used) - 1)])

        return wants

    @cached_property
    def _ends(self) -> list[float]:
        spans = (span for one in self.seconds for span in one.times)
        return list(accumulate(span * _MICRO for span in spans))


def recorded(file: Path = SAMPLE) -> Recording:
    """Read a recording; raises msgspec.DecodeError where it is none."""
    with lzma.open(file, "rb") as lines:
        origin = msgspec.json.decode(next(lines), type=Origin)
        return Recording(origin, [msgspec.json.decode(line, type=Second) for line in lines])
