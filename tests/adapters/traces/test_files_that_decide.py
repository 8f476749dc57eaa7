"""The files of a source: all that it reads, so that what was found with them can be told apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pinfold.adapters.traces.azure2017 import Azure2017
from pinfold.adapters.traces.openb import OpenB
from pinfold.adapters.traces.table import ArrivalTable
from pinfold.ports.arrivals import ArrivalSource, OfFiles, TraceError
from tests.scenes.small_traces import azure2017, openb

TABLE = "at,lifetime,cpu,memory\n0,10,1,1Gi\n"


def _table(folder: Path) -> ArrivalSource:
    (folder / "pods.csv").write_text(TABLE)
    return ArrivalTable(str(folder / "pods.csv"))


SOURCES: list[Callable[[Path], ArrivalSource]] = [
    lambda folder: Azure2017(azure2017(folder)),
    lambda folder: OpenB(openb(folder)),
    _table,
]


@pytest.mark.parametrize("made", SOURCES, ids=["azure2017", "openb", "table"])
def test_a_source_names_each_file_without_which_it_has_no_arrivals(
    made: Callable[[Path], ArrivalSource], tmp_path: Path
) -> None:
    source = made(tmp_path)
    assert isinstance(source, OfFiles)
    files = source.files()
    assert list(source.arrivals(1))
    for path in files:
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(TraceError):
            list(source.arrivals(1))
        path.write_bytes(content)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path not in files:
            path.unlink()
    assert list(source.arrivals(1)), "it reads nothing else"
