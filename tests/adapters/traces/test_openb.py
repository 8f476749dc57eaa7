"""Pods of openb: what becomes of each column, and what is refused."""

from __future__ import annotations

import gzip
import pickle
from collections import Counter
from pathlib import Path

import pytest

from pinfold.adapters.traces.openb import GPU, OpenB
from pinfold.core.pod.pod import QOSClass
from pinfold.ports.arrivals import Arrival, PodSize, TraceError
from tests.roots import SHARED
from tests.scenes.small_traces import PODS, openb

MIB = 2**20
WHOLE = SHARED / "traces"
GUARANTEED, BURSTABLE, BEST_EFFORT = QOSClass
SHARING = PodSize(6000, 12288 * MIB, (), BEST_EFFORT)


def test_what_becomes_of_the_columns(tmp_path: Path) -> None:
    assert list(OpenB(openb(tmp_path)).arrivals(1)) == [
        Arrival(0, 570, PodSize(4000, 8192 * MIB, (), GUARANTEED)),
        Arrival(50, 840, SHARING),
        Arrival(100, 0, PodSize(11908, 47104 * MIB, ((GPU, 8),), GUARANTEED)),
        Arrival(150, 650, SHARING),
        Arrival(200.5, 600, PodSize(500, 64 * MIB, ((GPU, 2),), BURSTABLE)),
    ]


def test_pods_that_ask_for_the_same_share_a_size(tmp_path: Path) -> None:
    found = list(OpenB(openb(tmp_path)).arrivals(1))
    assert found[1].size is found[3].size


def test_other_columns_and_their_order_do_not_matter(tmp_path: Path) -> None:
    rows = [line.split(",") for line in PODS.splitlines()]
    turned = "\n".join(",".join([*reversed(row), "more"]) for row in rows)
    (tmp_path / "turned").mkdir()
    found = [OpenB(openb(tmp_path / "turned", turned)), OpenB(openb(tmp_path))]
    assert list(found[0].arrivals(1)) == list(found[1].arrivals(1))


def test_it_is_found_under_the_name_of_its_publication(tmp_path: Path) -> None:
    (tmp_path / "openb_pod_list_default.csv").write_text(PODS)
    assert len(list(OpenB(str(tmp_path)).arrivals(1))) == 5


def test_a_share_is_of_the_same_pods(tmp_path: Path) -> None:
    row = PODS.splitlines()[1]
    many = "\n".join([PODS.splitlines()[0], *[f"{row}{n}" for n in range(1000)]])
    folder = openb(tmp_path, many.replace(",100,700,130", ",100,9999999,130"))
    every, half, tenth = (list(OpenB(folder, share).arrivals(5)) for share in (1.0, 0.5, 0.1))
    assert len(every) == 1000
    assert 400 < len(half) < 600
    assert 60 < len(tenth) < 150
    assert Counter(tenth) <= Counter(half) <= Counter(every)
    assert list(OpenB(folder, 0.5).arrivals(5)) == half != list(OpenB(folder, 0.5).arrivals(6))
    again = pickle.loads(pickle.dumps(OpenB(folder, 0.5)))  # noqa: S301 - our own bytes
    assert again == OpenB(folder, 0.5)


ROW = "p-0,4000,8192,0,0,,LS,Running,100,700,130"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("4000", "-4000", "line 2: cpu_milli '-4000' is no whole number from 0 to"),
        ("4000", "nan", "line 2: cpu_milli 'nan' is no whole number"),
        ("4000", "9" * 30, "line 2: cpu_milli '9999"),
        ("8192", "8192.5", "line 2: memory_mib '8192.5' is no whole number"),
        ("8192", str(2**44), "line 2: memory_mib '17592186044416' is no whole number"),
        (",0,0,", ",x,0,", "line 2: num_gpu 'x' is no whole"),
        (",0,0,", ",1,1001,", "line 2: gpu_milli '1001' is no whole number from 0 to 1000"),
        ("LS", "LSR", "line 2: unknown qos 'LSR'; it is LS, Guaranteed, Burstable, BE"),
        ("100,700", ",700", "line 2: creation_time '' is no time"),
        (",700,", ",1e999,", "line 2: deletion_time '1e999' is longer"),
        (",700,", ",20,", "line 2: not created, scheduled and deleted in this order"),
        (",130", ",701", "line 2: not created, scheduled and deleted in this order"),
        (",130", ",99", "line 2: not created, scheduled and deleted in this order"),
        (",100,700,130", "", "line 2: 8 cells, the header has 11; is the line torn?"),
        ("p-0", '"p-0', "line [2-6]: no row of a CSV: "),
        ("p-0", "p\0", "line 2: a NUL byte"),
        ("name,cpu_milli", "name,cpu", "line 1: no column cpu_milli; the first line is a header"),
        ("name,cpu_milli", "qos,cpu_milli", "line 1: column qos is there twice"),
    ],
)
def test_what_is_damaged_is_told_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    head, row, *others = PODS.splitlines()
    assert row == ROW
    if old in head:
        head = head.replace(old, new)
    text = "\n".join([head, row.replace(old, new, 1), *others])
    with pytest.raises(TraceError, match=message) as error:
        OpenB(openb(tmp_path, text)).arrivals(1)
    assert str(error.value).startswith(f"{tmp_path}/openb_pods.csv.gz: line ")


def test_a_missing_file_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"/openb_pods\.csv: no such file, .*; --traces FOLDER"):
        OpenB(str(tmp_path)).arrivals(1)
    with pytest.raises(TraceError, match="no such file"):
        OpenB("\0").arrivals(1)


def test_an_empty_file_has_no_header(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="line 1: no column cpu_milli"):
        OpenB(openb(tmp_path, "")).arrivals(1)
    head = PODS.splitlines()[0]
    assert list(OpenB(openb(tmp_path, head)).arrivals(1)) == []


def test_truncated_files_are_told_wherever_they_end(tmp_path: Path) -> None:
    folder = openb(tmp_path)
    raw = gzip.compress(PODS.encode())
    for length in range(2, len(raw)):
        (tmp_path / "openb_pods.csv.gz").write_bytes(raw[:length])
        with pytest.raises(TraceError, match=r"line \d: the packed data is (truncated|damaged)"):
            OpenB(folder).arrivals(1)


@pytest.mark.skipif(not WHOLE.is_dir(), reason="the traces are not beside the project")
def test_the_whole_trace() -> None:
    found = list(OpenB(str(WHOLE)).arrivals(1))
    assert len(found) == 8152
    gpus = Counter(dict(one.size.extended).get(GPU, 0) for one in found)
    assert gpus == {0: 1088 + 3078, 1: 3911, 2: 16, 4: 15, 8: 44}
    classes = Counter(one.size.qos for one in found)
    assert classes == {GUARANTEED: 4647 + 7, BURSTABLE: 100, BEST_EFFORT: 3398}
    assert sum(one.size.cpu_milli % 1000 == 0 for one in found) / 8152 == pytest.approx(0.31, 0.02)
    assert len({id(one.size) for one in found}) == len({one.size for one in found})
