"""Arrivals by chance: a Poisson process whose rate may rise and fall, a mix of sizes, lifetimes.

Whatever is drawn is a quantile of a number between 0 and 1, one number for each pod and purpose.
So the same seed gives the same pods everywhere, and another law of lifetimes changes nothing else.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from math import exp, inf, isfinite, log, log1p, pi, sin
from statistics import NormalDist
from typing import Final, Literal

from msgspec import Struct

from pinfold.ports.arrivals import Arrival, PodSize

MAX_PER_HOUR: Final = 1e9
MAX_SIGMA: Final = 10.0
"""Beyond it nearly all pods end at once, and the mean is that of pods that never come."""
_SIGMA: Final = 1.0
_ALPHA: Final = 1.5
_NORMAL: Final = NormalDist()
_LEAST: Final = 2.0**-54
"""In place of 0, which a normal distribution never draws."""


class LifetimeLaw(Struct, frozen=True):
    """How long pods run.

    Attributes:
        distribution: its name.
        mean: seconds.
        shape: lognormal: sigma (1), at most 10; pareto: alpha (1.5), above 1; others have none.

    Raises:
        ValueError: a mean or a shape that there cannot be.
    """

    distribution: Literal["exponential", "fixed", "lognormal", "pareto"]
    mean: float
    shape: float | None = None

    def __post_init__(self) -> None:
        _positive("mean", self.mean, inf)
        if self.shape is None:
            return
        if self.distribution == "lognormal":
            _positive("shape", self.shape, MAX_SIGMA)
        elif self.distribution == "pareto":
            _positive("shape", self.shape, inf)
            if self.shape <= 1:
                raise ValueError(
                    f"shape must be above 1, not {self.shape:g}: else there is no mean"
                )
        else:
            raise ValueError(f"shape is of lognormal and pareto only, not of {self.distribution}")

    def quantile(self) -> Callable[[float], float]:
        """The function from a number in [0, 1) to the lifetime below which that share is."""
        mean = self.mean
        if self.distribution == "fixed":
            return lambda _: mean
        if self.distribution == "exponential":
            return lambda share: -mean * log1p(-share)
        if self.distribution == "pareto":
            alpha = _ALPHA if self.shape is None else self.shape
            least, power = mean * (alpha - 1) / alpha, -1 / alpha
            return lambda share: least * (1 - share) ** power
        sigma = _SIGMA if self.shape is None else self.shape
        middle, normal = log(mean) - sigma * sigma / 2, _NORMAL.inv_cdf
        return lambda share: exp(middle + sigma * normal(share or _LEAST))


class RateWave(Struct, frozen=True):
    """A rate that rises and falls as a sine does, and begins at its mean, rising.

    Attributes:
        period: seconds.
        amplitude: 0.5: between half and one and a half times the mean.

    Raises:
        ValueError: there cannot be such a wave.
    """

    period: float = 86400.0
    amplitude: float = 0.5

    def __post_init__(self) -> None:
        _positive("period", self.period, inf)
        if not 0 <= self.amplitude <= 1:
            raise ValueError(f"amplitude must be from 0 to 1, not {self.amplitude:g}")

    def times_mean(self, at: float) -> float:
        """The rate at a time, as a multiple of the mean."""
        return 1 + self.amplitude * sin(2 * pi * at / self.period)


class WeightedSize(Struct, frozen=True):
    """A size, and how often there is one of it in relation to the others."""

    weight: float
    size: PodSize


class SyntheticArrivals(Struct, frozen=True):
    """Pods by chance, without an end: whoever reads them has to stop.

    Attributes:
        per_hour: the mean rate, of all pods.
        sizes: at least one.
        lifetimes: their law.
        wave: None: the rate is always the same.

    Raises:
        ValueError: a rate or weights that there cannot be.
    """

    per_hour: float
    sizes: tuple[WeightedSize, ...]
    lifetimes: LifetimeLaw
    wave: RateWave | None = None

    def __post_init__(self) -> None:
        _positive("perHour", self.per_hour, MAX_PER_HOUR)
        for one in self.sizes:
            _positive("weight", one.weight, inf)
        _positive("the sum of all weights", sum(one.weight for one in self.sizes), inf)

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """Yield pods for ever, in the order of their time."""
        life, which = (_chance(seed, purpose) for purpose in ("lifetimes", "sizes"))
        quantile = self.lifetimes.quantile()
        *borders, total = accumulate(one.weight for one in self.sizes)
        sizes = [one.size for one in self.sizes]
        for at in self._moments(seed):
            size = sizes[bisect_right(borders, which() * total)]
            yield Arrival(at, quantile(life()), size)

    def _moments(self, seed: int) -> Iterator[float]:
        """The moments of the process; a wave's are what is left of ones at its highest rate."""
        gap, kept = (_chance(seed, purpose) for purpose in ("moments", "wave"))
        wave, peak = self.wave, self.per_hour / 3600
        if wave is not None:
            peak *= 1 + wave.amplitude
        at = 0.0
        while True:
            at -= log1p(-gap()) / peak
            if wave is None or kept() * (1 + wave.amplitude) < wave.times_mean(at):
                yield at


def _chance(seed: int, purpose: str) -> Callable[[], float]:
    return random.Random(f"{seed}/{purpose}").random  # noqa: S311 - the same every time, no secret


def _positive(name: str, value: float, most: float) -> None:
    if not (0 < value <= most and isfinite(value)):
        limit = f" and at most {most:g}" if isfinite(most) else ""
        raise ValueError(f"{name} must be above 0{limit}, not {value:g}")
