"""The table of a simulation: what it says where something is missing, interrupted or at fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pinfold.documents.simulation.results import Needed, Simulation
from pinfold.planning.simulation.engine import simulate
from pinfold.planning.simulation.experiment.loading import load_experiment
from pinfold.render.simulation.side_by_side import render_side_by_side
from pinfold.render.terminal import Style
from pinfold.views.numbers import duration, memory
from pinfold.views.simulation import simulation_view

_EXPERIMENT = """\
apiVersion: pinfold.dev/v1alpha1
kind: Experiment
metadata: {name: small}
spec:
  nodes: [{machine: 1s4c2t@16Gi, count: 2}]
  configurations:
    - name: none
    - name: own
      kubeletConfiguration: {cpuManagerPolicy: static, reservedSystemCPUs: "0"}
  arrivals:
    synthetic:
      perHour: 10
      sizes: [{weight: 1, cpu: 2, memory: 1Gi}]
      lifetimes: {mean: 1h}
  seeds: [1, 2]
  stop: {after: 12h}
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Simulation:
    file: Path = tmp_path_factory.mktemp("view") / "experiment.yaml"
    file.write_text(_EXPERIMENT, encoding="utf-8")
    loaded = load_experiment(str(file))
    return Simulation(
        name=loaded.name,
        experiment=loaded.document,
        configurations=loaded.configurations,
        runs=tuple(simulate(spec).run for spec in loaded.specs),
    )


def _text(simulation: Simulation, width: int = 80) -> str:
    return render_side_by_side(simulation_view(simulation), Style(width=width))


def _row(simulation: Simulation, label: str) -> str:
    lines = _text(simulation).splitlines()
    return next(line for line in lines if line.strip().startswith(label))


def test_a_column_is_the_mean_of_its_seeds(whole: Simulation) -> None:
    arrived = [run.fates.arrived for run in whole.runs]
    mean = f"{(arrived[0] + arrived[1]) / 2:,.0f}"
    assert _row(whole, "arrived").split() == ["arrived", mean, mean]
    rejected = [run.fates.rejected for run in whole.runs[2:]]
    assert f"{min(rejected)} to {max(rejected)}" in _text(whole)


def test_the_table_and_the_page_say_times_and_memory_alike(whole: Simulation) -> None:
    """A row of the price of moves, and the title, against the page's words."""
    days = 36 * 86400.0
    runs = tuple(
        replace(
            run,
            until=days,
            moves=replace(run.moves, containers=1, memory_bytes=3 * 2**39),
        )
        for run in whole.runs
    )
    moved = replace(whole, runs=runs)
    assert duration(days).split() == ["36", "days"]
    assert _text(moved).splitlines()[1].startswith("36 days of time")
    assert memory(3 * 2**39).split() == ["1.5", "TiB"]
    assert _row(moved, "memory left behind").split()[3:] == ["1.5", "TiB", "1.5", "TiB"]


def test_what_was_not_run_is_said_and_has_no_figures(whole: Simulation) -> None:
    part = replace(whole, runs=whole.runs[:2], missing=(("own", 1), ("own", 2)))
    text = _text(part)
    assert _row(part, "arrived").split()[-1] == "-"
    assert "not run" in text.splitlines()[4]
    assert "• not run: own, seed 1" in text
    nothing = _text(replace(whole, runs=(), missing=(("none", 1),)))
    assert "nothing was run" in nothing


def test_what_was_interrupted_says_when(whole: Simulation) -> None:
    cut = replace(whole.runs[0], complete=False, until=3 * 3600.0)
    text = _text(replace(whole, runs=(cut, *whole.runs[1:])), width=100)
    assert "interrupted at 3 h" in " ".join(text.split())


def test_a_decision_that_was_not_the_planners_is_said_loudly(whole: Simulation) -> None:
    assert "fault" not in _text(whole)
    broken = replace(whole.runs[0], replayed=replace(whole.runs[0].replayed, different=1))
    assert "do not trust these figures" in " ".join(_text(replace(whole, runs=(broken,))).split())


def test_nodes_needed_stand_beside_each_other(whole: Simulation) -> None:
    def needed(configuration: str, seed: int, nodes: int | None) -> Needed:
        return Needed(
            configuration=configuration,
            seed=seed,
            acceptance=1.0,
            nodes=None if nodes is None else {"node": nodes},
            factor=None,
            tried=((1.0, 0.5), (4.0, 0.9)),
        )

    found = (
        needed("none", 1, 3),
        needed("none", 2, 5),
        needed("own", 1, 3),
        needed("own", 2, None),
    )
    asked = replace(whole, needed=found)
    assert _row(asked, "nodes needed").split()[2:] == ["4", "over", "4", "times"]
    assert "3 to 5" in _text(asked)


def test_names_move_no_cursor(whole: Simulation) -> None:
    name = "a\x1b[2J\u202eb"
    runs = tuple(replace(run, configuration=name) for run in whole.runs[:2])
    text = _text(replace(whole, configurations=(name,), runs=runs, name=name))
    assert all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.parametrize("width", [20, 33, 80, 200])
def test_lines_keep_to_the_width_with_many_long_names(whole: Simulation, width: int) -> None:
    names = [f"configuration-with-a-long-name-{number:02}, option=true" for number in range(20)]
    runs = tuple(replace(whole.runs[2], configuration=name) for name in names)
    text = _text(replace(whole, configurations=tuple(names), runs=runs), width)
    assert max(map(len, text.splitlines())) <= width
    for number in range(20):
        assert f"{number:02}" in text
