"""Results as a table for people and as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import log2
from typing import Any, Final

from benchmarks.kubelet_reference import ALONE, BESIDE, FIGURES, Figure
from benchmarks.measure import Result

HEADER: Final = (
    f"{'work':<26}{'median':>10}{'fastest':>10}{'kubelet: median':>17}{'fastest':>10}"
    f"{'ratio':>10}{'times as fast':>15}  kubelet"
)
_UNKNOWN: Final = "-"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ours to the kubelet's, by the calibration of either; less than 1 is faster than it."""

    value: float
    is_of_medians: bool
    """Where the kubelet's fastest batch is not on record; else of the fastest ones."""


def here(figure: Figure, nanoseconds: float, calibration_ns: float) -> float:
    """What took the kubelet so long would take it beside such a calibration loop."""
    return nanoseconds * calibration_ns / figure.run.calibration_ns


def ratio(name: str, result: Result) -> Ratio | None:
    """How long ours takes against the kubelet; None where its figure is not known."""
    figure = FIGURES.get(name)
    if figure is None:
        return None
    if figure.fastest_ns is not None:
        return Ratio(
            result.min_ns / here(figure, figure.fastest_ns, result.calibration_ns),
            is_of_medians=False,
        )
    if figure.median_ns is None:
        return None
    return Ratio(
        result.median_ns / here(figure, figure.median_ns, result.calibration_ns),
        is_of_medians=True,
    )


def row(name: str, result: Result) -> str:
    """One line of the table; the kubelet's times are those that were measured."""
    line = f"{name:<26}{duration(result.median_ns):>10}{duration(result.min_ns):>10}"
    figure, against = FIGURES.get(name), ratio(name, result)
    if figure is None or against is None:
        return line
    times = 1 / against.value
    return (
        f"{line}{_known(figure, figure.median_ns):>17}{_known(figure, figure.fastest_ns):>10}"
        f"{against.value:>10.2g}{f'{times:,.0f}' if times > 10 else f'{times:.1f}':>15}"
        f"  {figure.run.name}{', medians' if against.is_of_medians else ''}"
        f"{', slow' if figure.is_slow else ''}"
    )


def _known(figure: Figure, nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return _UNKNOWN
    return ("~" if figure.is_estimated else "") + duration(nanoseconds)


def legend(results: Mapping[str, Result]) -> list[str]:
    """What the columns are, under the table."""
    fastest = min(result.calibration_ns for result in results.values())
    lines = [
        "time per call; ratio: ours / kubelet's, fastest batches, corrected by calibration",
        f"calibration loop: {fastest / 1e6:.1f} ms here",
    ]
    figures = [FIGURES[name] for name in results if name in FIGURES]
    lines += [
        f"{run.name}: {run.code}; calibration loop {run.calibration_ns / 1e6:.1f} ms"
        for run in (ALONE, BESIDE)
        if any(figure.run is run for figure in figures)
    ]
    if any(figure.fastest_ns is None for figure in figures):
        lines.append("medians: the kubelet's fastest batch is not on record; ratio of the medians")
    if any(figure.is_slow for figure in figures):
        lines.append(
            "slow: those merges of that run that were taken again had come out 1.1 to 2 times too "
            "slow for the kubelet, so the ratio is too good"
        )
    if any(figure.is_estimated for figure in figures):
        lines.append("~ was not run: 255 times the merge of one provider less")
    return lines


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
    """``{name: {median_ns, min_ns, runs, batches, calibration_ns}}``.

    Where the kubelet's figure is known also ``kubelet_min_ns``, ``kubelet_median_ns`` (null where
    one is not on record), ``kubelet_calibration_ns``, ``ratio`` and ``ratio_of``, which is
    ``fastest`` or ``median``.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name, result in results.items():
        rows[name] = asdict(result)
        against, figure = ratio(name, result), FIGURES.get(name)
        if against is not None and figure is not None:
            rows[name] |= {
                "kubelet_min_ns": figure.fastest_ns,
                "kubelet_median_ns": figure.median_ns,
                "kubelet_calibration_ns": figure.run.calibration_ns,
                "ratio": against.value,
                "ratio_of": "median" if against.is_of_medians else "fastest",
            }
    return json.dumps(rows, indent=2) + "\n"
