"""The runs of an experiment, one after the other in this process, and what they all counted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET

from pinfold.documents.simulation.results import Needed, Run, Simulation
from pinfold.planning.simulation.engine import simulate
from pinfold.planning.simulation.loading import LoadedExperiment


def run_here(loaded: LoadedExperiment) -> Simulation:
    """Make all runs of an experiment.

    Raises:
        TraceError: the arrivals cannot be read.
    """
    return together(loaded, [simulate(spec).run for spec in loaded.specs])


def together(
    loaded: LoadedExperiment, runs: Iterable[Run], needed: Sequence[Needed] | None = None
) -> Simulation:
    """What is printed of an experiment: its runs in their order, and which of them are missing."""
    made = {(run.configuration, run.seed): run for run in runs}
    asked = [(spec.configuration, spec.seed) for spec in loaded.specs]
    return Simulation(
        name=loaded.name,
        experiment=loaded.document,
        configurations=loaded.configurations,
        runs=tuple(made[one] for one in asked if one in made),
        missing=tuple(one for one in asked if one not in made),
        needed=UNSET if needed is None else tuple(needed),
        notes=loaded.notes,
    )
