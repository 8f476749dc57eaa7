"""How it went over time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from pinfold.documents.simulation.results import Run
from pinfold.render.report.view import Column, Figure, Line, LineChart, Section, Table, Text
from pinfold.views.numbers import duration, number
from pinfold.views.report.configurations import Configuration, banded, is_many, range_of

_MOMENTS: Final = 240
_MANY_LINES: Final = 6
_FEWER_MOMENTS: Final = 120
_INTERVALS: Final = 48
_ROWS: Final = 12

_GAUGES: Final = (
    ("runningPods", "Running pods", "Pods that run at a moment."),
    ("requestedCPUs", "Requested CPUs", "CPUs that all running pods request."),
    ("exclusiveCPUs", "Owned CPUs", "CPUs that containers own."),
    ("freeCPUs", "Free CPUs", "CPUs that nobody owns, and somebody could."),
    (
        "strandedCPUs",
        "Stranded CPUs",
        "Free CPUs that the node's policy gives to nobody, whatever he asks for.",
    ),
    ("idleSockets", "Idle sockets", "Sockets on which no CPU is owned: those that could sleep."),
    ("busyNodes", "Busy nodes", "Nodes on which some pod runs."),
    (
        "splitContainers",
        "Split containers",
        "Containers on more NUMA nodes than their number of CPUs needs on an empty machine.",
    ),
)
_RATES: Final = (
    ("arrived", "Arrivals", "New pods an hour."),
    ("rejected", "Rejected pods", "Pods given up, an hour."),
    ("moved", "Moved containers", "Containers that moved, an hour."),
)

_Values = Callable[[Run, Sequence[float]], list[float]]


def series(compared: Sequence[Configuration]) -> Section:
    """The section about time."""
    ran = [
        one for one in compared if any(run.until > 0 and run.series.get("time") for run in one.runs)
    ]
    if not ran:
        text = Text("Nothing was noted over time: the runs were too short.")
        return Section("time", "Over time", (text,))
    figures = []
    moments = _MOMENTS if len(ran) <= _MANY_LINES else _FEWER_MOMENTS
    for column, title, says in _GAUGES:
        figures.append(_figure(ran, compared, (column, title, says), _gauge(column), moments))
    for column, title, says in _RATES:
        found = _figure(
            ran, compared, (column, f"{title} an hour", says), _rate(column), _INTERVALS
        )
        figures.append(found)
    words = "Each line is the mean over the seeds. " if any(len(o.runs) > 1 for o in ran) else ""
    if banded(ran):
        words += "The area behind it goes from the lowest to the highest seed. "
    still = [found.title for found in figures if not _varies(found)]
    if still:
        titles = ", ".join(title[0].lower() + title[1:] for title in still)
        words += f"Always 0, and not drawn: {titles}."
    drawn = tuple(found for found in figures if _varies(found))
    return Section("time", "Over time", (*((Text(words.strip()),) if words else ()), *drawn))


def _varies(figure: Figure) -> bool:
    chart = figure.chart
    return isinstance(chart, LineChart) and any(y for line in chart.lines for _, y in line.points)


def _figure(
    ran: Sequence[Configuration],
    compared: Sequence[Configuration],
    what: tuple[str, str, str],
    values: _Values,
    count: int,
) -> Figure:
    column, title, says = what
    longest = max(run.until for one in ran for run in one.runs)
    unit, size = _unit(longest)
    lines = []
    with_bands = banded(ran)
    for one in ran:
        runs = [run for run in one.runs if run.series.get("time") and column in run.series]
        if not runs:
            continue
        # An interrupted run has a shorter line, and seeds are compared while all of them ran.
        until = min(run.until for run in runs)
        moments = [until * place / count for place in range(count + 1)]
        by_seed = [values(run, moments) for run in runs]
        ranges = [range_of(at) for at in zip(*by_seed, strict=True)]
        xs = [moment / size for moment in moments[len(moments) - len(ranges) :]]
        lines.append(
            Line(
                one.index,
                tuple((x, found.mean) for x, found in zip(xs, ranges, strict=True)),
                tuple((x, found.low, found.high) for x, found in zip(xs, ranges, strict=True))
                if with_bands
                else (),
            )
        )
    counted_from = max(run.counted_from for one in ran for run in one.runs)
    chart = LineChart(
        f"{unit} since the start",
        title,
        tuple(one.title for one in compared),
        tuple(lines),
        at=(counted_from / size, "counted from here") if 0 < counted_from < longest else None,
        numbered=is_many(len(compared)),
    )
    return Figure(_name(column), title, says, chart, _table(chart, compared, longest))


def _gauge(column: str) -> _Values:
    def values(run: Run, moments: Sequence[float]) -> list[float]:
        return [_at(run, column, moment) for moment in moments[1:]]

    return values


def _rate(column: str) -> _Values:
    def values(run: Run, moments: Sequence[float]) -> list[float]:
        totals = [_at(run, column, moment) if moment else 0.0 for moment in moments]
        hours = (moments[1] - moments[0]) / 3600
        return [(later - earlier) / hours if hours else 0.0 for earlier, later in pairwise(totals)]

    return values


def _at(run: Run, column: str, moment: float) -> float:
    """What was noted last, at most a hundredth of a second after the moment: of rounding."""
    place = bisect_right(run.series["time"], moment + 0.01)
    return run.series[column][max(place - 1, 0)]


def _unit(longest: float) -> tuple[str, float]:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if longest >= 3 * size:
            return unit, size
    return "seconds", 1.0


def _name(column: str) -> str:
    words = "".join(f"-{char.lower()}" if char.isupper() else char for char in column)
    return f"time-{words.replace('-c-p-us', '-cpus')}"


def _table(chart: LineChart, compared: Sequence[Configuration], longest: float) -> Table:
    _, size = _unit(longest)
    columns = [Column("Time", numeric=False)]
    columns += [Column(compared[line.key].title) for line in chart.lines]
    rows = []
    for place in range(1, _ROWS + 1):
        moment = longest / size * place / _ROWS
        cells = [duration(moment * size)]
        for line in chart.lines:
            until = [y for x, y in line.points if x <= moment * (1 + 1e-9)]
            ended = line.points[-1][0] < moment * (1 - 1e-6)
            cells.append(number(until[-1]) if until and not ended else "-")
        rows.append(tuple(cells))
    return Table(chart.y, tuple(columns), tuple(rows))
