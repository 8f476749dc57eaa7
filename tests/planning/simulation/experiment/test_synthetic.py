"""Arrivals by chance are what was asked for: rate, wave, mix and lifetimes.

Seeds are fixed, and each bound is that of four standard deviations or of an exact integral: who
draws from another law is beyond it.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise, takewhile
from math import cos, exp, log, pi, sqrt
from statistics import fmean, pvariance
from typing import Literal

import pytest
from msgspec.structs import replace

from pinfold.planning.simulation.experiment.synthetic import (
    LifetimeLaw,
    RateWave,
    SyntheticArrivals,
    WeightedSize,
)
from pinfold.ports.arrivals import Arrival, ArrivalSource, PodSize

SMALL, MIDDLE, BIG = PodSize(1000, 2**30), PodSize(2000, 2**32), PodSize(16000, 2**36)
HOUR, DAY = 3600.0, 86400.0
PLAIN = SyntheticArrivals(
    720.0,
    (WeightedSize(6, SMALL), WeightedSize(3, MIDDLE), WeightedSize(1, BIG)),
    LifetimeLaw("exponential", 1800.0),
)
WAVE = replace(PLAIN, wave=RateWave(DAY, 0.8))


def until(source: ArrivalSource, end: float, seed: int = 1) -> list[Arrival]:
    return list(takewhile(lambda one: one.at < end, source.arrivals(seed)))


@pytest.mark.parametrize("source", [PLAIN, WAVE], ids=["even", "wave"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_as_many_come_as_the_rate_says(source: SyntheticArrivals, seed: int) -> None:
    expected = 720 * 24 * 4
    count = len(until(source, 4 * DAY, seed))
    assert abs(count - expected) < 4 * sqrt(expected)


def test_it_is_a_poisson_process() -> None:
    found = until(PLAIN, 4 * DAY)
    counts = Counter(int(one.at // 60) for one in found)
    minutes = [counts[minute] for minute in range(4 * 24 * 60)]
    # The variance of a Poisson count is its mean; the ratio of 5,760 of them is within 4 * 0.0186.
    assert pvariance(minutes) / fmean(minutes) == pytest.approx(1, abs=0.075)
    gaps = [later.at - sooner.at for sooner, later in pairwise(found)]
    assert min(gaps) >= 0
    for seconds in (1.0, 5.0, 20.0):
        share, expected = fmean(gap > seconds for gap in gaps), exp(-seconds / 5)
        assert abs(share - expected) < 4 * sqrt(expected * (1 - expected) / len(gaps))


def test_the_wave_is_where_it_should_be() -> None:
    days = 10
    counts = Counter(int(one.at % DAY // HOUR) for one in until(WAVE, days * DAY))
    for hour in range(24):
        of_wave = 0.8 * 12 / pi * (cos(2 * pi * hour / 24) - cos(2 * pi * (hour + 1) / 24))
        expected = days * 720 * (1 + of_wave)
        assert abs(counts[hour] - expected) < 4 * sqrt(expected)
    assert counts[6] > 6 * counts[18], "it begins at the mean and rises"


def test_a_wave_may_have_all_of_the_rate_or_nothing() -> None:
    whole = until(replace(PLAIN, wave=RateWave(HOUR, 1.0)), DAY)
    assert len([one for one in whole if abs(one.at % HOUR - 2700) < 60]) < 10
    assert RateWave(HOUR, 0.0).times_mean(1234.5) == 1.0


def test_the_mix_is_by_weight() -> None:
    found = list(islice(PLAIN.arrivals(1), 20_000))
    counts = Counter(one.size for one in found)
    for size, share in ((SMALL, 0.6), (MIDDLE, 0.3), (BIG, 0.1)):
        assert abs(counts[size] - 20_000 * share) < 4 * sqrt(20_000 * share * (1 - share))
    assert len({id(one.size) for one in found}) == 3


@pytest.mark.parametrize(
    ("law", "at"),
    [
        (LifetimeLaw("fixed", 60), {0.0: 60, 0.5: 60, 0.99: 60}),
        (LifetimeLaw("exponential", 60), {0.0: 0, 0.5: 60 * log(2), 0.99: 60 * log(100)}),
        (LifetimeLaw("lognormal", 60), {0.5: 60 * exp(-0.5), 0.8413447460685429: 60 * exp(0.5)}),
        (LifetimeLaw("lognormal", 60, 2), {0.5: 60 * exp(-2), 0.8413447460685429: 60}),
        (LifetimeLaw("pareto", 60), {0.0: 20, 0.875: 80}),
        (LifetimeLaw("pareto", 60, 2), {0.0: 30, 0.75: 60, 0.99: 300}),
    ],
    ids=lambda one: f"{one.distribution}-{one.shape}" if isinstance(one, LifetimeLaw) else "",
)
def test_lifetimes_are_quantiles_of_their_law(law: LifetimeLaw, at: dict[float, float]) -> None:
    quantile = law.quantile()
    assert {share: quantile(share) for share in at} == pytest.approx(at, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("distribution", "shape", "within"),
    [
        ("fixed", None, 1e-9),
        ("exponential", None, 1e-4),
        ("lognormal", None, 1e-3),
        ("lognormal", 0.3, 1e-4),
        ("pareto", 3.0, 1e-3),
        ("pareto", None, 0.02),
    ],
)
def test_the_mean_of_each_law_is_the_one_asked_for(
    distribution: Literal["exponential", "fixed", "lognormal", "pareto"],
    shape: float | None,
    within: float,
) -> None:
    quantile = LifetimeLaw(distribution, 7200, shape).quantile()
    shares = 200_000
    mean = fmean(quantile((share + 0.5) / shares) for share in range(shares))
    assert mean == pytest.approx(7200, rel=within)


def test_lifetimes_are_drawn_from_their_law() -> None:
    lifetimes = [one.lifetime for one in islice(PLAIN.arrivals(1), 20_000)]
    assert abs(fmean(lifetimes) - 1800) < 4 * 1800 / sqrt(20_000)
    for share in (0.1, 0.5, 0.9):
        below = fmean(one < PLAIN.lifetimes.quantile()(share) for one in lifetimes)
        assert abs(below - share) < 4 * sqrt(share * (1 - share) / 20_000)


def test_one_law_changes_nothing_of_the_others() -> None:
    longer = replace(PLAIN, lifetimes=LifetimeLaw("lognormal", 9e9))
    both = [list(islice(one.arrivals(1), 100)) for one in (PLAIN, longer)]
    assert [(one.at, one.size) for one in both[0]] == [(one.at, one.size) for one in both[1]]
    same = replace(PLAIN, sizes=(WeightedSize(1, SMALL),))
    times = [(one.at, one.lifetime) for one in islice(same.arrivals(1), 100)]
    assert times == [(one.at, one.lifetime) for one in both[0]]


def test_the_same_seed_is_the_same_stream_in_any_process() -> None:
    once = list(islice(WAVE.arrivals(3), 50))
    assert list(islice(WAVE.arrivals(4), 50)) != once
    assert list(islice(WAVE.arrivals(3), 50)) == once
    program = (
        "import pickle, sys\nfrom itertools import islice\n"
        "source = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "print([(a.at, a.lifetime, a.size.cpu_milli) for a in islice(source.arrivals(3), 50)])"
    )
    other = subprocess.run(
        [sys.executable, "-c", program, pickle.dumps(WAVE).hex()],
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == str([(a.at, a.lifetime, a.size.cpu_milli) for a in once])


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_what_there_cannot_be_is_refused(value: float) -> None:
    for make, name in (
        (lambda: replace(PLAIN, per_hour=value), "perHour must be above 0 and at most 1e"),
        (lambda: replace(PLAIN, sizes=(WeightedSize(value, BIG),)), "weight must be above 0, not"),
        (lambda: LifetimeLaw("fixed", value), "mean must be above 0, not"),
        (lambda: LifetimeLaw("lognormal", 1, value), "shape must be above 0 and at most 10, not"),
        (lambda: LifetimeLaw("pareto", 2, value), "shape must be above 0, not"),
        (lambda: RateWave(value), "period must be above 0, not"),
        (lambda: RateWave(1, value - 1.5), "amplitude must be from 0 to 1, not"),
    ):
        with pytest.raises(ValueError, match=name):
            make()


def test_laws_without_a_mean_or_a_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="shape must be above 1, not 1: else there is no mean"):
        LifetimeLaw("pareto", 60, 1.0)
    with pytest.raises(ValueError, match="shape is of lognormal and pareto only, not of fixed"):
        LifetimeLaw("fixed", 60, 1.0)
    with pytest.raises(ValueError, match="sum of all weights must be above 0, not 0"):
        replace(PLAIN, sizes=())
    with pytest.raises(ValueError, match="sum of all weights must be above 0, not inf"):
        replace(PLAIN, sizes=(WeightedSize(1e308, BIG),) * 2)
