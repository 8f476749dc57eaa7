"""``pinfold simulate --events``: all that happened, the same bytes for any number of workers."""

from __future__ import annotations

import csv
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner, Result
from msgspec import json

from pinfold.cli import main
from tests.roots import ROOT

TEXT = (ROOT / "examples" / "simulation" / "small.yaml").read_text()


def simulate(folder: Path, *arguments: str) -> Result:
    path = folder / "experiment.yaml"
    path.write_text(TEXT)
    return CliRunner().invoke(main, ["simulate", str(path), "-o", "json", *arguments])


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_one_worker_and_two_write_the_same_bytes(tmp_path: Path, form: str) -> None:
    """The file has as many rows of each kind as the results count."""
    files = [tmp_path / f"{workers}.{form}" for workers in (1, 2)]
    for workers, file in enumerate(files, start=1):
        result = simulate(tmp_path, "--workers", str(workers), "--events", str(file))
        assert result.exit_code == 0, result.output
    assert files[0].read_bytes() == files[1].read_bytes()
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        ["experiment.yaml", *(one.name for one in files)]
    )
    rows = pl.read_csv(files[0]) if form == "csv" else pl.read_parquet(files[0])
    for run in json.decode(result.stdout)["runs"]:
        mine = rows.filter(
            pl.col("configuration") == run["configuration"], pl.col("seed") == run["seed"]
        )
        counts = dict(mine.group_by("event").len().iter_rows())
        for event in ("placed", "refused", "rejected", "ended"):
            assert counts.get(event, 0) == run["series"][event][-1]
    order = rows.select("configuration", "seed").unique(maintain_order=True).rows()
    assert order == [
        (run["configuration"], run["seed"]) for run in json.decode(result.stdout)["runs"]
    ]


def test_runs_that_are_kept_are_made_again_for_their_events(tmp_path: Path) -> None:
    kept = ("--workers", "1", "--seed", "1", "--resume", str(tmp_path / "kept"))
    first = simulate(tmp_path, *kept)
    events = tmp_path / "events.csv"
    second = simulate(tmp_path, *kept, "--events", str(events))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.stdout == second.stdout
    with events.open(newline="") as file:
        assert {row["configuration"] for row in csv.DictReader(file)} == {
            run["configuration"] for run in json.decode(first.stdout)["runs"]
        }


@pytest.mark.parametrize("name", ["events.txt", "missing/events.csv"])
def test_a_file_that_cannot_be_written_is_told_before_the_first_run(
    tmp_path: Path, name: str
) -> None:
    result = simulate(tmp_path, "--events", str(tmp_path / name))
    assert result.exit_code == 2
    assert name in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
