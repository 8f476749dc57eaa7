"""``pinfold simulate``: experiments from files, and what is told of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator

from pinfold.cli import main
from pinfold.documents.schemas import json_schema
from tests.roots import ROOT, SHARED

EXAMPLES = ROOT / "examples" / "simulation"
SMALL = EXAMPLES / "small.yaml"
TRACES = SHARED / "traces"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["simulate", *map(str, arguments)])


def _shorter(tmp_path: Path, **changes: Any) -> Path:
    """The small example for an hour or so, with other fields in its ``spec``."""
    experiment = yaml.safe_load(SMALL.read_text(encoding="utf-8"))
    experiment["spec"] |= {"warmUp": "0", "stop": {"after": "2h"}, **changes}
    file = tmp_path / "experiment.json"
    file.write_text(json.dumps(experiment), encoding="utf-8")
    return file


def test_the_small_example_is_told_side_by_side() -> None:
    done = run(SMALL, "--seed", 1)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "a small fleet"
    assert lines[3].split() == ["none", "static", "whole", "cores"]
    rejected = next(line for line in lines if line.startswith("rejected")).split()
    assert len(rejected) == 7
    # Pods of 7 CPUs are no whole cores.
    assert int(rejected[5].replace(",", "")) > 1000 > int(rejected[1])


def test_the_json_is_the_same_each_time(tmp_path: Path) -> None:
    file = _shorter(tmp_path)
    first, second = run(file, "-o", "json"), run(file, "-o", "json")
    assert first.exit_code == 0, first.stderr
    assert first.stdout == second.stdout
    document = json.loads(first.stdout)
    assert (document["version"], document["kind"]) == (1, "Simulation")
    assert document["configurations"] == ["none", "static", "whole cores"]
    assert [(one["configuration"], one["seed"]) for one in document["runs"][:2]] == [
        ("none", 1),
        ("none", 2),
    ]
    for one in document["runs"]:
        fates = one["fates"]
        parts = ("running", "ended", "rejected", "waiting")
        assert fates["arrived"] == sum(fates[part] for part in parts)
        assert one["replayed"]["different"] == 0


def test_seeds_of_the_command_line_win(tmp_path: Path) -> None:
    done = run(_shorter(tmp_path), "-o", "json", "--seed", 5, "--seed", 5, "--seed", 6)
    document = json.loads(done.stdout)
    assert {one["seed"] for one in document["runs"]} == {5, 6}
    assert document["experiment"]["spec"]["seeds"] == [5, 6]


@pytest.mark.parametrize("width", ["40", "80", "200"])
def test_the_table_keeps_to_the_width(
    width: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    fields = {"maxPods": [10, 20, 30]}
    done = run(_shorter(tmp_path, sweep={"fields": fields}), "--seed", 1)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= int(width)
    assert "maxPods=30" in done.stdout.replace("\n", "")
    # One table, with a row for each point of the sweep; at 40 columns a figure after the other.
    assert not any(line.startswith("arrived") for line in lines)
    tables = 3 if width == "40" else 1
    assert lines.count("Configurations") == tables
    assert sum("pods rejected" in line for line in lines) == 1
    rows = " ".join(done.stdout.partition("Worst decisions")[0].split())
    for name in ("none", "static", "whole cores"):
        assert rows.count(f"{name}, ") == 3 * tables
    assert "all figures of each are in -o json" in rows


def test_a_sweep_that_fits_has_its_columns_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    done = run(_shorter(tmp_path, sweep={"fields": {"maxPods": [10, 20]}}), "--seed", 1)
    assert done.exit_code == 0, done.stderr
    assert sum(line.startswith("arrived") for line in done.stdout.splitlines()) == 1


def test_what_is_wrong_is_one_line_and_status_2(tmp_path: Path) -> None:
    table = {"arrivals": {"csv": {"file": "none.csv"}}}
    for file in (tmp_path / "missing.yaml", _shorter(tmp_path, seeds=[]), tmp_path):
        done = run(file)
        assert done.exit_code == 2
        assert done.stderr.startswith(f"Error: {file}: ")
        assert done.stderr.count("\n") == 1
        assert not done.stdout
    done = run(_shorter(tmp_path, **table))
    assert done.exit_code == 2
    assert "none.csv" in done.stderr
    assert run(SMALL, "--seed", "-1").exit_code == 2


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_full_disk_is_told_in_one_line(output: str, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this machine has no /dev/full")
    words = [sys.executable, "-m", "pinfold", "simulate", str(_shorter(tmp_path)), "-o", output]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: standard output: No space left on device\n"


def test_the_traces_are_where_the_command_line_says(tmp_path: Path) -> None:
    arrivals = {"arrivals": {"trace": {"form": "openb"}}}
    file = _shorter(tmp_path, **arrivals)
    done = run(file)
    assert (done.exit_code, "--traces FOLDER" in done.stderr) == (2, True)
    done = run(file, "--traces", tmp_path)
    assert done.exit_code == 2
    assert "openb_pods.csv" in done.stderr


@pytest.mark.parametrize(
    ("name", "stop", "columns"),
    [("sweep", {"after": "7h"}, 12), ("azure2017", {"after": "25h"}, 4), ("openb", None, 4)],
)
def test_the_examples_run(
    name: str, stop: dict[str, str] | None, columns: int, tmp_path: Path
) -> None:
    experiment = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    if "trace" in experiment["spec"]["arrivals"] and not TRACES.exists():
        pytest.skip("the traces are not here")
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    if stop is not None:
        experiment["spec"]["stop"] = stop
    file = tmp_path / "shorter.yaml"
    file.write_text(yaml.safe_dump(experiment), encoding="utf-8")
    traces = ["--traces", TRACES] if "trace" in experiment["spec"]["arrivals"] else []
    done = run(file, *traces, "-o", "json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert len(document["runs"]) == columns
    assert document["notes"] == []
    for one in document["runs"]:
        assert one["complete"]
        assert one["fates"]["placedAt"]["1"] > 20
        assert one["replayed"]["different"] == 0


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_of_the_published_schema(path: Path) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    if document["kind"] == "Experiment":
        Draft202012Validator(json_schema("experiment")).validate(document)


def test_every_example_is_run() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.yaml")}
    experiments = {name for name, text in texts.items() if "kind: Experiment" in text}
    assert experiments == {"small.yaml", "sweep.yaml", "azure2017.yaml", "openb.yaml"}


def test_a_report_and_its_pictures_are_written_beside_what_is_printed(tmp_path: Path) -> None:
    page, folder = tmp_path / "report.html", tmp_path / "pictures"
    done = run(_shorter(tmp_path), "--report", page, "--svg", folder, "-o", "json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["kind"] == "Simulation"
    assert "a small fleet" in page.read_text(encoding="utf-8")
    assert [path.suffix for path in folder.iterdir()].count(".svg") >= 3


def test_where_a_report_cannot_be_written_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words, told in (
        (["--report", tmp_path], "is a folder; name a file in it"),
        (["--report", tmp_path / "no" / "report.html"], f"there is no folder {tmp_path / 'no'}"),
        (["--svg", tmp_path / "file"], "is no folder"),
        (["--report", "a.html", "--show-node", "node-0"], "--show-node is no part of a report"),
    ):
        done = run(SMALL, *words)
        assert (done.exit_code, done.stdout) == (2, "")
        assert told in done.stderr
