"""The study: its experiments load, its program makes them into its page, and the page is of it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from benchmarks.study.__main__ import PAGE, main, simulated
from benchmarks.study.tables import PICTURES, TABLES, experiments, table, with_tables
from msgspec.structs import replace

from pinfold.documents.simulation.results import Simulation
from pinfold.planning.simulation.experiment.loading import LoadedExperiment, load_experiment
from pinfold.planning.simulation.library import simulate
from tests.scenes.small_traces import azure2017, openb


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both traces, each of some pods."""
    folder = tmp_path_factory.mktemp("traces")
    azure2017(folder)
    openb(folder)
    return folder


def loaded(name: str, traces: Path) -> LoadedExperiment:
    """One of the study's own experiments."""
    return load_experiment(str(PAGE.parent / f"{name}.yaml"), traces=str(traces))


@pytest.fixture(scope="module")
def found(traces: Path) -> dict[str, Simulation]:
    """All experiments with the small traces, and nothing that is not counted."""
    small = {}
    for name in experiments(TABLES):
        one = loaded(name, traces)
        small[name] = simulate(
            replace(one, specs=tuple(replace(spec, warm_up=0.0) for spec in one.specs))
        )
    return small


def test_every_experiment_beside_the_page_is_in_a_table() -> None:
    files = {path.stem for path in PAGE.parent.glob("*.yaml") if "devices" not in path.name}
    assert files == set(experiments(TABLES))


def test_the_page_has_just_the_rows_that_the_program_makes(found: dict[str, Simulation]) -> None:
    page = PAGE.read_text()
    shapes = [re.sub(r"^(\|[^|]*\|).*$", r"\1", line) for line in page.splitlines()]
    for name in TABLES:
        head, line, *rows = table(name, found)
        assert f"{head}\n{line}\n" in page, name
        for row in rows:
            label = row.split("|")[1]
            assert f"|{label}|" in shapes, f"{name}: {label}"
            assert row.count("|") == head.count("|")


def test_a_page_is_made_anew_with_the_same_bytes(found: dict[str, Simulation]) -> None:
    first = with_tables(PAGE.read_text(), found)
    assert with_tables(first, found) == first
    assert first.count("<!-- end of table -->") == len(TABLES)
    for name in TABLES:
        assert "\n".join(table(name, found)) in first
    with pytest.raises(ValueError, match="the page has places for"):
        with_tables("no place", found)


def test_what_pods_came_to_is_in_its_row(found: dict[str, Simulation]) -> None:
    """Five pods of the trace come to nodes that have room for all; one asks for a whole GPU."""
    rows = [*table("gpus", found)]
    assert len(rows) == 2 + sum(len(found[name].configurations) for name in TABLES["gpus"].rows)
    assert rows[2].startswith("| two NUMA nodes: none | 0.00 % | 0.00 % | 0.00 | 0.0 % |")


def test_one_experiment_from_its_file_to_its_pictures(traces: Path, tmp_path: Path) -> None:
    shutil.copy(PAGE.parent / "whole-cores.yaml", tmp_path)
    build = tmp_path / "build"
    first = simulated("whole-cores", tmp_path, traces, build, "--workers", "1")
    assert len(first.runs) == 3
    json = (build / "whole-cores.json").read_bytes()
    assert (build / "whole-cores.html").stat().st_size > 10_000
    assert (build / "whole-cores" / "cpus.svg").stat().st_size > 1_000
    simulated("whole-cores", tmp_path, traces, build, "--workers", "2")
    assert (build / "whole-cores.json").read_bytes() == json


def test_traces_that_are_not_there_are_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = PAGE.read_text()
    assert main([str(tmp_path), "--build", str(tmp_path / "build")]) != 0
    assert "Error: " in capfd.readouterr().err
    assert PAGE.read_text() == before


def test_every_picture_is_shown() -> None:
    page = PAGE.read_text()
    for picture in PICTURES:
        assert f"]({picture})" in page
        assert (PAGE.parent / picture).stat().st_size < 60_000
