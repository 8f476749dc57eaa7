"""The report of a simulation, in the order in which a planner asks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinfold.documents.simulation.results import Simulation
from pinfold.render.report.texts import isolated
from pinfold.render.report.view import Report
from pinfold.views.numbers import counted, duration
from pinfold.views.report.answer import answer
from pinfold.views.report.configurations import Configuration, configurations, range_of
from pinfold.views.report.decisions import caveats, experiment, worst_decisions
from pinfold.views.report.nodes_needed import nodes_needed
from pinfold.views.report.places import places
from pinfold.views.report.pods import pods
from pinfold.views.report.series import series


def report_view(simulation: Simulation) -> Report:
    """The report, as data."""
    compared = configurations(simulation)
    return Report(
        simulation.name,
        _subtitle(simulation, compared),
        (
            answer(simulation, compared),
            *nodes_needed(simulation, compared),
            pods(compared),
            *places(compared),
            series(compared),
            worst_decisions(compared),
            caveats(simulation, compared),
            experiment(simulation),
        ),
        tuple(_alerts(simulation, compared)),
    )


def _subtitle(simulation: Simulation, compared: Sequence[Configuration]) -> str:
    words = [counted(len(compared), "configuration"), counted(len(simulation.runs), "run")]
    if simulation.runs:
        nodes = range_of(sum(run.nodes.values()) for run in simulation.runs)
        words.append(f"{nodes.told(lambda value: f'{round(value):,}')} nodes")
        words.append(f"{duration(max(run.until for run in simulation.runs))} simulated")
    return ", ".join(words)


def _alerts(simulation: Simulation, compared: Sequence[Configuration]) -> Iterator[str]:
    unfinished = [run for run in simulation.runs if not run.complete]
    if unfinished or simulation.missing:
        words = []
        if unfinished:
            words.append(f"{counted(len(unfinished), 'run')} ended early")
        if simulation.missing:
            words.append(f"{counted(len(simulation.missing), 'run')} did not begin")
        yield (
            f"This simulation was interrupted: {' and '.join(words)}. What is here was counted "
            "until then, and runs that ended at different times are not to be compared."
        )
        for run in unfinished:
            name = isolated(run.configuration)
            yield f"{name}, seed {run.seed}: interrupted after {duration(run.until)}."
        absent = {name for name, _ in simulation.missing}
        for one in compared:
            if one.name in absent:
                seeds = [str(seed) for name, seed in simulation.missing if name == one.name]
                yield f"{one.title}: not run with {'seed' if len(seeds) == 1 else 'seeds'} " + (
                    ", ".join(seeds) + "."
                )
    different = sum(run.replayed.different for run in simulation.runs)
    if different:
        yield (
            f"{counted(different, 'decision')} differ from the planner's own: this is a fault of "
            "the simulator, and its figures cannot be trusted."
        )
