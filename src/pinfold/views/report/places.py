"""What became of the CPUs: stranded, spread, idle, and moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from pinfold.documents.simulation.results import Run, Spread
from pinfold.render.report.view import (
    Bar,
    BarChart,
    Block,
    Column,
    Figure,
    Line,
    LineChart,
    Section,
    Shown,
    Table,
    Text,
)
from pinfold.views.numbers import memory, number, percent
from pinfold.views.report.configurations import Configuration, banded, is_many, range_of

_NAME: Final = Column("Configuration", numeric=False)
_MOST_GROUPS: Final = 4
_Counts = Callable[[Spread], Mapping[str, int]]

_GROUPS: Final[tuple[tuple[str, _Counts], ...]] = (
    ("NUMA nodes", lambda spread: spread.numa_nodes),
    ("sockets", lambda spread: spread.sockets),
    ("L3 caches", lambda spread: spread.caches),
)


def _one_beyond(key: str) -> _Counts:
    return lambda spread: {"beyond": spread.beyond.get(key, 0)}


_BEYOND: Final = (
    ("NUMA nodes", _one_beyond("numaNodes")),
    ("sockets", _one_beyond("sockets")),
    ("L3 caches", _one_beyond("caches")),
    ("cores", _one_beyond("cores")),
)


def places(compared: Sequence[Configuration]) -> tuple[Section, ...]:
    """The sections about CPUs, about how containers are spread, and about moves."""
    ran = [one for one in compared if one.runs]
    if not ran:
        return ()
    cpus: list[Block] = [_cpus(ran), _idle(ran)]
    fits = _fits(ran, compared)
    cpus.append(fits or Text("No sizes of pods were tried on what was left free."))
    return (
        Section("cpus", "CPUs", tuple(cpus)),
        Section("spread", "How containers are spread", _spread(ran)),
        Section("moves", "Moves and their price", _moves(ran)),
    )


def _cpus(ran: Sequence[Configuration]) -> Figure:
    parts = ("owned by containers", "free and usable", "free but stranded")

    def shares(run: Run) -> dict[str, float]:
        averages, all_cpus = run.averages, run.averages.allocatable_cpus or 1.0
        usable = max(averages.free_cpus - averages.stranded_cpus, 0.0)
        values = (averages.exclusive_cpus, usable, averages.stranded_cpus)
        return {part: value / all_cpus for part, value in zip(parts, values, strict=True)}

    bars = []
    rows = []
    for one in ran:
        values = one.mean_counts(shares, parts)
        stranded = one.over(lambda run: shares(run)[parts[2]])
        bars.append(Bar(one.title, f"{percent(stranded.mean)} stranded", values))
        rows.append(
            (
                one.title,
                one.over(lambda run: run.averages.allocatable_cpus).told(number),
                one.over(lambda run: run.averages.requested_cpus).told(number),
                one.over(lambda run: run.averages.exclusive_cpus).told(number),
                one.over(lambda run: run.averages.free_cpus).told(number),
                one.over(lambda run: run.averages.stranded_cpus).told(number),
            )
        )
    titles = ("Allocatable", "Requested", "Owned", "Free", "Stranded")
    return Figure(
        "cpus",
        "CPUs by what became of them",
        "Means over time, as a share of the CPUs that can be allocated. Stranded CPUs are free, "
        "and the node's policy gives them to nobody.",
        BarChart("share of the allocatable CPUs", parts, tuple(bars), percent=True, hues=(0, 2, 1)),
        Table("CPUs, means over time", (_NAME, *map(Column, titles)), tuple(rows)),
    )


def _idle(ran: Sequence[Configuration]) -> Figure:
    idle = [one.over(lambda run: run.averages.idle_sockets) for one in ran]
    busy = [one.over(lambda run: run.averages.busy_nodes) for one in ran]
    return Figure(
        "idle-sockets",
        "Sockets that could sleep",
        "Sockets on which no CPU is owned, mean over time.",
        BarChart(
            "sockets",
            ("idle sockets",),
            tuple(
                Bar(one.title, number(found.mean), (found.mean,), (found.low, found.high))
                for one, found in zip(ran, idle, strict=True)
            ),
        ),
        Table(
            "Idle sockets and busy nodes, means over time",
            (_NAME, Column("Idle sockets"), Column("Busy nodes")),
            tuple(
                (one.title, sockets.told(number), nodes.told(number))
                for one, sockets, nodes in zip(ran, idle, busy, strict=True)
            ),
        ),
    )


def _fits(ran: Sequence[Configuration], compared: Sequence[Configuration]) -> Figure | None:
    sizes = sorted({fit.cpus for one in ran for run in one.runs for fit in run.fits})
    if not sizes:
        return None
    lines = []
    rows = []
    for one in ran:
        points = []
        band = []
        cells = []
        for place, size in enumerate(sizes):
            usable = [
                fit.usable_cpus / fit.free_cpus
                for run in one.runs
                for fit in run.fits
                if fit.cpus == size and fit.free_cpus
            ]
            if not usable:
                cells.append("-")
                continue
            found = range_of(usable)
            points.append((float(place), found.mean))
            band.append((float(place), found.low, found.high))
            cells.append(found.told(percent))
        if points:
            lines.append(Line(one.index, tuple(points), tuple(band) if banded(ran) else ()))
        rows.append((one.title, *cells))
    if not lines:
        return None
    return Figure(
        "usable-by-size",
        "Free CPUs that a pod of a size could still get",
        "Of the CPUs that were free, the share that Guaranteed pods of one size could be given, "
        "one after the other, on a sample of the nodes.",
        LineChart(
            "CPUs that the pod asks for",
            "usable",
            tuple(one.title for one in compared),
            tuple(lines),
            categories=tuple(str(size) for size in sizes),
            percent=True,
            numbered=is_many(len(compared)),
        ),
        Table(
            "Usable share of the free CPUs, by the size of the pod",
            (_NAME, *(Column(f"{size} CPUs") for size in sizes)),
            tuple(rows),
        ),
    )


def _spread(ran: Sequence[Configuration]) -> tuple[Block, ...]:
    figures: list[Block] = []
    for title, counts in _alike(ran, _GROUPS):
        figure = _groups(ran, title, counts)
        if figure is not None:
            figures.append(figure)
    if not figures:
        return (Text("No container owned CPUs on more than one of anything, so none was spread."),)
    kept = []
    for title, counts in _alike(ran, _BEYOND):
        figure = _beyond(ran, title, counts)
        if figure is None:
            kept.append(title)
        else:
            figures.append(figure)
    if kept:
        words = f"No container was on more {' or '.join(kept)} than its number of CPUs needs."
        return (Text(words), *figures)
    return tuple(figures)


def _alike(
    ran: Sequence[Configuration], kinds: Sequence[tuple[str, _Counts]]
) -> Iterator[tuple[str, _Counts]]:
    """The kinds of groups; those that count the same in all runs together, as one."""
    found: dict[str, tuple[list[str], _Counts]] = {}
    for title, counts in kinds:
        what = repr([sorted(counts(run.spread).items()) for one in ran for run in one.runs])
        found.setdefault(what, ([], counts))[0].append(title)
    for titles, counts in found.values():
        yield " and ".join([", ".join(titles[:-1]), titles[-1]][not titles[1:] :]), counts


def _groups(ran: Sequence[Configuration], title: str, counts: _Counts) -> Figure | None:
    found = {int(n) for one in ran for run in one.runs for n in counts(run.spread)}
    if not found - {1}:
        return None
    numbers = list(range(1, max(found) + 1))
    tail = numbers[_MOST_GROUPS:]
    parts = [str(n) for n in numbers[:_MOST_GROUPS]] + ([f"{tail[0]} or more"] if tail else [])

    def shares(run: Run) -> dict[str, float]:
        owners = counts(run.spread)
        shares = dict.fromkeys(parts, 0.0)
        for n, count in owners.items():
            shares[parts[min(int(n), len(parts)) - 1]] += count / max(sum(owners.values()), 1)
        return shares

    bars = []
    rows = []
    for one in ran:
        values = one.mean_counts(shares, parts)
        says = f"{percent(values[0])} on 1" if any(values) else "none owns CPUs"
        bars.append(Bar(one.title, says, values))
        rows.append((one.title, *(percent(value) for value in values)))
    return Figure(
        f"spread-{_file(title)}",
        f"Containers by the number of their {title}",
        f"Containers that own CPUs, by how many {title} these are on.",
        BarChart("share of the containers", tuple(parts), tuple(bars), percent=True, ordered=True),
        Table(
            f"Share of the containers, by the number of their {title}",
            (_NAME, *map(Column, parts)),
            tuple(rows),
        ),
    )


def _file(title: str) -> str:
    """A name for a file."""
    return title.lower().replace(",", "").replace(" ", "-")


def _owners(run: Run) -> int:
    return sum(run.spread.sockets.values()) or sum(run.spread.numa_nodes.values())


def _beyond(ran: Sequence[Configuration], title: str, counts: _Counts) -> Figure | None:
    def share(run: Run) -> float:
        return sum(counts(run.spread).values()) / max(_owners(run), 1)

    found = [one.over(share) for one in ran]
    if not any(one.high for one in found):
        return None
    return Figure(
        f"beyond-{_file(title)}",
        f"On more {title} than needed",
        f"Containers on more {title} than their number of CPUs needs on an empty machine.",
        BarChart(
            "share of the containers",
            (f"on more {title} than needed",),
            tuple(
                Bar(one.title, percent(share.mean), (share.mean,), (share.low, share.high))
                for one, share in zip(ran, found, strict=True)
            ),
            percent=True,
        ),
        Table(
            f"Share of the containers on more {title} than needed",
            (_NAME, Column("Share")),
            tuple((one.title, share.told(percent)) for one, share in zip(ran, found, strict=True)),
        ),
    )


def _moves(ran: Sequence[Configuration]) -> tuple[Block, ...]:
    if not any(run.moves.containers for one in ran for run in one.runs):
        return (Text("Nothing was moved: only the policy dynamic moves containers."),)
    columns: tuple[tuple[str, Callable[[Run], float], Callable[[float], str]], ...] = (
        ("Plans that made room for a pod", lambda run: run.moves.made_room, number),
        ("Plans that made places better", lambda run: run.moves.rebalances, number),
        ("Containers moved", lambda run: run.moves.containers, number),
        ("CPUs changed", lambda run: run.moves.cpus, number),
        ("Memory moved", lambda run: float(run.moves.memory_bytes), memory),
        (
            "Containers moved for each pod placed",
            lambda run: run.moves.containers / max(sum(run.fates.placed_at.values()), 1),
            number,
        ),
    )
    rows = tuple(
        (one.title, *(one.over(value).told(say) for _, value, say in columns)) for one in ran
    )
    titles = (Column(title) for title, *_ in columns)
    return (Shown(Table("Moves of a run, and their price", (_NAME, *titles), rows)),)
