"""Timing: batches of calls, each followed by one run of the calibration loop.

The garbage collector stays on, as it is in the program.  Batch and loop alternate, so that both
see the machine in the same moods.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks import calibration

BATCHES: Final = 25
LEAST_BATCHES: Final = 5
BATCH_NS: Final = 10_000_000
BUDGET_NS: Final = 4_000_000_000
"""About how long one workload may take, unless ``LEAST_BATCHES`` take longer."""


@dataclass(frozen=True, slots=True)
class Result:
    """What one workload took: nanoseconds per call, over batches of calls."""

    median_ns: float
    min_ns: float
    runs: int
    batches: int
    calibration_ns: int


def measure(call: Callable[[], object]) -> Result:
    """Time a call that costs microseconds to seconds."""
    start = time.perf_counter_ns()
    call()
    first = max(1, time.perf_counter_ns() - start)
    calls = max(1, BATCH_NS // first)

    def batch() -> float:
        started = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return (time.perf_counter_ns() - started) / calls

    return _collect(batch, calls, first * calls)


def measure_own_clock(call: Callable[[], int]) -> Result:
    """Collect what a call measures itself: it returns nanoseconds (of a process it started)."""
    start = time.perf_counter_ns()
    call()
    return _collect(call, 1, time.perf_counter_ns() - start)


def _collect(batch: Callable[[], float], calls: int, expected_ns: int) -> Result:
    count = max(LEAST_BATCHES, min(BATCHES, BUDGET_NS // (expected_ns + calibration.REFERENCE_NS)))
    times: list[float] = []
    loops: list[int] = []
    for _ in range(count):
        times.append(batch())
        loops.append(calibration.loop())
    while len(loops) < BATCHES:
        loops.append(calibration.loop())
    return Result(statistics.median(times), min(times), calls * count, count, min(loops))
