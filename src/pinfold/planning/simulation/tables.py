"""The results of a simulation as plain records, for whoever computes with them.

Each is what ``pandas.DataFrame(...)`` and ``polars.DataFrame(...)`` take as it is: rows of one
kind, or columns of equal length.  The names are those of the documents' fields.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec.structs import asdict

from pinfold.documents.simulation.results import Averages, Run, Simulation

Value: TypeAlias = str | int | float | bool


def runs_table(simulation: Simulation) -> list[dict[str, Value]]:
    """A row for each run: what became of its pods, means over time, spread, and moves.

    ``nodes`` is the size of the fleet; ``placed_first`` and ``placed_later`` are the pods that were
    let in at their first attempt, and later; ``beyond_...`` the containers that are on more groups
    of the kind than they need; ``moves_...`` what was moved.  Times are in seconds, memory is in
    bytes, and the names say so; CPUs are means over time.
    """
    return [_run(run) for run in simulation.runs]


def reasons_table(simulation: Simulation) -> list[dict[str, Value]]:
    """A row for each reason of each run: attempts refused, and pods given up."""
    return [
        {
            "configuration": run.configuration,
            "seed": run.seed,
            "reason": reason,
            "refused": refused,
            "rejected": run.fates.rejected_by.get(reason, 0),
        }
        for run in simulation.runs
        for reason, refused in run.fates.refusals.items()
    ]


def fits_table(simulation: Simulation) -> list[dict[str, Value]]:
    """A row for each size of pods of each run: what was free, and what of it they could use."""
    return [
        {"configuration": run.configuration, "seed": run.seed, **asdict(fit)}
        for run in simulation.runs
        for fit in run.fits
    ]


def series_table(simulation: Simulation) -> dict[str, list[Value]]:
    """Columns: how each run went over time, one run after the other."""
    found: dict[str, list[Value]] = {"configuration": [], "seed": []}
    for run in simulation.runs:
        count = len(run.series["time"])
        found["configuration"] += [run.configuration] * count
        found["seed"] += [run.seed] * count
        for name, column in run.series.items():
            found.setdefault(name, []).extend(column)
    return found


def _run(run: Run) -> dict[str, Value]:
    fates = run.fates
    first = fates.placed_at.get("1", 0)
    return {
        "configuration": run.configuration,
        "seed": run.seed,
        "nodes": sum(run.nodes.values()),
        "complete": run.complete,
        "until_seconds": run.until,
        "counted_from_seconds": run.counted_from,
        "arrived": fates.arrived,
        "running": fates.running,
        "ended": fates.ended,
        "rejected": fates.rejected,
        "waiting": fates.waiting,
        "placed_first": first,
        "placed_later": sum(fates.placed_at.values()) - first,
        "refused": sum(fates.refusals.values()),
        **{name: getattr(run.averages, name) for name in Averages.__struct_fields__},
        **{f"beyond_{name}": count for name, count in run.spread.beyond.items()},
        **{f"moves_{name}": count for name, count in asdict(run.moves).items()},
        "replayed": run.replayed.decisions,
        "different": run.replayed.different,
    }
