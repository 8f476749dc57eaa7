"""The worst decisions of a simulation, as many as text shows of them."""

from __future__ import annotations

from typing import Final

from pinfold.documents.simulation.results import Run, Simulation, WorstDecision
from pinfold.render.simulation.worst import BadDecision, BadDecisions

_CONFIGURATIONS: Final = 4
_EACH: Final = 3


def worst_view(document: Simulation) -> tuple[tuple[BadDecisions, ...], int]:
    """Those of the first seed by configuration, and how many configurations are left out."""
    firsts: dict[str, Run] = {}
    for run in document.runs:
        firsts.setdefault(run.configuration, run)
    bad = [run for run in firsts.values() if run.worst]
    shown = tuple(
        BadDecisions(
            run.configuration,
            tuple(map(_bad, run.worst[:_EACH])),
            max(len(run.worst) - _EACH, 0),
        )
        for run in bad[:_CONFIGURATIONS]
    )
    return shown, max(len(bad) - _CONFIGURATIONS, 0)


def _bad(one: WorstDecision) -> BadDecision:
    return BadDecision(
        at=one.at,
        where=one.node,
        whom=f"{one.pod} with {one.cpus} CPU{'s' * (one.cpus != 1)}",
        outcome="" if one.admitted else one.reason or "refused",
        why=one.why_here,
        reasons=tuple(one.explanation),
    )
