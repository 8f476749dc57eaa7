"""What ``pinfold simulate`` says of options that cannot be, and how it rounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pinfold.cli import main
from pinfold.views.numbers import cut_off, percent
from tests.scenes.small_experiment import experiment_file

SPACE = "\u00a0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--traces", "nowhere"), "--traces nowhere: there is no such folder"),
        (("--report", "r.pdf"), "--report r.pdf: it is a page of HTML; name it r.html"),
        (("--executor", "sys:exit"), "sys:exit: SystemExit"),
    ],
)
def test_what_cannot_be_is_said_first(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        main, ["simulate", str(experiment_file(tmp_path, after="1h")), *words]
    )
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert said in line
    assert done.stdout == ""


def test_the_file_is_an_argument_or_that_of_f(tmp_path: Path) -> None:
    file = str(experiment_file(tmp_path, after="1h"))
    done = CliRunner().invoke(main, ["simulate", "-f", file, "--workers=1"])
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout
    both = CliRunner().invoke(main, ["simulate", file, "-f", file])
    neither = CliRunner().invoke(main, ["simulate"])
    assert (both.exit_code, neither.exit_code) == (2, 2)
    told = f"Error: one FILE is simulated at a time: {file}, {file}\n"
    assert both.stderr.endswith(told)
    assert neither.stderr.endswith("Error: Missing argument 'FILE'.\n")


def test_a_folder_that_is_of_no_use_is_said(tmp_path: Path) -> None:
    file = experiment_file(tmp_path, after="1h")
    done = CliRunner().invoke(
        main, ["simulate", str(file), "--traces", str(tmp_path), "--workers=1"]
    )
    assert done.exit_code == 0
    assert "--traces is of no use here: spec.arrivals is no trace" in done.output


def test_a_misspelt_field_is_said_first_and_once(tmp_path: Path) -> None:
    configurations = [{"name": "own", "kubeletConfiguration": {"maxPodz": 10}}]
    file = experiment_file(tmp_path, after="1h", configurations=configurations)
    done = CliRunner().invoke(main, ["simulate", str(file), "--workers=1"])
    assert done.exit_code == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"note: {file}: spec.configurations[0].kubeletConfiguration: unknown")
    assert line.endswith("maxPodz (did you mean maxPods?), passed over")
    assert "maxPodz" not in done.stdout
    done = CliRunner().invoke(main, ["simulate", str(file), "--workers=1", "-o", "json"])
    assert "maxPodz" in json.loads(done.stdout)["notes"][0]


@pytest.mark.parametrize(
    ("header", "row", "is_said"),
    [
        ("at,lifetime,cpu,memory", "0,1h,2,1Gi", True),
        ("at,lifetime,cpu,memory,qos", "0,1h,2,1Gi,", True),
        ("at,lifetime,cpu,memory,qos", "0,1h,2,1Gi,Guaranteed", False),
    ],
)
def test_classes_that_no_arrival_tells_are_said(
    header: str, row: str, tmp_path: Path, *, is_said: bool
) -> None:
    (tmp_path / "pods.csv").write_text(f"{header}\n{row}\n")
    arrivals = {"csv": {"file": "pods.csv"}}
    file = experiment_file(tmp_path, arrivals=arrivals, guaranteed={"pods": "traced"})
    done = CliRunner().invoke(main, ["simulate", str(file), "--workers=1"])
    assert done.exit_code == 0
    assert ("spec.guaranteed.pods: traced finds no Guaranteed pod" in done.stderr) == is_said


@pytest.mark.parametrize("words", [(), ("--show-node", "big-0")])
@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("soon,1h,2,1Gi,", "line 2: at 'soon' is no time"),
        ("0,1h,two,1Gi,", "line 2: cpu 'two' is no quantity"),
        ("0,1h,2,1Gi,Best", "line 2: qos 'Best' is no class"),
    ],
)
def test_a_wrong_cell_is_told_by_file_line_and_column(
    row: str, what: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    table = tmp_path / "pods.csv"
    table.write_text(f"at,lifetime,cpu,memory,qos\n{row}\n")
    file = experiment_file(tmp_path, arrivals={"csv": {"file": "pods.csv"}})
    done = CliRunner().invoke(main, ["simulate", str(file), *words])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Error: {table}: {what}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.9997, "99.97"), (0.99999, "99.999"), (0.9999999, "99.999"), (1.0, "100"), (0.0, "0")],
)
def test_nearly_all_is_not_all(share: float, words: str) -> None:
    assert percent(share) == f"{words}{SPACE}%"


@given(st.floats(0, 100, exclude_min=True, exclude_max=True), st.integers(0, 4))
def test_only_all_is_all_and_nothing_nothing(value: float, digits: int) -> None:
    assert 0 < float(f"{cut_off(value, digits):.{digits}f}") < 100
