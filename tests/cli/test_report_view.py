"""What a report says of a simulation: the figures are those of the results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pinfold.cli.output import InputError
from pinfold.cli.report_files import write_pictures, write_report
from pinfold.documents.simulation.results import Replayed, Simulation
from pinfold.formats.extras import install_command
from pinfold.render.report.view import (
    BarChart,
    Figure,
    Folded,
    LineChart,
    Points,
    Report,
    Section,
    Shown,
    Text,
)
from pinfold.views.numbers import duration, number, percent
from pinfold.views.report.configurations import range_of
from pinfold.views.report.view import report_view
from tests.scenes.simulation_results import empty, interrupted, run, simulation, without_pods


def section(report: Report, name: str) -> Section:
    return next(one for one in report.sections if one.name == name)


def figure(results: Simulation, name: str) -> Figure:
    return next(one for one in report_view(results).figures() if one.name == name)


def sentences(results: Simulation) -> dict[str, str]:
    """Configuration -> what is said of it."""
    (points,) = (
        block
        for block in section(report_view(results), "answer").blocks
        if isinstance(block, Points)
    )
    return {item.strong: item.text for item in points.items}


def test_the_answer_is_a_sentence_for_each_configuration() -> None:
    results = simulation(seeds=1)
    static = results.runs[1].fates
    share = static.rejected / static.arrived
    assert share == pytest.approx(0.0143, abs=0.0001)
    assert sentences(results) == {
        "none": "rejects 0 of 40,100 pods (0\u00a0%). To let in 99.8\u00a0% of the pods it needs "
        "100 nodes, as many as the experiment has.",
        "static": f"rejects {static.rejected} of 40,100 pods (1.4\u00a0%), 1.4\u00a0points more "
        "than none. To let in 99.8\u00a0% of the pods it needs 108 nodes, 1.08 times those of the "
        "experiment.",
        "static-restricted": f"rejects {results.runs[2].fates.rejected:,} of 40,100 pods "
        "(2.6\u00a0%), 2.6\u00a0points more than none. Not even 4 times the nodes let in "
        "99.8\u00a0% of the pods.",
    }


def test_several_seeds_are_a_mean_and_its_ends() -> None:
    results = simulation(("none", "static"), seeds=3)
    shares = [one.fates.rejected / one.fates.arrived for one in results.runs[3:]]
    text = sentences(results)["static"]
    low, high = percent(min(shares)), percent(max(shares))
    many = sum(one.fates.rejected for one in results.runs[3:]) / 3
    between = "with each of 3 seeds" if low == high else f"{low} to {high} over 3 seeds"
    assert text.startswith(f"rejects about {round(many):,} of 40,200 pods (")
    assert between in text


def test_who_did_not_ask_for_nodes_is_told_how_to() -> None:
    texts = section(report_view(simulation(needed=False)), "answer").blocks
    assert any(isinstance(text, Text) and "nodesNeeded" in text.text for text in texts)
    assert [one.name for one in report_view(simulation(needed=False)).sections][1] == "pods"


def test_rejections_by_reason_add_up_to_all() -> None:
    results = simulation(seeds=2)
    found = figure(results, "rejected-by-reason")
    assert isinstance(found.chart, BarChart)
    for place, bar in enumerate(found.chart.bars):
        runs = results.runs[2 * place : 2 * place + 2]
        shares = [one.fates.rejected / one.fates.arrived for one in runs]
        assert sum(bar.values) == pytest.approx(sum(shares) / 2)
        assert bar.between == pytest.approx((min(shares), max(shares)))


def test_the_last_attempt_has_all_who_were_let_in() -> None:
    results = simulation(seeds=1)
    found = figure(results, "acceptance-by-attempt")
    assert isinstance(found.chart, LineChart)
    for line, one in zip(found.chart.lines, results.runs, strict=True):
        assert line.points[-1][1] == pytest.approx(
            (one.fates.running + one.fates.ended) / one.fates.arrived
        )
        shares = [share for _, share in line.points]
        assert shares == sorted(shares)


def test_a_series_is_drawn_as_it_was_noted() -> None:
    results = simulation(("static",), seeds=1)
    found = figure(results, "time-exclusive-cpus")
    assert isinstance(found.chart, LineChart)
    (line,) = found.chart.lines
    assert found.chart.x == "days since the start"
    noted = results.runs[0].series
    assert [y for _, y in line.points] == list(noted["exclusiveCPUs"])
    assert [x * 86400 for x, _ in line.points] == pytest.approx(list(noted["time"]))


def test_a_rate_adds_up_to_what_was_counted() -> None:
    results = simulation(("none", "static"), seeds=2)
    found = figure(results, "time-rejected")
    assert isinstance(found.chart, LineChart)
    line = found.chart.lines[1]
    hours = 14 * 24 / len(line.points)
    rejected = [one.fates.rejected for one in results.runs if one.configuration == "static"]
    assert sum(y for _, y in line.points) * hours == pytest.approx(sum(rejected) / 2)


def test_what_is_always_nothing_is_said_and_not_drawn() -> None:
    report = report_view(simulation(("none",), needed=False))
    assert "time-moved" not in {one.name for one in report.figures()}
    texts = [block.text for block in section(report, "time").blocks if isinstance(block, Text)]
    assert any("not drawn" in text and "moved containers" in text for text in texts)


def test_who_was_interrupted_is_told_first() -> None:
    report = report_view(interrupted())
    first, cut, absent = report.alerts
    assert "interrupted" in first
    assert "1\u00a0run ended early" in first
    assert "1\u00a0run did not begin" in first
    assert cut.startswith("static-restricted, seed 1: interrupted after 4.7\u00a0days")
    assert absent == "static-restricted: not run with seed 2."
    assert "interrupted" in sentences(interrupted())["static-restricted"]


def test_nothing_at_all_is_a_report_too() -> None:
    report = report_view(empty())
    assert report.figures() == ()
    assert "did not begin" in report.alerts[0]
    assert set(sentences(empty()).values()) == {"was not run."}


def test_runs_without_pods_say_so() -> None:
    assert set(sentences(without_pods()).values()) == {"had no pods to place."}


def test_a_decision_that_the_planner_makes_otherwise_is_an_alert() -> None:
    whole = simulation(("none",), needed=False)
    wrong = replace(whole.runs[0], replayed=Replayed(decisions=5, different=2))
    (alert,) = report_view(replace(whole, runs=(wrong,))).alerts
    assert "2\u00a0decisions" in alert
    assert "cannot be trusted" in alert


def test_many_configurations_are_numbered_and_the_best_and_the_worst_come_first() -> None:
    names = [f"c{place}" for place in range(12)]
    results = simulation(names, needed=False)
    shares = [one.fates.rejected / one.fates.arrived for one in results.runs]
    worst = shares.index(max(shares))
    assert list(sentences(results)) == ["1. c0", f"{worst + 1}. c{worst}"]
    (all_of_them,) = (
        block
        for block in section(report_view(results), "answer").blocks
        if isinstance(block, Folded)
    )
    assert len(all_of_them.lines) == 12


@pytest.mark.parametrize("count", [1, 4, 5, 20])
def test_the_table_has_every_configuration(count: int) -> None:
    names = [f"c{place}" for place in range(count)]
    blocks = section(report_view(simulation(names)), "answer").blocks
    (shown,) = (block for block in blocks if isinstance(block, Shown))
    table = shown.table
    heads = [column.title for column in table.columns] + [row[0] for row in table.rows]
    assert all(any(head.endswith(name) for head in heads) for name in names)
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_every_table_behind_a_plot_is_whole() -> None:
    for results in (simulation(seeds=3), interrupted(), without_pods()):
        for one in report_view(results).figures():
            assert one.table.rows
            assert all(len(row) == len(one.table.columns) for row in one.table.rows), one.name


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=80), min_size=1, max_size=12, unique=True),
    st.integers(1, 3),
)
def test_any_names_make_a_whole_report(names: list[str], seeds: int) -> None:
    """Each plot has a line or a bar, and each table a row or a column, for each configuration."""
    report = report_view(simulation(names, seeds, needed=False))
    figures = {one.name: one for one in report.figures()}
    assert len(figures) == len(report.figures())
    reasons, running = figures["cpus"].chart, figures["time-running-pods"].chart
    assert isinstance(reasons, BarChart)
    assert isinstance(running, LineChart)
    assert len(reasons.bars) == len(names)
    assert [line.key for line in running.lines] == list(range(len(names)))
    assert len(running.keys) == len(names)
    for one in figures.values():
        assert all(len(row) == len(one.table.columns) for row in one.table.rows), one.name


def test_worst_decisions_have_the_words_of_explain() -> None:
    blocks = section(report_view(simulation(seeds=8)), "decisions").blocks
    first = blocks[0]
    assert isinstance(first, Folded)
    assert first.lines == ("No NUMA node has 16 free CPUs.", "restricted wants as few as 1.")
    assert ("Verdict", "TopologyAffinityError") in first.facts
    left = blocks[-1]
    assert isinstance(left, Text)
    assert left.text.startswith("6\u00a0more")


def test_the_experiment_is_there_as_it_was_read() -> None:
    (block,) = section(report_view(simulation()), "experiment").blocks
    assert isinstance(block, Folded)
    assert "kind: Experiment" in block.code
    assert "machine: 2s16c2t" in block.code


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0"), (1234.0, "1,234"), (1234.56, "1,235"), (12.34, "12.3"), (0.0456, "0.046")],
)
def test_numbers_have_the_digits_that_matter(value: float, words: str) -> None:
    assert number(value) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(0, "0"), (1, "100"), (0.125, "12.5"), (0.0042, "0.42"), (0.00012, "0.012")],
)
def test_shares_have_the_digits_that_matter(share: float, words: str) -> None:
    assert percent(share) == f"{words}\u00a0%"


def test_ranges_say_only_what_differs() -> None:
    assert range_of([1, 2, 3]).told(number) == "2 (1\u00a0to\u00a03)"
    assert range_of([2, 2]).told(number) == "2"
    assert duration(90) == "90\u00a0s"
    assert duration(7200) == "2\u00a0h"


def test_a_run_of_another_name_is_not_lost() -> None:
    whole = simulation(("none",), needed=False)
    results = replace(whole, runs=(*whole.runs, run("extra", 1, 3)))
    assert list(sentences(results)) == ["none", "extra"]


def test_files_are_written_and_a_place_that_is_none_is_told(tmp_path: Path) -> None:
    results = simulation(("static",), needed=False)
    write_report(results, tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    write_pictures(results, tmp_path / "new" / "folder")
    pictures = {path.stem for path in (tmp_path / "new" / "folder").glob("*.svg")}
    assert pictures == {one.name for one in report_view(results).figures()}
    with pytest.raises(InputError, match="no/such"):
        write_report(results, tmp_path / "no" / "such" / "r.html")
    with pytest.raises(InputError, match=r"r\.html"):
        write_pictures(results, tmp_path / "r.html")


@pytest.mark.parametrize("library", ["vl_convert", "jinja2"])
def test_without_its_libraries_one_line_says_what_to_install(library: str) -> None:
    program = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from pinfold.cli.output import InputError\n"
        "from pinfold.cli.commands.simulate import _report_files\n"
        "try:\n    _report_files('r.html', None)\n"
        "except InputError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        f"a report needs {library}; install pinfold with its extra: {install_command('report')}\n"
    )
