"""Results as a table for people and as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import pairwise
from math import log2
from typing import Any

from benchmarks.calibration import REFERENCE_NS
from benchmarks.kubelet_reference import ESTIMATED, FASTEST_NS
from benchmarks.measure import Result

HEADER = (
    f"{'work':<26}{'median':>11}{'fastest':>11}{'kubelet':>11}{'ratio':>10}{'times faster':>13}"
)


def ratio(name: str, result: Result) -> float | None:
    """How long ours takes against the kubelet (fastest batches, corrected by calibration)."""
    if name not in FASTEST_NS:
        return None
    return (result.min_ns / FASTEST_NS[name]) * (REFERENCE_NS / result.calibration_ns)


def row(name: str, result: Result) -> str:
    """One line of the table."""
    line = f"{name:<26}{duration(result.median_ns):>11}{duration(result.min_ns):>11}"
    against = ratio(name, result)
    if against is None:
        return line
    kubelet = ("~" if name in ESTIMATED else "") + duration(FASTEST_NS[name])
    faster = f"{1 / against:,.0f}" if against < 0.1 else f"{1 / against:.1f}"
    return f"{line}{kubelet:>11}{against:>10.2g}{faster:>13}"


def duration(nanoseconds: float) -> str:
    """Three digits and a unit: ``1.67 ms``."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size:
            value = nanoseconds / size
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:#.3g} {unit}"
    return f"{nanoseconds:.0f} ns"


def growth(results: Mapping[str, Result]) -> list[str]:
    """Cost against size: the exponent from each size to the next (1 is linear)."""
    lines: list[str] = []
    for family in ("allocate.packed", "allocate.distributed", "hints", "policy"):
        points = series(results, family)
        steps = [f"{a}-{b}: {log2(y / x) / log2(b / a):.2f}" for (a, x), (b, y) in pairwise(points)]
        if steps:
            lines.append(f"{family:<26}" + "   ".join(steps))
    return lines


def series(results: Mapping[str, Result], family: str) -> list[tuple[int, float]]:
    """``(CPUs, median ns)`` of the results that are named ``family.N``."""
    found = [
        (int(name.removeprefix(family + ".")), result.median_ns)
        for name, result in results.items()
        if name.startswith(family + ".") and name.removeprefix(family + ".").isdigit()
    ]
    return sorted(found)


def as_json(results: Mapping[str, Result]) -> str:
    """``{name: {median_ns, min_ns, runs, batches, calibration_ns, kubelet_min_ns, ratio}}``."""
    rows: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        rows[name] = asdict(result)
        against = ratio(name, result)
        if against is not None:
            rows[name] |= {"kubelet_min_ns": FASTEST_NS[name], "ratio": against}
    return json.dumps(rows, indent=2) + "\n"
