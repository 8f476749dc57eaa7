"""A short history of counters: what was read when, as long as it is the same count.

Counters are kept and not rates, so a rate over any window is exact: the newest less an older one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final, Generic, TypeVar

from msgspec import Struct

INTERVALS: Final = 60
"""Intervals between readings that are remembered."""

_T = TypeVar("_T")


class Sample(Struct, Generic[_T], frozen=True):
    """What was read ``at`` a moment, in seconds of a clock that counts while the machine runs."""

    at: float
    value: _T


class History(Generic[_T]):
    """The newest samples of something that only grows.

    It begins anew where ``continues`` says that a value does not go on from the one before it (a
    cgroup made anew, a counter that has gone back), and where the clock has not gone on: no rate
    is made of what does not belong together.
    """

    def __init__(self, continues: Callable[[_T, _T], bool], intervals: int = INTERVALS) -> None:
        self._continues = continues
        self._samples: deque[Sample[_T]] = deque(maxlen=intervals + 1)

    def add(self, at: float, value: _T) -> None:
        """Take a sample that is newer than all others."""
        if self._samples:
            last = self._samples[-1]
            if at <= last.at or not self._continues(last.value, value):
                self._samples.clear()
        self._samples.append(Sample(at, value))

    @property
    def newest(self) -> Sample[_T] | None:
        """The last sample; None before the first."""
        return self._samples[-1] if self._samples else None

    def span(self, seconds: float = 0.0) -> tuple[Sample[_T], Sample[_T]] | None:
        """The sample that is nearest to so many seconds older than the newest, and the newest.

        With 0 it is the last interval; less than was asked for where there is no more.  None while
        there is only one.
        """
        samples = self._samples
        if len(samples) <= 1:
            return None
        newest, older = samples[-1], samples[-2]
        # Asked of hundreds each second, mostly for the last interval.
        if seconds > newest.at - older.at:
            wanted = newest.at - seconds
            at = bisect_left(samples, wanted, hi=len(samples) - 2, key=_moment)
            older = samples[at]
            if at and wanted - samples[at - 1].at <= older.at - wanted:
                older = samples[at - 1]
        return older, newest

    def steps(self) -> Iterator[tuple[Sample[_T], Sample[_T]]]:
        """Every interval, the oldest first."""
        return pairwise(self._samples)


def _moment(sample: Sample[_T]) -> float:
    return sample.at
