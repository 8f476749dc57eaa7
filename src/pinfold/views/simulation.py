"""What a simulation counted, as the table that is shown of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from msgspec import UNSET, Struct

from pinfold.documents.simulation.results import Needed, Run, Simulation
from pinfold.render.simulation.side_by_side import (
    Column,
    Figure,
    FigureRow,
    FigureSection,
    SideBySide,
)
from pinfold.views.numbers import count_cell, duration, mean_cell, memory, plain, share_cell

Number = Callable[[Run], float]
Shown = Callable[[float], str]


def simulation_view(document: Simulation) -> SideBySide:
    """The table: a column for each configuration, with the means of its seeds.

    Of what is looked for first, the least and the most of the seeds are told, too.
    """
    table = _Table(document)
    return SideBySide(
        title=document.name,
        subtitle=_subtitle(document),
        columns=tuple(map(table.column, document.configurations)),
        sections=tuple(filter(lambda section: section.rows, table.sections())),
        notes=(*table.warnings(), *document.notes),
        is_sweep="sweep" in document.experiment.get("spec", {}),
    )


def _subtitle(document: Simulation) -> str:
    runs = document.runs
    if not runs:
        return "nothing was run"
    seeds = list(dict.fromkeys(run.seed for run in runs))
    parts = [f"{_lasting(max(run.until for run in runs))} of time"]
    if counted := max(run.counted_from for run in runs):
        parts.append(f"counted from {_lasting(counted)} on")
    parts.append(f"means of {len(seeds)} seeds" if len(seeds) > 1 else f"seed {seeds[0]}")
    return ", ".join(parts)


class _Table(Struct, frozen=True):
    """Makes rows of the runs."""

    document: Simulation

    def runs(self, configuration: str) -> list[Run]:
        return [run for run in self.document.runs if run.configuration == configuration]

    def column(self, configuration: str) -> Column:
        runs = self.runs(configuration)
        cut = [run for run in runs if not run.complete]
        if not runs:
            return Column(configuration, "not run")
        if cut:
            return Column(configuration, f"interrupted at {_lasting(min(r.until for r in cut))}")
        return Column(configuration)

    def warnings(self) -> Iterator[str]:
        for configuration, seed in self.document.missing:
            yield f"not run: {configuration}, seed {seed}"
        different = sum(run.replayed.different for run in self.document.runs)
        if different:
            yield (
                f"{different} decisions were not the planner's when they were made once more: "
                "this is a fault of Pinfold, do not trust these figures"
            )

    def sections(self) -> Iterator[FigureSection]:
        yield FigureSection("Pods", tuple(self._pods()))
        yield FigureSection("CPUs, mean over time", tuple(self._cpus()))
        yield FigureSection("Containers with CPUs of their own", tuple(self._spread()))
        yield FigureSection("Moves", tuple(self._moves()))
        yield FigureSection("Fleet", tuple(self._fleet()))

    def row(  # noqa: PLR0913 - what a row is, and how it is shown
        self,
        label: str,
        number: Number,
        shown: Shown,
        *,
        of: Number | None = None,
        level: int = 0,
        head: str = "",
    ) -> FigureRow:
        """A row; ``of`` is what the number is told as a share of, too.

        ``head`` is what one that is looked for first is called where it is a column.
        """
        figures = []
        for configuration in self.document.configurations:
            runs = self.runs(configuration)
            if not runs:
                figures.append(Figure("-"))
                continue
            values = [number(run) for run in runs]
            share = "" if of is None else share_cell(fmean(values), fmean(map(of, runs)))
            least, most = shown(min(values)), shown(max(values))
            detail = f"{least} to {most}" * (bool(head) and least != most)
            figures.append(Figure(shown(fmean(values)), share, detail))
        return FigureRow(label, tuple(figures), level, bool(head), head)

    def _pods(self) -> Iterator[FigureRow]:
        yield self.row("arrived", _arrived, count_cell)
        yield self.row(
            "rejected",
            lambda run: run.fates.rejected,
            count_cell,
            of=_arrived,
            head="pods rejected",
        )
        yield from self._reasons(lambda run: run.fates.rejected_by)
        yield self.row(
            "placed at the first attempt", lambda run: _placed(run, 1), count_cell, of=_arrived
        )
        yield self.row(
            "at the second", lambda run: _placed(run, 2), count_cell, of=_arrived, level=1
        )
        yield self.row("later", _placed_later, count_cell, of=_arrived, level=1)
        yield self.row("attempts refused", lambda run: sum(run.fates.refusals.values()), count_cell)
        yield from self._reasons(lambda run: run.fates.refusals)
        yield self.row("running at the end", lambda run: run.fates.running, count_cell)
        if any(run.fates.waiting for run in self.document.runs):
            yield self.row("waiting at the end", lambda run: run.fates.waiting, count_cell)

    def _reasons(self, table: Callable[[Run], Mapping[str, int]]) -> Iterator[FigureRow]:
        """The reasons in any run, the most frequent first."""
        counted: Counter[str] = Counter()
        for run in self.document.runs:
            counted.update(table(run))
        for reason, count in counted.most_common():
            if count:
                yield self.row(reason, _one_of(table, reason), count_cell, level=1)

    def _cpus(self) -> Iterator[FigureRow]:
        yield self.row("allocatable", _allocatable, mean_cell)
        parts: tuple[tuple[str, Number], ...] = (
            ("requested", lambda run: run.averages.requested_cpus),
            ("exclusive", lambda run: run.averages.exclusive_cpus),
            ("free", lambda run: run.averages.free_cpus),
            ("stranded", lambda run: run.averages.stranded_cpus),
        )
        for label, number in parts:
            head = "CPUs stranded" * (label == "stranded")
            yield self.row(label, number, mean_cell, of=_allocatable, head=head)

    def _spread(self) -> Iterator[FigureRow]:
        if not any(_owners(run) for run in self.document.runs):
            return
        yield self.row("all", _owners, count_cell)
        for key, label in (
            ("numaNodes", "on more NUMA nodes than needed"),
            ("sockets", "on more sockets"),
            ("caches", "on more caches"),
            ("cores", "on more cores"),
        ):
            if any(key in run.spread.beyond for run in self.document.runs):
                beyond = _one_of(lambda run: run.spread.beyond, key)
                head = "on more NUMA nodes" * (key == "numaNodes")
                yield self.row(label, beyond, count_cell, of=_owners, head=head)

    def _moves(self) -> Iterator[FigureRow]:
        if not any(run.moves.containers for run in self.document.runs):
            return
        yield self.row("plans that made room for a pod", lambda r: r.moves.made_room, count_cell)
        yield self.row("plans for better places", lambda run: run.moves.rebalances, count_cell)
        yield self.row("containers moved", lambda run: run.moves.containers, count_cell)
        yield self.row("CPUs that were new to them", lambda run: run.moves.cpus, count_cell)
        yield self.row(
            "memory left behind",
            lambda run: run.moves.memory_bytes,
            lambda value: plain(memory(value)),
        )

    def _fleet(self) -> Iterator[FigureRow]:
        yield self.row("nodes", _nodes, count_cell)
        yield self.row("with a pod, mean", lambda run: run.averages.busy_nodes, mean_cell, level=1)
        yield self.row(
            "sockets that could sleep, mean", lambda r: r.averages.idle_sockets, mean_cell
        )
        if any(run.averages.split_containers for run in self.document.runs):
            split: Number = lambda run: run.averages.split_containers  # noqa: E731 - one of many
            yield self.row("containers split, mean", split, mean_cell)
        needed = self.document.needed
        if needed is not UNSET and needed:
            yield self._needed(needed)

    def _needed(self, needed: Sequence[Needed]) -> FigureRow:
        figures = []
        for configuration in self.document.configurations:
            found = [one for one in needed if one.configuration == configuration]
            counts = [sum(one.nodes.values()) for one in found if one.nodes is not None]
            if not found:
                figures.append(Figure("-"))
            elif len(counts) < len(found):
                most = max(factor for one in found for factor, _ in one.tried)
                figures.append(Figure(f"over {most:g} times"))
            else:
                detail = f"{min(counts):,} to {max(counts):,}" * (min(counts) != max(counts))
                figures.append(Figure(count_cell(fmean(counts)), detail=detail))
        return FigureRow("nodes needed", tuple(figures), is_main=True)


def _one_of(table: Callable[[Run], Mapping[str, int]], name: str) -> Number:
    return lambda run: table(run).get(name, 0)


def _placed(run: Run, attempt: int) -> int:
    return run.fates.placed_at.get(str(attempt), 0)


def _placed_later(run: Run) -> int:
    first = _placed(run, 1) + _placed(run, 2)
    return sum(run.fates.placed_at.values()) - first


def _owners(run: Run) -> int:
    """Containers that were given CPUs of their own."""
    return sum(run.spread.numa_nodes.values())


def _arrived(run: Run) -> int:
    return run.fates.arrived


def _allocatable(run: Run) -> float:
    return run.averages.allocatable_cpus


def _nodes(run: Run) -> int:
    return sum(run.nodes.values())


def _lasting(seconds: float) -> str:
    return plain(duration(seconds))
