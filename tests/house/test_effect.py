"""The benchmark of the effect: its intervals, its tables and its workloads, without a timing."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from benchmarks.effect import main
from benchmarks.effect_pairs import CONFIDENCE, median_interval, paired_ratios
from benchmarks.effect_service import SOURCE
from benchmarks.effect_service_report import (
    PAGE,
    as_svg,
    intervals,
    markdown,
    medians,
    text,
    write_into,
)
from hypothesis import given
from hypothesis import strategies as st

VALUES = st.lists(st.floats(0.01, 100, allow_nan=False), min_size=1, max_size=30)


@given(VALUES)
def test_an_interval_has_the_median_in_it(values: list[float]) -> None:
    found = median_interval(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)
    assert (found.confidence >= CONFIDENCE) == (len(values) >= 6)
    assert not found.is_decided or len(values) >= 6


def test_it_is_as_sure_as_it_says() -> None:
    """The share of intervals of random values that have the true median, which is 1, in them."""
    chance = random.Random(1)  # noqa: S311 - no secret
    for count in (6, 9, 15, 30):
        hits = sure = 0.0
        for _ in range(2000):
            one = median_interval([chance.lognormvariate(0, 1) for _ in range(count)])
            hits, sure = hits + (one.low <= 1 <= one.high), one.confidence
        assert sure >= CONFIDENCE
        assert hits / 2000 == pytest.approx(sure, abs=0.02)


def test_more_values_are_decided_where_there_is_an_effect() -> None:
    assert not median_interval([0.5] * 5).is_decided
    assert median_interval([0.5] * 6).is_decided
    assert not median_interval([0.5, 2.0] * 5).is_decided
    assert median_interval([0.98, 1.02] * 5).is_decided
    with pytest.raises(ValueError, match="no value"):
        median_interval([])


def test_ratios_are_of_pairs() -> None:
    """A machine that gets slower does not change them."""
    found = paired_ratios([2.0, 4, 8, 16, 32, 64], [1.0, 2, 4, 8, 16, 32])
    assert (found.low, found.median, found.high) == (2, 2, 2)
    assert paired_ratios([1.0, 5.0], [0.0, 5.0]).median == 1


def document() -> dict[str, Any]:
    def run(p99: float, **more: float) -> dict[str, float]:
        return {"p50_us": 300, "p99_us": p99, "p999_us": 2 * p99, "served_per_s": 2000} | more

    runs = {
        kind: {
            "none": [run(3000 + turn, best_effort_cpus=0.2, others=0.01) for turn in range(6)],
            "static": [run(1000 + turn, best_effort_cpus=0.1, others=0.01) for turn in range(6)],
        }
        for kind in ("alone", "together")
    }
    return {
        "machine": {"cpus": "0-1", "kernel": "6.18", "virtual": True, "cgroups": 1},
        "seconds": 3.0,
        "turns": 6,
        "decided": True,
        "modes": {"none": "policy none", "static": "policy static & more"},
        "medians": medians(runs),
        "ratios": {
            "static to none": {
                kind: {name: str(one) for name, one in figures.items()}
                for kind, figures in intervals(runs, "static", "none").items()
            }
        },
        "runs": runs,
    }


def test_what_is_told_of_the_runs() -> None:
    told = document()
    assert told["medians"]["alone"]["none"]["p99_us"] == {
        "median": 3002.5,
        "least": 3000,
        "most": 3005,
    }
    assert told["ratios"]["static to none"]["alone"]["p99_us"] == "0.33 (0.33 to 0.33)"
    page = markdown(told)
    assert "| `static` | 300 | 1,002 (1,000 to 1,005) |" in page
    assert "static to none" in text(told)
    assert "Other programs were busy" not in page
    for modes in told["medians"].values():
        modes["none"]["others"]["median"] = 1.0
    assert "Other programs were busy" in markdown(told)
    picture = ET.fromstring(as_svg(told))  # noqa: S314 - drawn here
    assert picture.tag.endswith("svg")


def test_the_page_has_one_place_for_it(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    shutil.copy(PAGE, page)
    write_into(page, "TABLES\n")
    first = page.read_text()
    assert "TABLES" in first
    write_into(page, "TABLES\n")
    assert page.read_text() == first
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has not one place"):
        write_into(page, "x")


def test_an_unknown_work_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--work", "sleep"]) == 2
    assert capsys.readouterr().err == "--work must be service or timers, not 'sleep'\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_every_run_of_the_server_has_the_same_requests(tmp_path: Path) -> None:
    program = tmp_path / "server"
    command = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", str(program)]
    subprocess.run([*command, str(SOURCE), "-lm"], check=True, capture_output=True)
    counts = []
    for kind in ("alone", "together"):
        for number in range(2):
            file = tmp_path / f"{kind}{number}"
            words = ["serve", kind, "64", "250", "0.1", "0.3", str(file)]
            with subprocess.Popen([program, *words]) as server:
                while not file.exists():
                    assert server.poll() is None
                server.kill()
            told = json.loads(file.read_text())
            assert 0 <= told["p50_us"] <= told["p99_us"] <= told["p999_us"] <= told["max_us"]
            assert told["busy_percent"] >= 0
            counts.append(told["requests"])
    # 0.3 s of 30 % and 70 % in turn, at 250 us each.
    assert len(set(counts)) == 1
    assert 400 < counts[0] < 800
    assert subprocess.run([program, "rest"], check=False, capture_output=True).returncode == 2
