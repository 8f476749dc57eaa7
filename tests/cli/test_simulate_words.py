"""What ``pinfold simulate`` says of options that cannot be, and how it rounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from pinfold.cli import main
from pinfold.cli.views.numbers import cut_off
from pinfold.cli.views.report.configurations import percent
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


def test_a_folder_that_is_of_no_use_is_said(tmp_path: Path) -> None:
    file = experiment_file(tmp_path, after="1h")
    done = CliRunner().invoke(
        main, ["simulate", str(file), "--traces", str(tmp_path), "--workers=1"]
    )
    assert done.exit_code == 0
    assert "--traces is of no use here: spec.arrivals is no trace" in done.output


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.9997, "99.97"), (0.99999, "99.999"), (0.9999999, "99.999"), (1.0, "100"), (0.0, "0")],
)
def test_nearly_all_is_not_all(share: float, words: str) -> None:
    assert percent(share) == f"{words}{SPACE}%"


@given(st.floats(0, 100, exclude_min=True, exclude_max=True), st.integers(0, 4))
def test_only_all_is_all_and_nothing_nothing(value: float, digits: int) -> None:
    assert 0 < float(f"{cut_off(value, digits):.{digits}f}") < 100
