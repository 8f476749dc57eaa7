"""The tables of the study: which runs each of them shows, and by which figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Final, TypeAlias

from msgspec import UNSET, Struct

from pinfold.documents.simulation.results import Fit, Needed, Run, Simulation

Figure: TypeAlias = Callable[[Run], float]
Found: TypeAlias = Mapping[str, Simulation]
"""Name of an experiment -> what its runs came to."""

_MARKED: Final = re.compile(
    r"(<!-- table: (?P<name>[a-z0-9-]+) -->\n)(?P<table>.*?)(<!-- end of table -->)", re.DOTALL
)


class Column(Struct, frozen=True):
    """One figure of each configuration: the mean of its seeds, from the lowest to the highest."""

    title: str
    figure: Figure
    unit: str = " %"
    digits: int = 2


def _percent(part: float, of: float) -> float:
    return 100 * part / of if of else 0.0


def _rejected(run: Run) -> float:
    return _percent(run.fates.arrived - _let_in(run) - run.fates.waiting, run.fates.arrived)


def _let_in(run: Run) -> int:
    return run.fates.running + run.fates.ended


def _later(run: Run) -> float:
    return _percent(_let_in(run) - run.fates.placed_at.get("1", 0), run.fates.arrived)


def _refused_by_nodes(run: Run) -> float:
    refused = sum(run.fates.refusals.values()) - run.fates.refusals.get("Unschedulable", 0)
    return 100 * refused / run.fates.arrived if run.fates.arrived else 0.0


def _beyond(kind: str) -> Figure:
    def figure(run: Run) -> float:
        return _percent(run.spread.beyond.get(kind, 0), sum(run.spread.numa_nodes.values()))

    return figure


def _largest(run: Run) -> float:
    """Of the free CPUs those that pods of the largest usual size (8 in azure2017) could have."""
    fit = run.fits[-1] if run.fits else Fit(cpus=0, free_cpus=0, usable_cpus=0)
    return _percent(fit.usable_cpus, fit.free_cpus)


def _requested(run: Run) -> float:
    return _percent(run.averages.requested_cpus, run.averages.allocatable_cpus)


REJECTED: Final = Column("rejected", _rejected)
LATER: Final = Column("let in at a later attempt", _later)
REFUSED: Final = Column("refused by nodes, for 100 pods", _refused_by_nodes, "")
STRANDED: Final = Column(
    "CPUs stranded", lambda run: _percent(run.averages.stranded_cpus, run.averages.allocatable_cpus)
)
USABLE: Final = Column("free CPUs that pods with 8 could have", _largest, digits=0)
NUMA: Final = Column("on more NUMA nodes than needed", _beyond("numaNodes"), digits=1)
CACHES: Final = Column("on more caches than needed", _beyond("caches"), digits=1)
CORES: Final = Column("on more cores than needed", _beyond("cores"), digits=1)
IDLE: Final = Column("idle sockets, mean", lambda run: run.averages.idle_sockets, "", 1)
REQUESTED: Final = Column("CPUs requested", _requested, digits=1)
MOVED: Final = Column(
    "containers moved, for 100 pods",
    lambda run: _percent(run.moves.containers, run.fates.arrived),
    "",
    1,
)


class Table(Struct, frozen=True):
    """A table: experiments and what a row of each is called by, ``{}`` being the configuration."""

    rows: Mapping[str, str]
    columns: Sequence[Column] = ()


FATES: Final = (REJECTED, LATER, REFUSED, USABLE, NUMA)
TABLES: Final[Mapping[str, Table]] = {
    "fixed-two-numa": Table({"fixed-two-numa": "{}"}, (*FATES, CORES, MOVED)),
    "fixed-eight-numa": Table({"fixed-eight-numa": "{}"}, (*FATES, CACHES, CORES, MOVED)),
    "whole-cores": Table(
        {"whole-cores-for-all": "all Guaranteed: {}", "whole-cores": "odd ones share: {}"},
        (REJECTED, LATER, REFUSED, STRANDED, CORES),
    ),
    "needed": Table(
        {"needed-two-numa": "two NUMA nodes: {}", "needed-eight-numa": "eight NUMA nodes: {}"}
    ),
    "scorers": Table(
        {
            "scorer-least": "LeastAllocated: {}",
            "scorer-most": "MostAllocated: {}",
            "scorer-topology": "TopologyAware: {}",
        },
        (REJECTED, LATER, REFUSED, NUMA, CACHES, IDLE),
    ),
    "gpus": Table(
        {
            "gpus-two-numa": "two NUMA nodes: {}",
            "gpus-eight-numa": "eight NUMA nodes: {}",
            "gpus-packed": "eight NUMA nodes, MostAllocated: {}",
        },
        (REJECTED, LATER, REFUSED, NUMA, REQUESTED),
    ),
    "retry": Table(
        {"retry-0": "no second attempt: {}", "retry-20": "20 more attempts: {}"},
        (REJECTED, LATER, REFUSED),
    ),
}
"""Those without columns show the nodes needed."""

PICTURES: Final[Mapping[str, tuple[str, str]]] = {
    "rejected-two-numa.svg": ("fixed-two-numa", "rejected-by-reason"),
    "rejected-eight-numa.svg": ("fixed-eight-numa", "rejected-by-reason"),
}
"""File beside the page -> experiment, and which of its plots."""


def experiments(tables: Mapping[str, Table]) -> list[str]:
    """The names of all experiments that some table shows, each once."""
    return [*dict.fromkeys(name for table in tables.values() for name in table.rows)]


def with_tables(page: str, found: Found) -> str:
    """The page with its tables made anew.

    Raises:
        ValueError: it has not one place for each table.
    """
    places = [match["name"] for match in _MARKED.finditer(page)]
    if sorted(places) != sorted(TABLES):
        raise ValueError(f"the page has places for {places}, and the tables are {[*TABLES]}")

    def filled(match: re.Match[str]) -> str:
        lines = "\n".join(table(match["name"], found))
        return f"{match[1]}\n{lines}\n\n{match[4]}"

    return _MARKED.sub(filled, page)


def table(name: str, found: Found) -> Iterator[str]:
    """The lines of a table."""
    shown = TABLES[name]
    titles = [column.title for column in shown.columns] or ["nodes", "more nodes"]
    yield "| |" + "".join(f" {title} |" for title in titles)
    yield "|---|" + "--:|" * len(titles)
    for experiment, label in shown.rows.items():
        simulation = found[experiment]
        for configuration in simulation.configurations:
            cells = _cells(shown.columns, simulation, configuration)
            yield f"| {label.format(configuration)} |" + "".join(f" {one} |" for one in cells)


def _cells(columns: Sequence[Column], found: Simulation, configuration: str) -> Iterator[str]:
    runs = [run for run in found.runs if run.configuration == configuration]
    for column in columns:
        yield _spread([column.figure(run) for run in runs], column.digits, column.unit)
    if not columns and found.needed is not UNSET:
        of_it = [one for one in found.needed if one.configuration == configuration]
        yield from _needed(of_it, [sum(run.nodes.values()) for run in runs])


def _needed(each: Sequence[Needed], had: Sequence[int]) -> Iterator[str]:
    counts = [sum(one.nodes.values()) for one in each if one.nodes is not None]
    if len(counts) < len(each):
        yield from ("not enough", "not enough")
        return
    yield _spread([float(count) for count in counts], 0, "")
    more = zip(counts, had, strict=True)
    yield _spread([100 * (count / before - 1) for count, before in more], 1, " %", sign="+")


def _spread(values: Sequence[float], digits: int, unit: str, sign: str = "") -> str:
    """The mean, and between which values it is, where these are not the same."""

    def shown(value: float) -> str:
        # No "-0".
        return f"{round(value, digits) + 0.0:{sign},.{digits}f}"

    low, high = shown(min(values)), shown(max(values))
    told = f"{shown(mean(values))}{unit}"
    return told if low == high else f"{told} ({low} to {high})"
