"""What the figures of an experiment do not tell by themselves, for whoever reads only these."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pinfold.documents.simulation.results import Run

_MANY: Final = 0.05
"""Of the pods that came: who waits at the end might make that much of a difference."""


def cautions(runs: Iterable[Run]) -> Iterator[str]:
    """Yield what to be told of runs that have counted nothing, or ended too early."""
    ended = [run for run in runs if run.complete]
    if empty := [run for run in ended if not run.fates.arrived]:
        run = empty[0]
        yield (
            f"no pod was counted: the warm-up ends at {run.counted_from:g} s, and none came from "
            f"then until the end at {run.until:g} s; make warmUp shorter, or give more arrivals"
        )
    waiting = [run for run in ended if run.fates.waiting > _MANY * run.fates.arrived]
    if waiting:
        most = max(waiting, key=lambda run: run.fates.waiting / run.fates.arrived)
        yield (
            f"in {len(waiting)} of {len(ended)} runs more than {_MANY:.0%} of the pods waited for "
            f"another attempt at the end, and are neither let in nor rejected (most: "
            f"{most.configuration}, seed {most.seed}: {most.fates.waiting} of "
            f"{most.fates.arrived}); a longer run, or a shorter retry.backoff, tells more"
        )
