"""The same experiment from Python, and its tables as others take them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import polars as pl
import pytest

from pinfold import (
    Simulation,
    fits_table,
    load_experiment,
    reasons_table,
    runs_table,
    series_table,
    simulate,
)
from pinfold.config.values import ConfigError
from tests.roots import ROOT

SMALL = ROOT / "examples" / "simulation" / "small.yaml"


@pytest.fixture(scope="module")
def small() -> Simulation:
    return simulate(SMALL, seeds=[1, 2])


def test_a_file_and_what_was_loaded_of_it_give_the_same(small: Simulation) -> None:
    assert simulate(load_experiment(str(SMALL), seeds=(1, 2))) == small


def test_what_is_wrong_is_told_as_by_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.yaml"):
        simulate(tmp_path / "missing.yaml")


def test_a_row_for_each_run(small: Simulation) -> None:
    rows = runs_table(small)
    for row, one in zip(rows, small.runs, strict=True):
        assert (row["until_seconds"], row["counted_from_seconds"]) == (one.until, one.counted_from)
        assert row["moves_memory_bytes"] == one.moves.memory_bytes
    assert [(row["configuration"], row["seed"]) for row in rows] == [
        (name, seed) for name in small.configurations for seed in (1, 2)
    ]
    for row, run in zip(rows, small.runs, strict=True):
        assert row.keys() == rows[0].keys()
        ends = sum(run.fates.placed_at.values()) + run.fates.rejected + run.fates.waiting
        assert row["arrived"] == ends
        assert (row["rejected"], row["stranded_cpus"], row["moves_containers"]) == (
            run.fates.rejected,
            run.averages.stranded_cpus,
            run.moves.containers,
        )
        assert row["placed_first"] == run.fates.placed_at["1"]


def test_the_reasons_add_up(small: Simulation) -> None:
    rows, runs = reasons_table(small), runs_table(small)
    for run in runs:
        mine = [
            row
            for row in rows
            if (row["configuration"], row["seed"]) == (run["configuration"], run["seed"])
        ]
        assert sum(int(row["rejected"]) for row in mine) == run["rejected"]
        assert sum(int(row["refused"]) for row in mine) == run["refused"]
    assert {row["reason"] for row in rows} >= {"SMTAlignmentError", "Unschedulable"}


def test_pandas_and_polars_take_all_of_them(small: Simulation) -> None:
    for table in (
        runs_table(small),
        reasons_table(small),
        fits_table(small),
        series_table(small),
    ):
        frame, columns = pd.DataFrame(table), pl.DataFrame(table)
        assert list(frame.columns) == columns.columns
        assert frame.to_dict("records") == columns.to_dicts()
        assert set(columns["configuration"]) <= set(small.configurations)
        assert not frame.isna().any().any()
    series = pl.DataFrame(series_table(small))
    assert series.height == 240 * len(small.runs)
    last = series.filter(pl.col("configuration") == "static", pl.col("seed") == 2).tail(1)
    run = next(run for run in small.runs if (run.configuration, run.seed) == ("static", 2))
    assert last["time"].item() == run.until
    assert last["ended"].item() == run.series["ended"][-1]
