"""What became of the pods: reasons of rejection, and at which attempt they were let in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pinfold.documents.simulation.results import Run
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
from pinfold.views.report.configurations import (
    Configuration,
    all_names,
    banded,
    is_many,
    range_of,
)


def pods(compared: Sequence[Configuration]) -> Section:
    """The section about pods."""
    ran = [one for one in compared if any(run.fates.arrived for run in one.runs)]
    if not ran:
        return Section("pods", "Pods", (Text("No pods came, so none were rejected."),))
    blocks: list[Block] = [
        _reasons(
            ran,
            lambda run: run.fates.rejected_by,
            name="rejected-by-reason",
            title="Rejected pods by reason",
            says="Pods that were given up, as a share of all that came, by the reason of their "
            "last attempt.",
        )
        or Text("No pod was rejected for good."),
        _attempts(ran, compared),
    ]
    refusals = _reasons(
        ran,
        lambda run: run.fates.refusals,
        name="refusals-by-reason",
        title="Attempts that came to nothing",
        says="Refusals for each 100 pods that came, by reason; a pod may be refused many times.",
    )
    return Section("pods", "Pods", (*blocks, *((refusals,) if refusals else ())))


def _reasons(
    ran: Sequence[Configuration],
    counts: Callable[[Run], Mapping[str, int]],
    *,
    name: str,
    title: str,
    says: str,
) -> Figure | None:
    reasons = all_names(ran, counts)
    if not reasons:
        return None

    def shares(run: Run) -> dict[str, float]:
        return {reason: n / max(run.fates.arrived, 1) for reason, n in counts(run).items()}

    bars = []
    rows = []
    for one in ran:
        sums = one.over(lambda run: sum(shares(run).values()))
        many = one.over(lambda run: sum(counts(run).values()))
        says_bar = f"{number(round(many.mean))} ({percent(sums.mean)})"
        bars.append(
            Bar(one.title, says_bar, one.mean_counts(shares, reasons), (sums.low, sums.high))
        )
        means = one.mean_counts(counts, reasons)
        rows.append((one.title, many.told(number), *(number(mean) for mean in means)))
    several = any(len(one.runs) > 1 for one in ran)
    return Figure(
        name,
        title,
        says + " The thin line goes from the lowest to the highest seed." * several,
        BarChart("share of the pods that came", tuple(reasons), tuple(bars), percent=True),
        Table(
            f"{title}: mean of a run",
            (Column("Configuration", numeric=False), Column("All"), *map(Column, reasons)),
            tuple(rows),
        ),
    )


def _attempts(ran: Sequence[Configuration], compared: Sequence[Configuration]) -> Figure:
    last = max(
        (int(attempt) for one in ran for run in one.runs for attempt in run.fates.placed_at),
        default=1,
    )
    attempts = range(1, last + 1)
    lines = []
    rows = []
    for one in ran:
        points = []
        band = []
        for attempt in attempts:
            share = range_of(_let_in(run, attempt) for run in one.runs)
            points.append((float(attempt), share.mean))
            band.append((float(attempt), share.low, share.high))
        lines.append(Line(one.index, tuple(points), tuple(band) if banded(ran) else ()))
        rows.append((one.title, *(percent(share) for _, share in points)))
    return Figure(
        "acceptance-by-attempt",
        "Let in by the nth attempt",
        "The share of the pods that came which run after so many attempts. The axis does not begin "
        "at 0.",
        LineChart(
            "attempts",
            "share let in",
            tuple(one.title for one in compared),
            tuple(lines),
            percent=True,
            from_zero=False,
            whole=True,
            numbered=is_many(len(compared)),
        ),
        Table(
            "Share of the pods let in by the nth attempt",
            (Column("Configuration", numeric=False), *(Column(f"{n}") for n in attempts)),
            tuple(rows),
        ),
    )


def _let_in(run: Run, attempt: int) -> float:
    until = sum(n for at, n in run.fates.placed_at.items() if int(at) <= attempt)
    return until / max(run.fates.arrived, 1)
