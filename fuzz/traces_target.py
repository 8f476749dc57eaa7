"""Files of traces: whatever is read is a stream of pods in order, or one error with its place."""

from __future__ import annotations

import gzip
import lzma
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final

from tests.scenes.small_traces import ARRIVED, BINS, KINDS, LIVED, PODS

from fuzz.engine import Target
from pinfold.adapters.traces.azure2017 import Azure2017
from pinfold.adapters.traces.openb import OpenB
from pinfold.adapters.traces.table import ArrivalTable
from pinfold.ports.arrivals import ArrivalSource, TraceError

_NAMES: Final = (
    "azure2017.v1.test.txt",
    "azure2017.v1.test.c2591400.txt",
    "azure2017.flav_map.txt",
    "azure2017.duration_bins.txt",
)
_BETWEEN: Final = b"====\n"
"""Between the files of azure2017, which are one input."""
_LOOKED_AT: Final = 1000
_MOST: Final = 2**63 - 1
_WORDS: Final = (
    *b"""at, lifetime, cpu, memory, count, qos, devices inf nan -1 1e99 1e308 0.5 1.5h 7d 500ms
    ,,, 500m 4Gi 16E Guaranteed BestEffort a.b/gpu=1 ;a.b/nic=2 "" LS BE 1000, U0 C1 U3 ,|, 300
    2100000 99999999999999999999""".split(),
    b"\0",
    b"\r",
    b'"',
    b"\x1f\x8b",
    b"\xfd7zXZ\0",
    b"\xef\xbb\xbf",
    _BETWEEN,
)
_TABLES: Final = (
    b"at,lifetime,cpu,memory\n0,inf,2,4Gi\n",
    b"at,lifetime,cpu,memory,count,qos,devices\n9,1.5h,500m,1Mi,3,Guaranteed,a.b/c=1;a.b/d=2\n",
    b"cpu,memory,at,lifetime\r\n1,1,2m,7d\r\n1,1,60,0\r\n",
)


def run_azure2017(data: bytes) -> None:
    """The four files of a part."""

    def write(folder: Path) -> ArrivalSource:
        for name, part in zip(_NAMES, data.split(_BETWEEN, 3), strict=False):
            (folder / name).write_bytes(part)
        return Azure2017(str(folder))

    _read(write)


def run_openb(data: bytes) -> None:
    """The table of the pods of openb."""

    def write(folder: Path) -> ArrivalSource:
        (folder / "openb_pods.csv").write_bytes(data)
        return OpenB(str(folder), 0.9)

    _read(write)


def run_arrival_table(data: bytes) -> None:
    """A table of one's own, packed or not."""

    def write(folder: Path) -> ArrivalSource:
        (folder / "arrivals.csv").write_bytes(data)
        return ArrivalTable(str(folder / "arrivals.csv"))

    _read(write)


def _read(write: Callable[[Path], ArrivalSource]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = write(Path(folder))
        try:
            stream = source.arrivals(1)
        except TraceError as error:
            _hold(str(error).startswith(folder), "an error that does not name the file")
            _hold(str(error).isprintable(), "an error that moves the cursor")
            return
        found = list(islice(stream, _LOOKED_AT))
        now = 0.0
        for one in found:
            _hold(now <= one.at, "not in the order of time, or before 0")
            now = one.at
            _hold(one.lifetime >= 0, "a lifetime that is none")
            _hold(0 <= one.size.cpu_milli <= _MOST, "CPUs that nobody can ask for")
            _hold(0 <= one.size.memory <= _MOST, "memory that nobody can ask for")
            _hold(all(count >= 0 for _, count in one.size.extended), "devices below none")
        _hold(list(islice(source.arrivals(1), _LOOKED_AT)) == found, "another stream by one seed")


def _hold(fact: object, text: str) -> None:
    if not fact:
        raise AssertionError(text)


def _azure2017() -> list[bytes]:
    texts = (ARRIVED, LIVED, KINDS, BINS)
    return [_BETWEEN.join(text.encode() for text in texts)]


def _tables() -> list[bytes]:
    return [*_TABLES, gzip.compress(_TABLES[1]), lzma.compress(_TABLES[0])]


TRACES_TARGETS: Final = (
    Target("azure2017", run_azure2017, _azure2017, _WORDS),
    Target("openb", run_openb, lambda: [PODS.encode()], _WORDS),
    Target("arrivaltable", run_arrival_table, _tables, _WORDS),
)
