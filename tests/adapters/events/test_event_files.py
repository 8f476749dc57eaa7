"""Files of events: whole or not there, the same for any order of the runs, and for any reader."""

from __future__ import annotations

import csv
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from pyarrow import parquet

from pinfold.adapters.events.file import EventFile, FolderParts
from pinfold.formats.extras import install_command
from pinfold.ports.events import EventsError, RunEvent

FORMS = ("csv", "parquet")


def row(at: float, pod: int, **more: Any) -> RunEvent:
    one = RunEvent(
        "a, \"b\" and 'ü'", 1, at, "placed", pod, 1, "node-0", 2.0, "Guaranteed", "2-3", ""
    )
    return one._replace(**more)


def some(run: int, count: int) -> Iterator[RunEvent]:
    for place in range(count):
        yield row(place / 3, place, seed=run)


def write(parts: FolderParts, run: int, count: int) -> None:
    with parts.part(run) as writer:
        for event in some(run, count):
            writer.add(event)


@pytest.mark.parametrize("form", FORMS)
def test_parts_of_any_order_make_the_same_file(tmp_path: Path, form: str) -> None:
    """Also where the parts are written elsewhere, and one has more than is written at once."""
    counts = {0: 3, 1: 40_000, 2: 0, 10: 1}
    made = []
    for name, order in (("one", (0, 1, 2, 10)), ("other", (10, 2, 1, 0))):
        path = tmp_path / f"{name}.{form}"
        with EventFile(str(path)) as file:
            sent = pickle.loads(pickle.dumps(file.parts))  # noqa: S301 - our own
            for run in order:
                write(sent, run, counts[run])
            assert not path.exists()
            file.put_together()
        made.append(path.read_bytes())
    assert made[0] == made[1]
    assert sorted(one.name for one in tmp_path.iterdir()) == [f"one.{form}", f"other.{form}"]
    whole = [event for run in counts for event in some(run, counts[run])]
    assert _read(tmp_path / f"one.{form}") == whole


def _read(path: Path) -> list[RunEvent]:
    if path.suffix == ".parquet":
        return [RunEvent(*one.values()) for one in parquet.read_table(path).to_pylist()]
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert tuple(header) == RunEvent._fields
    return [_typed(line) for line in lines]


def _typed(line: list[Any]) -> RunEvent:
    one = RunEvent(*line)
    return one._replace(
        seed=int(one.seed),
        at_seconds=float(one.at_seconds),
        pod=int(one.pod),
        attempt=int(one.attempt) if one.attempt else None,
        node=one.node or None,
        cpus=float(one.cpus),
    )


@pytest.mark.parametrize("form", FORMS)
def test_what_there_is_none_of_is_none_for_every_reader(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"events.{form}"
    none = row(0.1, 7, event="refused", attempt=2, node=None, given="", reason="Unschedulable")
    with EventFile(str(path)) as file:
        with file.parts.part(0) as writer:
            writer.add(none)
            writer.add(row(0.2, 7, event="ended", attempt=None))
        file.put_together()
    assert _read(path)[0] == none
    frame = pd.read_csv(path) if form == "csv" else pd.read_parquet(path)
    columns = pl.read_csv(path) if form == "csv" else pl.read_parquet(path)
    assert list(frame.columns) == columns.columns == list(RunEvent._fields)
    assert frame["node"].isna().tolist() == columns["node"].is_null().to_list() == [True, False]
    assert frame["attempt"].isna().tolist() == [False, True]
    assert columns["at_seconds"].to_list() == frame["at_seconds"].tolist() == [0.1, 0.2]


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_fails_leaves_no_part_and_the_old_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"events.{form}"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), EventFile(str(path)) as file:  # noqa: PT012 - two levels
        write(file.parts, 0, 5)
        with file.parts.part(1) as writer:
            writer.add(row(1, 1))
            assert 1 / 0
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("form", FORMS)
def test_a_run_that_failed_is_not_in_the_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"events.{form}"
    with EventFile(str(path)) as file:
        write(file.parts, 1, 2)
        with pytest.raises(ZeroDivisionError), file.parts.part(0) as writer:  # noqa: PT012 - so it is
            writer.add(row(1, 1))
            assert 1 / 0
        file.put_together()
    assert _read(path) == list(some(1, 2))


def test_what_cannot_be_written_is_told_with_the_name_of_the_file(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "events.txt", "ends with .csv or .parquet"),
        (tmp_path / "missing" / "events.csv", "No such file or directory"),
        (tmp_path, "ends with .csv or .parquet"),
    ):
        with pytest.raises(EventsError, match=str(path)) as found:
            EventFile(str(path))
        assert words in str(found.value)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(EventsError, match="is a folder"):
        EventFile(str(tmp_path / "folder.csv"))


def test_the_folder_of_the_parts_may_go(tmp_path: Path) -> None:
    """Somebody removes it while runs go on: one clear error."""
    path = tmp_path / "events.csv"
    with EventFile(str(path)) as file:
        file.parts.folder.rmdir()
        with pytest.raises(EventsError, match="events cannot be written"), file.parts.part(0):
            pass
        with pytest.raises(EventsError, match="events cannot be written"):
            file.put_together()
    assert not path.exists()


def test_what_a_killed_simulation_left_is_swept_by_the_next(tmp_path: Path) -> None:
    """Only folders of parts of the same file that nobody uses, and with nothing else in them."""
    code = (
        "import os, signal, sys\n"
        "from pinfold.adapters.events.file import EventFile\n"
        "file = EventFile(sys.argv[1])\n"
        "file.parts.part(0).__enter__()\n"
        "file.parts.folder.joinpath('00000001').touch()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path, other = tmp_path / "events.csv", tmp_path / "other.csv"
    for one in (path, other):
        killed = subprocess.run([sys.executable, "-c", code, str(one)], check=False)
        assert killed.returncode == -signal.SIGKILL
    strangers = [tmp_path / ".events.csv.abcdefgh.parts", tmp_path / ".events.csv.mine.parts"]
    for folder in strangers:
        folder.mkdir()
        (folder / "letter.txt").touch()
    link = tmp_path / ".events.csv.hgfedcba.parts"
    link.symlink_to(tmp_path)
    (left,) = tmp_path.glob(".other.csv.*.parts")
    assert len(list(tmp_path.glob(".events.csv.*.parts"))) == 4
    with EventFile(str(path)) as first, EventFile(str(path)) as second:
        there = {first.parts.folder, second.parts.folder, link, *strangers}
        assert set(tmp_path.glob(".events.csv.*.parts")) == there
        write(first.parts, 0, 2)
        first.put_together()
    assert set(tmp_path.iterdir()) == {path, left, link, *strangers}


def test_without_the_extra_parquet_is_refused_and_csv_is_written(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pinfold.adapters.events.file import EventFile\n"
        "EventFile(sys.argv[1]).__exit__(None, None, None)\n"
    )
    told = {}
    for form in FORMS:
        command = [sys.executable, "-c", code, str(tmp_path / f"events.{form}")]
        told[form] = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told["csv"].returncode == 0
    assert install_command("parquet") in told["parquet"].stderr.splitlines()[-1]
