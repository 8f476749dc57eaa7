"""The answer first: a sentence for each configuration, and all of them side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET

from pinfold.documents.simulation.results import Needed, Run, Simulation
from pinfold.render.report.view import Block, Column, Folded, Points, Section, Shown, Table, Text
from pinfold.views.numbers import counted, number, percent
from pinfold.views.report.configurations import Configuration, is_many, range_of, rejected_share


def answer(simulation: Simulation, compared: Sequence[Configuration]) -> Section:
    """What a planner asked."""
    needed: dict[str, list[Needed]] = {}
    for one in simulation.needed or ():
        needed.setdefault(one.configuration, []).append(one)
    first = compared[0] if compared else None
    sentences = {
        one.index: Text(_rejected(one, first) + _nodes(needed.get(one.name, ())), strong=one.title)
        for one in compared
    }
    blocks: list[Block] = []
    ran = [one for one in compared if one.runs]
    if len(compared) > _MOST_SENTENCES and ran:
        fewest = min(ran, key=lambda one: one.over(rejected_share).mean)
        most = max(ran, key=lambda one: one.over(rejected_share).mean)
        blocks.append(Text("The first, and those that reject the fewest and the most pods:"))
        extremes = dict.fromkeys((ran[0].index, fewest.index, most.index))
        blocks.append(Points(tuple(sentences[index] for index in extremes)))
        lines = tuple(f"{one.strong} {one.text}" for one in sentences.values())
        blocks.append(Folded("All of them, a sentence each", lines=lines))
    else:
        blocks.append(Points(tuple(sentences.values())))
    if simulation.needed is UNSET:
        blocks.append(_NOT_ASKED)
    if is_many(len(compared)):
        blocks.append(Text("The numbers of the configurations are those in the plots below."))
    return Section("answer", "The answer", (*blocks, Shown(_side_by_side(compared))))


_MOST_SENTENCES = 6
_MOST_COLUMNS = 4
_MOST_REPEATED = 24
_NOT_ASKED = Text(
    "How many more nodes each of them would need was not looked for: the experiment has no "
    "nodesNeeded."
)


def _rejected(one: Configuration, first: Configuration | None) -> str:
    if not one.runs:
        return "was not run."
    arrived = one.over(lambda run: run.fates.arrived)
    if not arrived.high:
        return "had no pods to place."
    rejected, share = one.over(lambda run: run.fates.rejected), one.over(rejected_share)
    several = len(one.runs) > 1
    low, high = percent(share.low), percent(share.high)
    between = f"({percent(share.mean)}; {low} to {high} over {len(one.runs)} seeds)"
    if low == high:
        between = f"({low} with each of {len(one.runs)} seeds)" if several else f"({low})"
    count = f"{'about ' * (rejected.low < rejected.high)}{number(rejected.mean)}"
    text = f"rejects {count} of {round(arrived.mean):,} pods {between}"
    if first is not None and first is not one and first.runs:
        text += _against(share.mean - first.over(rejected_share).mean, first.title)
    unfinished = sum(not run.complete for run in one.runs)
    if unfinished:
        text += (
            f"; {unfinished} of {counted(len(one.runs), 'run')} interrupted"
            if several
            else ("; interrupted")
        )
    return f"{text}."


def _against(difference: float, name: str) -> str:
    if len(name) > _MOST_REPEATED:
        name = "the first"
    if abs(difference) < 5e-6:
        return f", as many as {name}"
    points = percent(abs(difference)).replace("%", "points")
    return f", {points} {'more' if difference > 0 else 'less'} than {name}"


def _nodes(needed: Sequence[Needed]) -> str:
    if not needed:
        return ""
    found = [one for one in needed if one.factor is not None and one.nodes is not None]
    acceptance = percent(range_of(one.acceptance for one in needed).mean)
    if len(found) < len(needed):
        most = max((factor for one in needed for factor, _ in one.tried), default=0.0)
        tail = "" if not found else f" with {counted(len(needed) - len(found), 'seed')}"
        return f" Not even {number(most)} times the nodes let in {acceptance} of the pods{tail}."
    nodes = range_of(sum((one.nodes or {}).values()) for one in found)
    factor = range_of(one.factor or 0.0 for one in found)
    text = f" To let in {acceptance} of the pods it needs {nodes.told(_whole)} nodes"
    if factor.low == factor.high == 1:
        return f"{text}, as many as the experiment has."
    return f"{text}, {factor.told(_times)} times those of the experiment."


def _whole(value: float) -> str:
    return f"{round(value):,}"


def _times(value: float) -> str:
    return f"{value:.3g}"


def _second(run: Run) -> float:
    later = sum(count for attempt, count in run.fates.placed_at.items() if attempt != "1")
    return later / run.fates.arrived if run.fates.arrived else 0.0


def _of_allocatable(run: Run, value: float) -> float:
    return value / run.averages.allocatable_cpus if run.averages.allocatable_cpus else 0.0


_COLUMNS: tuple[tuple[str, Callable[[Run], float], Callable[[float], str]], ...] = (
    ("Nodes", lambda run: sum(run.nodes.values()), number),
    ("Pods that came", lambda run: run.fates.arrived, number),
    ("Rejected", lambda run: run.fates.rejected, number),
    ("Rejected, share", rejected_share, percent),
    ("Placed later than at once", _second, percent),
    ("Still waiting", lambda run: run.fates.waiting, number),
    ("CPUs requested", lambda run: _of_allocatable(run, run.averages.requested_cpus), percent),
    ("CPUs owned", lambda run: _of_allocatable(run, run.averages.exclusive_cpus), percent),
    ("CPUs stranded", lambda run: _of_allocatable(run, run.averages.stranded_cpus), percent),
    ("Busy nodes", lambda run: run.averages.busy_nodes, number),
    ("Idle sockets", lambda run: run.averages.idle_sockets, number),
    ("Containers moved", lambda run: run.moves.containers, number),
)


def _side_by_side(compared: Sequence[Configuration]) -> Table:
    several = any(len(one.runs) > 1 for one in compared)
    caption = (
        "Side by side; CPUs are means over time, as a share of those that can be allocated"
        + "; the lowest and the highest seed in brackets" * several
    )
    if len(compared) <= _MOST_COLUMNS:
        rows = tuple(
            (title, *(one.over(value).told(words) if one.runs else "not run" for one in compared))
            for title, value, words in _COLUMNS
        )
        titles = (Column(one.title) for one in compared)
        return Table(caption, (Column("What", numeric=False), *titles), rows)
    rows = tuple(
        (one.title, *(one.over(value).told(words) for _, value, words in _COLUMNS))
        if one.runs
        else (one.title, *("not run" for _ in _COLUMNS))
        for one in compared
    )
    columns = (Column("Configuration", numeric=False), *(Column(title) for title, *_ in _COLUMNS))
    return Table(caption, columns, rows)
