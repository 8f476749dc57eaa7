"""Results that say more than a time: CPU time instead of wall time, memory, several moments."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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


def busy_seconds(cpus: Iterable[int] = ()) -> float:
    """Seconds of CPU time that the whole machine has used, or some of its CPUs."""
    names = {f"cpu{cpu}" for cpu in cpus} or {"cpu"}
    found = 0.0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *words = line.split()
        if name in names:
            user, nice, system, _idle, _wait, irq, softirq = (int(word) for word in words[:7])
            found += (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    return found


def stolen_seconds(cpus: Iterable[int] = ()) -> float:
    """Seconds that a hypervisor has taken from the machine, or from some of its CPUs."""
    names = {f"cpu{cpu}" for cpu in cpus} or {"cpu"}
    lines = map(str.split, Path("/proc/stat").read_text(encoding="ascii").splitlines())
    ticks = sum(int(words[8]) for words in lines if words[0] in names)
    return ticks / os.sysconf("SC_CLK_TCK")


def used_seconds(pids: Iterable[int]) -> float:
    """Seconds of CPU time that some processes have used."""
    return sum(time.clock_gettime(process_clock(pid)) for pid in pids)


def remarks(results: Mapping[str, Result]) -> list[str]:
    """A line for each result that says more than its time."""
    lines = []
    for name, result in results.items():
        if isinstance(result, Detailed) and result.details:
            text = "   ".join(f"{key} {value}" for key, value in result.details.items())
            lines.append(f"{name:<26}{text}")
    return lines
