"""Virtual machines of one cloud region, 2017: each stands for a pod.

The files are those of the AzurePublicDataset V1 (Cortez et al., SOSP 2017; CC-BY 4.0) as the
authors of "Generating Complex, Realistic Cloud Workloads using Recurrent Neural Networks" (SOSP
2021) published them.  A line has the seconds of its end and what arrived since the line before:
``2100300 b,b,|,g``; another file has lifetimes at the same places: ``2100300 U0,U1,|,C36``.  What
becomes of it is in docs/reference/traces.md.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import zip_longest
from math import ceil, inf
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from pinfold.adapters.traces.cells import CellError, seconds
from pinfold.adapters.traces.files import damaged, numbered_lines, shown, trace_file
from pinfold.ports.arrivals import Arrival, PodSize, TraceError

PARTS: Final = {"dev": "c2100000", "test": "c2591400"}
"""Part -> the name of its lifetimes, which has the second at which they were looked at."""
_KINDS: Final = "azure2017.flav_map.txt"
_BINS: Final = "azure2017.duration_bins.txt"
_GRAIN: Final = 300.0
"""Seconds from one line to the next, and before the first one."""
_BATCHES: Final = "|"
"""Between two batches; one batch is of one tenant at one time."""
_MAX_BYTES: Final = 2**26
_GIB: Final = 2**30

_Size = PodSize | None
_Bin = tuple[float, float] | None
"""From how many seconds, and how many more it may be; None stands between two batches."""

_Meaning = TypeVar("_Meaning", _Size, _Bin)


class _Line(Struct, frozen=True):
    """What arrived within ``width`` seconds from ``start``."""

    start: float
    width: float
    sizes: list[_Size]
    bins: list[_Bin]


class Azure2017(Struct, frozen=True):
    """The arrivals of a part of the trace, in a folder with its files.

    Attributes:
        folder: where the files are, packed or not.
        part: one of :data:`PARTS`.
        share: of the arrivals; who is in a share is in each larger one, with the same times.
    """

    folder: str
    part: str = "test"
    share: float = 1.0

    def files(self) -> tuple[Path, Path, Path, Path]:
        """Its kinds, bins, arrivals and lifetimes.

        Raises:
            TraceError: one of them is missing, or there is no such part.
        """
        lifetimes = PARTS.get(self.part)
        if lifetimes is None:
            raise TraceError(f"azure2017 has no part {shown(self.part)}; it is dev or test")
        part = f"azure2017.v1.{self.part}"
        return (
            trace_file(self.folder, _KINDS),
            trace_file(self.folder, _BINS),
            trace_file(self.folder, f"{part}.txt"),
            trace_file(self.folder, f"{part}.{lifetimes}.txt"),
        )

    def arrivals(self, seed: int) -> Iterator[Arrival]:
        """Read the whole trace, then yield its arrivals.

        A moment is drawn for each batch, within the time of its line; a lifetime for each pod,
        within its bin.

        Raises:
            TraceError: a file is missing or damaged.
        """
        kinds, bins, arrived, lived = self.files()
        lines = read_lines(arrived, lived, read_kinds(kinds), read_bins(bins))
        return self._drawn(lines, seed)

    def _drawn(self, lines: list[_Line], seed: int) -> Iterator[Arrival]:
        moment, life, taken = (
            random.Random(f"{seed}/{purpose}").random  # noqa: S311 - the same every time, no secret
            for purpose in ("moments", "lifetimes", "share")
        )
        share, time_of = self.share, itemgetter(0)
        for line in lines:
            start, width = line.start, line.width
            at = start + width * moment()
            found = []
            for size, bin_ in zip(line.sizes, line.bins, strict=True):
                if size is None or bin_ is None:
                    at = start + width * moment()
                    continue
                # Both are drawn for all, so that another share has the same lifetimes.
                lifetime = bin_[0] + bin_[1] * (1.0 - life())
                if taken() < share:
                    found.append(Arrival(at, lifetime, size))
            found.sort(key=time_of)
            yield from found


def read_kinds(path: Path) -> Mapping[str, PodSize]:
    """Kind -> its size, of lines such as ``2,3.5 g``: CPUs, GiB and the kind.

    Raises:
        TraceError: the file is damaged.
    """
    found: dict[str, PodSize] = {}
    for number, text in numbered_lines(path, _MAX_BYTES):
        size, _, kind = text.partition(" ")
        cpus, _, gib = size.partition(",")
        try:
            # Both are decimal numbers, as times are.
            seconds(cpus), seconds(gib)
            milli, memory = ceil(Fraction(cpus) * 1000), ceil(Fraction(gib) * _GIB)
        except (CellError, ValueError):
            raise damaged(path, number, f"{shown(text)}: no CPUs, GiB and kind") from None
        if not kind or _BATCHES in kind or "," in kind or kind in found:
            raise damaged(path, number, f"{shown(kind)} is no kind, or there twice")
        found[kind] = PodSize(milli, memory)
    return found


def read_bins(path: Path) -> Mapping[str, _Bin]:
    """Word -> its bin: ``U7`` has lived for a time in bin 7, ``C7`` was there at the end.

    Who was there at the end stays for ever, as does who lived longer than the last bin.

    Raises:
        TraceError: the file is damaged.
    """
    found: dict[str, _Bin] = {}
    last = 0
    for number, text in numbered_lines(path, _MAX_BYTES):
        try:
            name, low, high = text.split(" ")
            if name != str(number - 1) or seconds(low) > seconds(high):
                raise CellError(name)
        except ValueError:
            what = f"{shown(text)}: not the number of the bin from 0, from and to which second"
            raise damaged(path, number, what) from None
        found[f"U{name}"] = seconds(low), seconds(high) - seconds(low)
        last = number
    for bin_ in range(last + 1):
        found[f"C{bin_}"] = inf, 0.0
    found[f"U{last}"] = inf, 0.0
    return found


def read_lines(
    arrived: Path, lived: Path, kinds: Mapping[str, PodSize], bins: Mapping[str, _Bin]
) -> list[_Line]:
    """Both files of a part, line by line.

    Raises:
        TraceError: either is damaged, or they do not have the same places.
    """
    size_of = {**kinds, _BATCHES: None}
    bin_of = {**bins, _BATCHES: None}
    found: list[_Line] = []
    first, before = 0.0, 0.0
    nothing = (0, "")
    both = (numbered_lines(path, _MAX_BYTES) for path in (arrived, lived))
    for (number, what), (ended, life) in zip_longest(*both, fillvalue=nothing):
        if not number or not ended:
            which, other = (arrived, lived) if ended else (lived, arrived)
            raise damaged(which, len(found) + 1, f"missing; {other.name} has it")
        time, sizes = _words(arrived, number, what, size_of, _KINDS)
        other_time, lives = _words(lived, number, life, bin_of, _BINS)
        if not found:
            first = before = time - _GRAIN
        if time <= before:
            raise damaged(arrived, number, "not later than the line before")
        if time != other_time or [x is None for x in sizes] != [x is None for x in lives]:
            raise damaged(lived, number, f"not the same places as in {arrived.name}")
        found.append(_Line(before - first, time - before, sizes, lives))
        before = time
    return found


def _words(
    path: Path, number: int, text: str, meanings: Mapping[str, _Meaning], listed: str
) -> tuple[float, list[_Meaning]]:
    time, _, words = text.partition(" ")
    try:
        return seconds(time), [meanings[word] for word in words.split(",")] if words else []
    except CellError as error:
        raise damaged(path, number, f"{error}; is the line torn?") from None
    except KeyError as error:
        what = f"{shown(str(error.args[0]))} is not in {listed}; is the line torn?"
        raise damaged(path, number, what) from None
