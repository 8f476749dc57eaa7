"""The worst decisions, the experiment, and what the figures do not tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pinfold.documents.simulation.results import Simulation, WorstDecision
from pinfold.formats.yaml_writing import written_yaml
from pinfold.render.report.view import Block, Folded, Points, Section, Text
from pinfold.views.numbers import counted, duration
from pinfold.views.report.configurations import Configuration

_MOST: Final = 5
"""Of a configuration."""


def worst_decisions(compared: Sequence[Configuration]) -> Section:
    """Those that somebody would want to look into."""
    blocks: list[Block] = []
    left_out = 0
    for one in compared:
        told = [(run.seed, decision) for run in one.runs for decision in run.worst]
        blocks += [_decision(one.title, seed, decision) for seed, decision in told[:_MOST]]
        left_out += len(told[_MOST:])
    if not blocks:
        blocks.append(Text("None was noted."))
    if left_out:
        blocks.append(
            Text(f"{counted(left_out, 'more', 'more')} of other seeds are in the results as JSON.")
        )
    return Section("decisions", "The worst decisions", tuple(blocks))


def _decision(name: str, seed: int, decision: WorstDecision) -> Folded:
    verdict = "let in" if decision.admitted else decision.reason or "rejected"
    return Folded(
        f"{name}: {decision.why_here}",
        (
            ("Pod", decision.pod),
            ("It asked for", counted(decision.cpus, "CPU")),
            ("Node", decision.node),
            ("Free there", counted(decision.free_cpus, "CPU")),
            ("Verdict", verdict),
            ("At", f"{duration(decision.at)} of the run"),
            ("Seed", str(seed)),
        ),
        tuple(decision.explanation),
    )


def experiment(simulation: Simulation) -> Section:
    """What was simulated."""
    text = written_yaml([dict(simulation.experiment)])
    return Section("experiment", "The experiment", (Folded("As it was read", code=text),))


def caveats(simulation: Simulation, compared: Sequence[Configuration]) -> Section:
    """What the figures do not tell."""
    replayed = sum(run.replayed.decisions for one in compared for run in one.runs)
    items = [Text(note) for note in simulation.notes]
    items.append(
        Text(
            f"{counted(replayed, 'decision')} of the runs were made once more by the planner from "
            "the node's whole state, and compared."
            if replayed
            else "No decision was made once more by the planner to be compared."
        )
    )
    return Section("caveats", "What the figures do not tell", (Points(tuple(items)),))
