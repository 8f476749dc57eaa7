"""A simulation from Python, as ``pinfold simulate`` makes it."""

from __future__ import annotations

from collections.abc import Sequence

from pinfold.adapters.executors.opening import Choice, open_pool
from pinfold.core.values.errors import wrong_type
from pinfold.documents.simulation.results import Simulation
from pinfold.formats.paths import StrPath
from pinfold.planning.simulation.campaign.experiment_runs import run_experiment
from pinfold.planning.simulation.experiment.loading import LoadedExperiment, load_experiment


def simulate(
    experiment: StrPath | LoadedExperiment,
    *,
    traces: StrPath | None = None,
    seeds: Sequence[int] = (),
    workers: int = 1,
) -> Simulation:
    """Simulate a fleet under each configuration of an experiment.

    Args:
        experiment: a file of kind Experiment, or one that is loaded.
        traces: the folder of a trace that names none, for a file.
        seeds: in place of those of the file.
        workers: how many runs at once, each in a process; one: in this process.  The results are
            the same with any number.

    Raises:
        ConfigError: the experiment is wrong somewhere; the message names the field.
        TraceError: the arrivals cannot be read.
        RunError: a run came to no result.
        TypeError: a path that is neither a text nor a ``pathlib.Path``, or seeds that are no
            sequence.
    """
    if not isinstance(seeds, Sequence):
        raise wrong_type("seeds", "a sequence of whole numbers, such as [1, 2]", seeds)
    if not isinstance(experiment, LoadedExperiment):
        experiment = load_experiment(experiment, traces=traces, seeds=tuple(seeds))
    with open_pool(Choice(workers=workers), len(experiment.specs)) as pool:
        return run_experiment(experiment, pool).simulation
