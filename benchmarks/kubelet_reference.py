"""The kubelet's own speed on the same work, for the ratios.

Origin: the CPU manager's and topology manager's Go code, each call of which was timed in batches
beside the calibration loop.  There are two runs, of different minutes and machines of one kind
(2 cores, x86-64); a figure is only ever compared by the calibration of its own run.

A merge is the whole ``Policy.Merge``: the providers' hints filtered and flattened, all their
combinations tried, and the result judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

US: Final = 1_000
MS: Final = 1_000_000
S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Run:
    """When and how some figures were taken."""

    name: str
    """What the table calls it."""
    code: str
    calibration_ns: float
    """The calibration loop's fastest time in the same minutes."""


ALONE: Final = Run("alone", "Kubernetes 1.34, Go 1.24, nothing else running", 31.6 * MS)
BESIDE: Final = Run("beside", "Kubernetes 1.36.2, Go 1.26, in turn with Pinfold", 18.4 * MS)


@dataclass(frozen=True, slots=True)
class Figure:
    """What the kubelet took for one call, in nanoseconds; None where that is not on record."""

    run: Run
    fastest_ns: float | None
    """The fastest batch."""
    median_ns: float | None = None
    is_estimated: bool = False
    """Not run, for it takes the kubelet half an hour or more: 255 times the row before."""
    is_slow: bool = False
    """Too slow by an unknown factor, 1.1 to 2 in the rows that were taken again."""


def _alone(unit: int, fastest: float, median: float) -> Figure:
    return Figure(ALONE, fastest * unit, median * unit)


def _merge_alone(fastest: float, *, estimated: bool = False) -> Figure:
    return Figure(ALONE, fastest, is_estimated=estimated, is_slow=True)


def _beside(unit: int, fastest: float | None, median: float) -> Figure:
    return Figure(BESIDE, None if fastest is None else fastest * unit, median * unit)


_RANDOM: Final = {
    64: _beside(US, 296, 354),
    256: _beside(MS, 2.35, 2.66),
    512: _beside(MS, 6.06, 7.42),
}

FIGURES: Final[dict[str, Figure]] = {
    "allocate.packed.8": _alone(US, 11.5, 23),
    "allocate.packed.64": _beside(US, 146, 186),
    "allocate.packed.256": _beside(MS, 1.31, 1.89),
    "allocate.packed.512": _beside(MS, 3.18, 6.26),
    "allocate.packed.8.n1": _alone(US, 13.7, 33),
    "allocate.packed.64.n1": _alone(US, 219, 514),
    "allocate.packed.256.n1": _alone(MS, 2.74, 5.0),
    "allocate.packed.512.n1": _alone(MS, 11.6, 17.3),
    "allocate.packed.8.n2": _alone(US, 10.4, 22),
    "allocate.packed.64.n2": _alone(US, 159, 325),
    "allocate.packed.256.n2": _alone(MS, 1.60, 3.1),
    "allocate.packed.512.n2": _alone(MS, 5.98, 10.1),
    "allocate.packed.64.half": _alone(US, 197, 463),
    "allocate.packed.256.half": _alone(MS, 2.63, 5.3),
    "allocate.packed.512.half": _alone(MS, 15.4, 18.5),
    **{f"allocate.random.{cpus}": figure for cpus, figure in _RANDOM.items()},
    **{f"allocate.random.{cpus}.cold": figure for cpus, figure in _RANDOM.items()},
    **{f"allocate.random.{cpus}.built": figure for cpus, figure in _RANDOM.items()},
    "policy.8": _alone(US, 53, 94),
    "policy.64": _alone(US, 300, 560),
    "policy.256": _alone(MS, 2.93, 3.7),
    "policy.512": _alone(MS, 10.5, 18.5),
    "hints.64.numa1": _alone(US, 30, 54),
    "hints.64": _alone(US, 40, 81),
    "hints.64.numa4": _alone(US, 148, 273),
    "hints.64.numa8": _alone(MS, 2.27, 4.7),
    "hints.512": _alone(MS, 20.6, 27.6),
    "merge.4x2.single": _merge_alone(98 * US),
    "merge.4x4.single": _beside(MS, 7.51, 8.94),
    "merge.6x3.single": _beside(MS, 54.9, 83),
    "merge.8x1.single": _merge_alone(102 * US),
    "merge.8x2.single": _beside(MS, 10.9, 15.8),
    "merge.8x3.single": _merge_alone(10.2 * S),
    "merge.8x4.single": _merge_alone(1800 * S, estimated=True),
    "merge.4x4.disagree": _beside(MS, None, 10.7),
    "merge.6x3.disagree": _beside(MS, None, 82.6),
    "merge.8x2.disagree": _beside(MS, None, 14.0),
    "merge.4x3.short": _beside(US, 79, 113),
    "merge.8x2.short": _beside(US, 73, 129),
}
"""By the name of the workload.

Of the free sets and the hints by chance, and of those that disagree, only sizes and numbers are on
record: the lists of the benchmarks are others of the same kind.
"""
