"""Results that say more than a time: CPU time instead of wall time, memory, several moments."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks import calibration
from benchmarks.measure import Result

ROUNDS: Final = 15


@dataclass(frozen=True, slots=True)
class Detailed(Result):
    """A result with more figures, by name (the unit is in the name) or as a remark."""

    details: Mapping[str, float | str] = field(default_factory=dict)


def detailed(times: Sequence[float], **details: float | str) -> Detailed:
    """A result of nanoseconds that were measured one by one."""
    loops = min(calibration.loop() for _ in range(5))
    rounded = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in details.items()
    }
    return Detailed(
        statistics.median(times), min(times), len(times), len(times), loops, details=rounded
    )


def cpu_time(call: Callable[[], object], rounds: int = ROUNDS) -> Detailed:
    """The CPU time of a call (user and system), which other programs hardly change."""
    call()
    used: list[float] = []
    walls: list[float] = []
    for _ in range(rounds):
        wall, began = time.perf_counter_ns(), time.process_time_ns()
        call()
        used.append(time.process_time_ns() - began)
        walls.append(time.perf_counter_ns() - wall)
    return detailed(used, wall_median_ms=statistics.median(walls) / 1e6)


def process_clock(pid: int) -> int:
    """The clock of the CPU time of another process, for ``time.clock_gettime_ns``.

    The C library's ``clock_getcpuclockid``; its layout is part of the kernel's interface
    (``include/linux/posix-timers.h``).
    """
    return ~pid << 3 | 2


def remarks(results: Mapping[str, Result]) -> list[str]:
    """A line for each result that says more than its time."""
    lines = []
    for name, result in results.items():
        if isinstance(result, Detailed) and result.details:
            text = "   ".join(f"{key} {value}" for key, value in result.details.items())
            lines.append(f"{name:<26}{text}")
    return lines
