"""The runs of each configuration together, and numbers in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from pinfold.documents.simulation.results import Run, Simulation
from pinfold.render.report.texts import isolated
from pinfold.views.numbers import SPACE

_MOST_PLAIN = 8


class Range(Struct, frozen=True):
    """The mean of some numbers, the lowest and the highest."""

    mean: float
    low: float
    high: float

    def told(self, words: Callable[[float], str]) -> str:
        """``12.5 (11 to 14)``, by what says one number; without the brackets if they are alike."""
        low, high = words(self.low), words(self.high)
        if low == high:
            return words(self.mean)
        return f"{words(self.mean)} ({low}{SPACE}to{SPACE}{high})"


def range_of(values: Iterable[float]) -> Range:
    """Of at least one number."""
    numbers = list(values)
    return Range(sum(numbers) / len(numbers), min(numbers), max(numbers))


class Configuration(Struct, frozen=True):
    """A configuration with its runs, one a seed; there may be none."""

    index: int
    name: str
    title: str
    """Its name, with a number where there are many."""
    runs: tuple[Run, ...]

    def over(self, value: Callable[[Run], float]) -> Range:
        """Something of each of its runs, of which there is at least one."""
        return range_of(value(run) for run in self.runs)

    def mean_counts(
        self, counts: Callable[[Run], Mapping[str, float]], names: Iterable[str]
    ) -> tuple[float, ...]:
        """The mean of counts by name, in the order of the names."""
        found = [counts(run) for run in self.runs]
        return tuple(sum(one.get(name, 0) for one in found) / max(len(found), 1) for name in names)


def configurations(simulation: Simulation) -> tuple[Configuration, ...]:
    """In the order of the experiment; a run of a configuration that is not in it comes last."""
    by_name: dict[str, list[Run]] = {name: [] for name in simulation.configurations}
    for run in simulation.runs:
        by_name.setdefault(run.configuration, []).append(run)
    many = is_many(len(by_name))
    return tuple(
        Configuration(
            index,
            name,
            f"{index + 1}. {isolated(name)}" if many else isolated(name),
            tuple(runs),
        )
        for index, (name, runs) in enumerate(by_name.items())
    )


def is_many(count: int) -> bool:
    """More configurations than there are colours: they are numbered."""
    return count > _MOST_PLAIN


_MOST_BANDS = 4


def banded(compared: Sequence[Configuration]) -> bool:
    """Whether bands from the lowest to the highest seed can be told apart, and there are any."""
    return len(compared) <= _MOST_BANDS and any(len(one.runs) > 1 for one in compared)


def rejected_share(run: Run) -> float:
    """Of the pods that came."""
    return run.fates.rejected / run.fates.arrived if run.fates.arrived else 0.0


def all_names(
    configurations: Iterable[Configuration], counts: Callable[[Run], Mapping[str, float]]
) -> list[str]:
    """Every name that some run counts, the most frequent first."""
    totals: dict[str, float] = {}
    for one in configurations:
        for run in one.runs:
            for name, count in counts(run).items():
                totals[name] = totals.get(name, 0) + count
    return [name for name, count in sorted(totals.items(), key=lambda item: -item[1]) if count]
