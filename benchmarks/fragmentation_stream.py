"""A stream of pods for one node, of a public trace of virtual machines.

The files are those of the AzurePublicDataset V1 (Cortez et al., SOSP 2017; CC-BY 4.0) as the
authors of "Generating Complex, Realistic Cloud Workloads using Recurrent Neural Networks" (SOSP
2021) published them: lines of ``seconds kind,kind,|,kind``, the same with bins of lifetimes, and a
table of each.  Each virtual machine stands for a Guaranteed pod with as many exclusive CPUs.
"""

from __future__ import annotations

import lzma
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

PART: Final = "azure2017.v1.dev"
_LIFETIMES: Final = f"{PART}.c2100000"
_KINDS: Final = "azure2017.flav_map.txt"
_BINS: Final = "azure2017.duration_bins.txt"
_FOR_EVER: Final = 10.0**9


class Arrival(Struct, frozen=True):
    """A pod that comes; times are seconds of the trace."""

    number: int
    at: float
    cpus: int
    ends: float


def read_stream(folder: Path, share: float, seed: int) -> Iterator[Arrival]:
    """A share of the trace's arrivals, by chance from a seed.

    A bin of lifetimes is no time: one within it is drawn from the seed.  What was still there at
    the end of the trace stays.

    Raises:
        OSError: the trace is not in this folder.
    """
    chance = random.Random(seed)  # noqa: S311 - the same stream every time, no secret
    kinds = dict(_kinds(folder / _KINDS))
    bins = dict(_bins(folder / _BINS))
    number = 0
    for (at, kind), (_, life) in zip(
        _words(folder / f"{PART}.txt.xz"), _words(folder / f"{_LIFETIMES}.txt.xz"), strict=True
    ):
        # Both are drawn for all, so that another share has the same lifetimes.
        taken, drawn = chance.random() < share, chance.random()
        if not taken:
            continue
        low, high = bins.get(int(life[1:]), (_FOR_EVER, _FOR_EVER))
        lives = _FOR_EVER if life.startswith("C") else low + drawn * (high - low)
        number += 1
        yield Arrival(number, at + chance.random(), kinds[kind], at + max(lives, 1.0))


def _words(file: Path) -> Iterator[tuple[float, str]]:
    with lzma.open(file, "rt", encoding="ascii") as lines:
        for line in lines:
            at, _, what = line.strip().partition(" ")
            for word in what.split(","):
                if word and word != "|":
                    yield float(at), word


def _kinds(file: Path) -> Iterator[tuple[str, int]]:
    for line in file.read_text(encoding="ascii").splitlines():
        size, _, kind = line.partition(" ")
        yield kind, int(size.partition(",")[0])


def _bins(file: Path) -> Iterator[tuple[int, tuple[float, float]]]:
    for line in file.read_text(encoding="ascii").splitlines():
        number, low, high = line.split()
        yield int(number), (float(low), float(high))
