"""The soak sees what an agent holds, and leaves nothing behind."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.soak import COLUMNS, Sample, growth, rollup

from tests.roots import ROOT
from tests.scenes.agent_process import skip_unless_an_agent_can_run
from tests.scenes.waiting import PATIENCE

SAMPLE = Sample(0, 0, 0, 2048, 1024, 512, 4, 20, 100, 0, 0.5)


def test_the_figures_of_a_process_are_read_from_the_kernel() -> None:
    figures = rollup(Path(f"/proc/{os.getpid()}/smaps_rollup").read_text(encoding="ascii"))
    assert figures["Rss"] >= figures["Pss"] > 0
    assert figures["Rss"] >= figures["Anonymous"] > 0


def test_growth_is_told_by_medians_of_parts() -> None:
    samples = [
        replace(SAMPLE, seconds=10.0 * n, pods=10 * n, rss_kib=1024 * n) for n in range(1, 13)
    ]
    samples[0] = replace(samples[0], rss_kib=999_999, threads=9)
    lines = growth(samples, parts=2)[1:]
    assert [line.split()[:4] for line in lines] == [
        ["1", "60", "60", "4.5"],
        ["2", "120", "120", "9.5"],
    ], "one that sticks out changes little"
    assert [line.split()[4] for line in lines] == ["4", "4"]


def test_a_short_soak_churns_and_leaves_nothing(tmp_path: Path) -> None:
    skip_unless_an_agent_can_run()
    file = tmp_path / "soak.csv"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.soak", "--seconds", "4", "--rate", "5", "--csv", file],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    header, first, *_, last = csv.reader(file.read_text().splitlines())
    assert tuple(header) == COLUMNS
    begin, end = (dict(zip(header, map(float, row), strict=True)) for row in (first, last))
    assert end["seconds"] >= 4
    assert end["pods"] > begin["pods"]
    assert end["refused"] == 0
    assert end["rss_kib"] > 10_000
    assert list(tmp_path.iterdir()) == [file], "the agent's folder is gone"
