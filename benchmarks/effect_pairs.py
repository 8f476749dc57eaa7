"""Ratios of runs in pairs: their median, and an interval that it is in."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Final

CONFIDENCE: Final = 0.95
NARROW: Final = 1.1
"""An interval whose ends are not further apart than this factor says enough, wherever it is."""


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of some values, and the interval that has the median of all that could be.

    ``confidence`` is how surely, 0 to 1: below :data:`CONFIDENCE` there are too few values.
    """

    median: float
    low: float
    high: float
    confidence: float

    @property
    def is_decided(self) -> bool:
        """Whether more values would change little: 1 is not in it, or it is narrow."""
        if self.confidence < CONFIDENCE:
            return False
        return not self.low <= 1 <= self.high or self.high <= NARROW * self.low

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def median_interval(values: Sequence[float]) -> Interval:
    """The interval between two of the values in order, the narrowest that is sure enough.

    Each value is above the median of all that could be as likely as below, whatever they are like
    otherwise; so the count of those below is binomial (the sign test).

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("there is no value")
    ordered, count = sorted(values), len(values)
    rank, sure = 0, 1 - 2 * _below(0, count)
    while (inner := 1 - 2 * _below(rank + 1, count)) >= CONFIDENCE and rank + 1 < count // 2:
        rank, sure = rank + 1, inner
    return Interval(
        statistics.median(ordered), ordered[rank], ordered[count - 1 - rank], max(sure, 0.0)
    )


def paired_ratios(of: Sequence[float], to: Sequence[float]) -> Interval:
    """The ratio of runs to those of the same turns; runs without a figure are left out."""
    return median_interval([a / b for a, b in zip(of, to, strict=True) if b] or [0.0])


def _below(most: int, count: int) -> float:
    """How likely at most so many of ``count`` values are below the median."""
    return float(sum(comb(count, k) for k in range(most + 1)) / 2**count)
