"""Arrivals of a CSV: its columns, and what is refused."""

from __future__ import annotations

import gzip
import lzma
import pickle
import re
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinfold.adapters.traces import table
from pinfold.adapters.traces.files import numbered_lines
from pinfold.adapters.traces.table import ArrivalTable
from pinfold.core.pod.pod import QOSClass
from pinfold.ports.arrivals import Arrival, ArrivalSource, PodSize, TraceError
from tests.roots import ROOT


def read(folder: Path, text: str | bytes) -> list[Arrival]:
    file = folder / "arrivals.csv"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    source: ArrivalSource = ArrivalTable(str(file))
    assert pickle.loads(pickle.dumps(source)) == source  # noqa: S301 - our own bytes
    found = list(source.arrivals(1))
    assert list(source.arrivals(2)) == found, "nothing is drawn"
    return found


def test_four_columns_are_enough(tmp_path: Path) -> None:
    small = PodSize(500, 2**20)
    assert read(tmp_path, "at,lifetime,cpu,memory\n0,10,500m,1Mi\n1.5,inf,500m,1Mi\n") == [
        Arrival(0, 10, small),
        Arrival(1.5, inf, small),
    ]


def test_all_columns_in_any_order(tmp_path: Path) -> None:
    text = (
        "devices, qos, memory, cpu, count, lifetime, at\n"
        "a.b/nic=1;a.b/gpu=8,Guaranteed,1.5Gi,2,2,1.5h,0\n"
        ",,0,0,,500ms,1m\n"
    )
    big = PodSize(2000, 3 * 2**29, (("a.b/gpu", 8), ("a.b/nic", 1)), QOSClass.GUARANTEED)
    found = read(tmp_path, text)
    assert found == [Arrival(0, 5400, big)] * 2 + [Arrival(60, 0.5, PodSize(0, 0))]


def test_the_example_of_the_reference_is_read(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "reference" / "traces.md").read_text()
    found = read(tmp_path, text.split("```csv\n")[1].split("```")[0])
    gpus = (("example.com/gpu", 2), ("example.com/nic", 1))
    assert found[9:] == [
        Arrival(0, inf, PodSize(2000, 2**32, (), QOSClass.GUARANTEED)),
        Arrival(90, 5400, PodSize(500, 2**29)),
        Arrival(120, 604800, PodSize(8000, 2**36, gpus, QOSClass.GUARANTEED)),
    ]
    for name in (*table.COLUMNS, *table.OPTIONAL):
        assert re.search(rf"^\|.*`{name}`.* \|", text, re.MULTILINE), name


def test_the_first_one_comes_at_0_whatever_the_clock(tmp_path: Path) -> None:
    found = read(tmp_path, "at,lifetime,cpu,memory\n1700000060,0,1,1\n1700000000,1d,1,1\n")
    assert [(one.at, one.lifetime) for one in found] == [(0, 86400), (60, 0)]


def test_who_asks_for_the_same_in_other_words_has_the_same_size(tmp_path: Path) -> None:
    found = read(tmp_path, "at,lifetime,cpu,memory\n0,1,1,1Ki\n0,1,1000m,1024\n0,1,1,1k\n")
    assert found[0].size is found[1].size
    assert found[2].size == PodSize(1000, 1000)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=20))
def test_rows_of_any_order_come_by_time_and_then_as_they_stand(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]]
) -> None:
    lines = [f"{at},{place},1,1,{count}" for place, (at, count) in enumerate(rows)]
    text = "\n".join(["at,lifetime,cpu,memory,count", *lines])
    found = read(tmp_path_factory.getbasetemp(), text)
    first = min((at for at, _ in rows), default=0)
    listed = sorted(
        (at - first, place) for place, (at, count) in enumerate(rows) for _ in range(count)
    )
    assert [(one.at, one.lifetime) for one in found] == listed


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, lambda raw: b"\xef\xbb\xbf" + raw])
def test_it_may_be_packed_or_begin_with_a_mark(tmp_path: Path, pack: object) -> None:
    text = b"at,lifetime,cpu,memory\r\n0,1,1,1\r\n\r\n5,1,1,1\r\n"
    assert callable(pack)
    assert [one.at for one in read(tmp_path, pack(text))] == [0, 5]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("x,1,1,1,,,", "at 'x' is no time; write seconds, or a number and ms, s, m, h or d"),
        ("-1,1,1,1,,,", "at '-1' is no time"),
        ("1_0,1,1,1,,,", "at '1_0' is no time"),
        ("1e99,1,1,1,,,", r"at '1e99' is longer than 1e\+12 s"),
        ("0,nan,1,1,,,", "lifetime 'nan' is no time"),
        ("0,-inf,1,1,,,", "lifetime '-inf' is no time"),
        ("0,,1,1,,,", "lifetime '' is no time"),
        ("0,1w,1,1,,,", "lifetime '1w' is no time"),
        ("0,1,-1,1,,,", "cpu '-1' is below zero"),
        ("0,1,nan,1,,,", "cpu 'nan' is no quantity such as 2, 500m or 4Gi"),
        ("0,1,,1,,,", "cpu '' is no quantity"),
        ("0,1,1e40,1,,,", "cpu '1e40' is below zero or more than there is"),
        ("0,1,1,16E,,,", "memory '16E' is below zero or more"),
        ("0,1,1,x,,,", "memory 'x' is no quantity"),
        ("0,1,1,1,-1,,", "count '-1' is no whole number from 0 to 1000000"),
        ("0,1,1,1,1e3,,", "count '1e3' is no whole number"),
        ("0,1,1,1,1000001,,", "count '1000001' is no whole number"),
        ("0,1,1,1,,guaranteed,", "'guaranteed' is no class of a pod; it is Guaranteed, Burst"),
        ("0,1,1,1,,,gpu=1", "devices 'gpu=1': write name=n;name=n, each name that of an ext"),
        ("0,1,1,1,,,a.b/c", "devices: a.b/c '' is no whole number"),
        ("0,1,1,1,,,a.b/c=1;", "devices '': write name=n"),
        ("0,1,1,1,,,a.b/c=1;a.b/c=2", "devices: a.b/c is there twice"),
        ("0,1,1,1,,,a.b/c=99999999999", "devices: a.b/c '99999999999' is no whole number"),
        ("0,1,1,1,,", "6 cells, the header has 7; is the line torn?"),
        ("0,1,1,1,,,,", "8 cells"),
        ('"0,1,1,1,,,', "no row of a CSV"),
        ('0"x,1"1,1,1,,,', r"at '0\"x' is no time"),
        ("0,1\0,1,1,,,", "a NUL byte"),
        ("\x1b]0;x\x07,1,1,1,,,", r"at '\\x1b]0;x\\x07' is no time"),
        ("x" * 200_000 + ",1,1,1,,,", "no row of a CSV: field larger"),
        ("9" * 5000 + ",1,1,1,,,", "at '9{60}\\.\\.\\.' is no time"),
    ],
)
def test_what_is_damaged_is_told_with_its_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(TraceError, match=message) as error:
        read(tmp_path, f"at,lifetime,cpu,memory,count,qos,devices\n0,1,1,1,1,,\n{row}\n")
    assert str(error.value).startswith(f"{tmp_path}/arrivals.csv: line 3: ")
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            "",
            r"no column at; .* such as at,lifetime,cpu,memory\[,qos\]\[,devices\]\[,count\]$",
        ),
        ("at;lifetime;cpu;memory", "no column at; the first line"),
        ("at,lifetime,cpu,memory,device", "unknown column 'device'; did you mean devices?"),
        ("at,lifetime,cpu,memory,x\x1b", r"unknown column 'x\\x1b'; the columns are at,lifetime"),
        ("at,lifetime,cpu,memory,at", "column at is there twice"),
    ],
)
def test_a_wrong_header_is_told(tmp_path: Path, header: str, message: str) -> None:
    with pytest.raises(TraceError, match=message) as error:
        read(tmp_path, f"{header}\n0,1,1,1\n")
    assert "line 1: " in str(error.value)


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 2: not UTF-8 text; is it"):
        read(tmp_path, b"at,lifetime,cpu,memory\n\xff,1,1,1\n")
    with pytest.raises(TraceError, match="line 1: more text than a trace has"):
        read(tmp_path, b"a" * (2**20 + 1))


def test_a_file_has_an_end_as_well_as_a_line(tmp_path: Path) -> None:
    file = tmp_path / "packed"
    file.write_bytes(gzip.compress(b"12\n34\n"))
    assert list(numbered_lines(file, 6)) == [(1, "12"), (2, "34")]
    with pytest.raises(TraceError, match="line 2: more text than a trace has"):
        list(numbered_lines(file, 5))
    file.write_bytes(b"a" * 2**20)
    assert len(next(numbered_lines(file))[1]) == 2**20


def test_a_file_that_nobody_can_read_is_told(tmp_path: Path) -> None:
    for name, message in (
        (str(tmp_path / "none\n.csv"), r"none\\n\.csv': cannot be read: No such file"),
        (str(tmp_path), "cannot be read: Is a directory"),
        ("\0", "no name that a file can have"),
    ):
        with pytest.raises(TraceError, match=message):
            ArrivalTable(name).arrivals(1)


def test_there_is_an_end_to_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_ROWS", 2)
    head = "at,lifetime,cpu,memory\n"
    assert len(read(tmp_path, head + "0,1,1,1\n" * 2)) == 2
    with pytest.raises(TraceError, match="line 4: more than 2 rows; simulate a part of them"):
        read(tmp_path, head + "0,1,1,1\n" * 3)
