"""How many nodes each configuration needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from pinfold.documents.simulation.results import Needed, Simulation
from pinfold.render.report.view import (
    Bar,
    BarChart,
    Block,
    Column,
    Figure,
    Line,
    LineChart,
    Section,
    Table,
    Text,
)
from pinfold.views.numbers import number, percent
from pinfold.views.report.configurations import Configuration, is_many, range_of

_MOST_LINES: Final = 24


def nodes_needed(simulation: Simulation, compared: Sequence[Configuration]) -> tuple[Section, ...]:
    """The section, if the experiment asked for it."""
    if simulation.needed is UNSET:
        return ()
    found = tuple(simulation.needed)
    blocks: list[Block] = []
    without = {one.configuration for one in found if one.factor is None}
    unreached = [one.title for one in compared if one.name in without]
    if unreached:
        words = "The most nodes that were tried were not enough with some seed for: "
        blocks.append(Text(words + ", ".join(unreached) + "."))
    bars = _factors(found, compared)
    if bars is not None:
        blocks.append(bars)
    tried = _tried(found, compared)
    if tried is not None:
        blocks.append(tried)
    if not blocks:
        blocks.append(Text("No number of nodes was found: the search did not come to an end."))
    return (Section("nodes", "Nodes needed", tuple(blocks)),)


def _factors(found: Sequence[Needed], compared: Sequence[Configuration]) -> Figure | None:
    bars = []
    rows = []
    for one in compared:
        mine = [need for need in found if need.configuration == one.name]
        reached = [need.factor for need in mine if need.factor is not None]
        if not mine:
            continue
        if not reached:
            rows.append((one.title, percent(mine[0].acceptance), "not found", "not found"))
            continue
        factor = range_of(reached)
        nodes = range_of(sum(need.nodes.values()) for need in mine if need.nodes is not None)
        bars.append(
            Bar(
                one.title,
                f"{nodes.told(_whole)} nodes",
                (factor.mean,),
                (factor.low, factor.high),
            )
        )
        acceptance = range_of(need.acceptance for need in mine)
        rows.append((one.title, percent(acceptance.mean), nodes.told(_whole), factor.told(number)))
    if not bars:
        return None
    return Figure(
        "nodes-needed",
        "Nodes needed to let in as many pods",
        "The smallest fleet with which the share of pods asked for is let in, as a multiple of the "
        "nodes of the experiment.",
        BarChart("times the nodes of the experiment", ("nodes",), tuple(bars)),
        Table(
            "Nodes that each configuration needs",
            (
                Column("Configuration", numeric=False),
                Column("Share to be let in"),
                Column("Nodes"),
                Column("Times those of the experiment"),
            ),
            tuple(rows),
        ),
    )


def _tried(found: Sequence[Needed], compared: Sequence[Configuration]) -> Figure | None:
    lines = []
    rows = []
    if len(found) > _MOST_LINES:
        found = [need for need in found if need.seed == found[0].seed]
    for one in compared:
        for need in found:
            if need.configuration == one.name and need.tried:
                tried = tuple(sorted(need.tried))
                lines.append(Line(one.index, tried))
                rows += [
                    (one.title, str(need.seed), number(factor), percent(share))
                    for factor, share in tried
                ]
    if not lines:
        return None
    return Figure(
        "nodes-tried",
        "What was tried",
        "The share of pods that was let in, by how many nodes there were, one line a "
        f"{'seed' if len(lines) > len(compared) else 'configuration'}. The axes do not begin at 0.",
        LineChart(
            "times the nodes of the experiment",
            "share let in",
            tuple(one.title for one in compared),
            tuple(lines),
            percent=True,
            from_zero=False,
            numbered=is_many(len(compared)),
        ),
        Table(
            "Nodes that were tried",
            (
                Column("Configuration", numeric=False),
                Column("Seed"),
                Column("Times the nodes"),
                Column("Share let in"),
            ),
            tuple(rows),
        ),
    )


def _whole(value: float) -> str:
    return f"{round(value):,}"
